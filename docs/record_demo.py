"""Draws docs/images/demo.svg from a real run of the demo's job: what the terminal shows in the middle of it.

    .venv/bin/python docs/record_demo.py

It submits lesson 2, follows it as `shoal run` does, takes the screen when the workers are two thirds through, and adds
how it ended.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

import shoal
from shoal.cli.follow import summary
from shoal.cli.live import LiveView
from shoal.cli.logs import Line

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "images" / "demo.svg"
COLUMNS = 96
LINES = 6  # of the log, above the live view
MOMENT = 0.65  # how far the job is when the picture is taken


def main() -> None:
    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    job = shoal.submit(ROOT / "examples" / "02_digits" / "train.py", workers=2, name="digits")
    view = LiveView(job.data)
    screen.print(Text.assemble(("$ ", "green"), ("make demo", "bold")))
    screen.print(Text.assemble(("$ ", "green"), "shoal run examples/02_digits/train.py --workers 2"))
    screen.print(Text(f"{job.id} (digits) at {job.api.url}", style="dim"))
    wait_for_the_moment(job, view)
    show_lines(screen, job)
    screen.print(view.render())
    job.wait()
    screen.print(Text("\n… a few seconds later\n", style="dim italic"))
    screen.print(Text(summary(job.data)))
    screen.print(Text(f"accuracy {final_accuracy(job):.2f}", style="bold"))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(for_everybody(screen.export_svg(title="make demo")), encoding="utf-8")
    print(f"written: {TARGET.relative_to(ROOT)}")


def for_everybody(svg: str) -> str:
    """A picture in a README must not fetch a font, and some viewers drop leading blanks unless told to keep them."""
    plain = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    return plain.replace("<svg ", '<svg xml:space="preserve" ', 1)


def wait_for_the_moment(job: shoal.Job, view: LiveView) -> None:
    for seen in job.watch():
        view.update(seen.data)
        if seen.ended:
            raise SystemExit(f"the job ended before the picture was taken: {seen.reason} {seen.message}")
        if (seen.progress or 0) >= MOMENT:
            return


def show_lines(screen: Console, job: shoal.Job) -> None:
    line = Line(colour=True)
    for one in job.logs(tail=LINES):
        screen.print(Text.from_ansi(line.text(one)))


def final_accuracy(job: shoal.Job) -> float:
    return float(job.refresh().ranks[0]["progress"]["accuracy"])


if __name__ == "__main__":
    main()
