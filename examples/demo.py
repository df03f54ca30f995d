"""What `make demo` runs: real training on two workers through the server, followed live, to its accuracy.

The job is an ordinary `shoal run` of lesson 2; what it leaves (record, log, model) stays in SHOAL_HOME to be looked at.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import shoal

SCRIPT = Path(__file__).parent / "02_digits" / "train.py"
WORKERS = 2
LEAST = 0.9  # a digit guessed at random is right once in ten


def main() -> None:
    tag = f"demo-{secrets.token_hex(4)}"
    run(tag)
    job = next(iter(shoal.jobs(tag=tag, limit=1)))
    accuracy = read_accuracy(job)
    print_next_steps(job)
    if accuracy < LEAST:
        sys.exit(f"the demo trained to an accuracy of {accuracy:.2f} only; see: {command()} logs {job.id}")
    print(f"accuracy {accuracy:.2f}")


def run(tag: str) -> None:
    """`shoal run`, with this terminal as its own; leaves with its exit code when the job fails."""
    words = ["run", str(SCRIPT), "--workers", str(WORKERS), "--name", "digits", "--tag", tag]
    print(f"$ shoal {' '.join(words[:4])}".replace(f"{Path.cwd()}/", ""), flush=True)
    code = subprocess.run([sys.executable, "-m", "shoal.cli", *words], check=False).returncode
    if code:
        sys.exit(code)


def read_accuracy(job: shoal.Job) -> float:
    """The job's own number, from the file it wrote."""
    with TemporaryDirectory() as folder:
        metrics = job.get(folder, "outputs/metrics.json")
        return float(json.loads(metrics.read_text())["accuracy"])


def command() -> str:
    """How to call Shoal from this folder."""
    here = Path(sys.prefix, "bin", "shoal")
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)


def print_next_steps(job: shoal.Job) -> None:
    steps = {
        "jobs": "all jobs",
        f"show {job.id}": "its ranks, attempts and events",
        f"logs {job.id}": "what the workers printed",
        f"get {job.id}": "what it wrote, the trained model among it",
        "server stop": "when you are done",
    }
    print(f"\nThe server keeps running at {job.api.url} and keeps the job. Look again with:")
    for words, meaning in steps.items():
        print(f"  {command()} {words.ljust(16)}  {meaning}")
    print()


if __name__ == "__main__":
    main()
