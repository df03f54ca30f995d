"""Lines the shepherd reads, and records at a bounded rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.shepherd import progress
from shoal.train.errors import BadModel
from shoal.train.report import FOLDER, Reporter, line
from shoal.train.seeing import Seeing
from shoal.train.tally import Tally
from shoal.train.world import World


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def reporter(folder: Path, clock: Clock, **more: Any) -> tuple[Reporter, Tally]:
    tally = Tally(epochs=5, length=10)
    options = {"written": True, "printed": True, **more}
    return Reporter(World(outputs=folder), tally, Seeing(clock=clock), clock=clock, **options), tally


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (folder / FOLDER / "worker-0.jsonl").read_text().splitlines()]


def test_records_come_at_a_bounded_rate_and_the_last_always(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    report, tally = reporter(tmp_path, clock)
    for step in range(151):
        tally.step = step + 1
        report({"loss": torch.tensor(float(step))})
        clock.now += 0.01
    report.close()
    report.close()
    losses = [record["values"]["loss"] for record in records(tmp_path)]
    assert losses[0] == 0 and losses[-1] == 150 and 14 <= len(losses) <= 18
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_record_holds_where_it_stands_and_what_it_cost(tmp_path: Path) -> None:
    clock = Clock()
    report, tally = reporter(tmp_path, clock, printed=False)
    tally.epoch, tally.step, tally.samples = 2, 7, 224
    report._seeing.sent(5, 6)
    report._seeing.stale(2)
    report({"loss": 0.25, "accuracy": 1})
    report.close()
    [record] = records(tmp_path)
    assert record.pop("time") > 0
    assert record == {
        "attempt": 1,
        "step": 7,
        "epoch": 2,
        "samples": 224,
        "values": {"loss": 0.25, "accuracy": 1},
        "steps": 0,
        "seconds": {"compute": 0, "wait": 0, "exchange": 0, "data": 0},
        "bytes": {"sent": 5, "received": 6},
        "staleness": {"2": 1},
    }


def test_the_line_is_what_the_shepherd_understands() -> None:
    tally = Tally(epoch=2, epochs=5, step=25, batches=5, length=10)
    said = line(tally, {"loss": 0.25, "bad": float("nan")})
    assert said == "progress 2.5/5 step=25 loss=0.25 bad=nan"
    facts = progress.parse(said.encode())
    assert facts == {"done": 2.5, "total": 5, "fraction": 0.5, "step": 25, "loss": 0.25, "bad": "nan"}
    facts = progress.parse(line(Tally(step=3), {"loss": 1.5}).encode())
    assert facts == {"step": 3, "loss": 1.5}


def test_tensors_become_numbers_only_when_something_is_written(tmp_path: Path) -> None:
    clock = Clock()
    report, _ = reporter(tmp_path, clock, printed=False)
    report({"loss": 1.0})
    counted = torch.tensor(2.0, requires_grad=True) * 1
    report({"loss": counted})
    kept = report._values["loss"]
    assert isinstance(kept, torch.Tensor) and kept.grad_fn is None
    report.close()


def test_nothing_is_written_or_printed_outside_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, _ = reporter(tmp_path, Clock(), written=False, printed=False)
    report({"loss": 1.0})
    report.close()
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""


def test_what_is_not_a_number_is_refused(tmp_path: Path) -> None:
    report, _ = reporter(tmp_path, Clock())
    with pytest.raises(BadModel, match=r"report\(loss=…\) was given a tensor of shape \(3,\).*mean"):
        report({"loss": torch.zeros(3)})
    with pytest.raises(BadModel, match="str, which is not a number"):
        report({"loss": "low"})


def test_a_loss_that_is_not_finite_is_heard(tmp_path: Path) -> None:
    heard = list[float]()
    report, _ = reporter(tmp_path, Clock(), printed=False, heard=heard.append)
    report({"loss": float("nan")})
    assert len(heard) == 1 and heard[0] != heard[0]
    report.close()
    assert records(tmp_path)[0]["values"]["loss"] == "nan"
