"""The run: what it hands over to whom, what it refuses, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shoal.train
from shoal import train
from shoal.client.compare import read_profile
from shoal.errors import BadSpec, UnknownName
from shoal.strategy import parse
from shoal.train.choose import in_step, resumes, strategy_of
from shoal.train.errors import BadModel, TrainError
from shoal.train.run import Run, _numbered
from shoal.train.strategies import SYNCHRONISERS
from shoal.train.world import Peer, World
from tests.train.fakes import Remembers


def pair() -> tuple[nn.Linear, torch.optim.SGD]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch) -> Remembers:
    """The synchroniser that a run of two workers gets."""
    remembers = Remembers()
    monkeypatch.setattr(SYNCHRONISERS, "load", lambda name: lambda setting: remembers)
    return remembers


def run_of_two(strategy: str = "ps-async", rank: int = 1) -> Run:
    workers = tuple(Peer(f"worker-{number}", number, "here", "127.0.0.1", 0) for number in range(2))
    return Run(World(rank=rank, size=2, workers=workers), parse(strategy), torch.device("cpu"))


# -- the public face ---------------------------------------------------------------------------------------------------


def test_everything_public_is_there() -> None:
    public = {name: getattr(shoal.train, name) for name in shoal.train.__all__}
    assert public["Run"] is Run
    assert sorted(shoal.train.__all__) == shoal.train.__all__
    assert set(shoal.train.__all__) <= set(dir(shoal.train))
    with pytest.raises(AttributeError, match="no attribute 'Rum'"):
        _ = shoal.train.Rum


def test_importing_the_library_does_not_import_torch() -> None:
    code = "import sys, shoal.train; from shoal.train import world, house; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- which strategy ----------------------------------------------------------------------------------------------------


def test_the_job_says_which_strategy_before_the_script_does() -> None:
    assert strategy_of(World(strategy="gossip"), "allreduce")[1].name == "gossip"
    assert strategy_of(World(), "local-sgd:every=4")[0].strategy == "local-sgd:every=4"
    assert strategy_of(World(), None)[1].name == "allreduce"


def test_a_wrong_strategy_is_refused_also_in_a_world_of_one() -> None:
    with pytest.raises(UnknownName, match="did you mean 'ps-async'"):
        train.start("ps-asink")
    with pytest.raises(UnknownName, match="did you mean 'staleness'"):
        train.start("ps-ssp:stalenes=3")
    with pytest.raises(BadSpec, match="contradict"):
        train.start("ps-softsync:c=2,n=2")


def test_servers_and_strategy_must_fit() -> None:
    server = Peer("server-0", 0, "here", "127.0.0.1", 1)
    with pytest.raises(BadSpec, match="needs parameter servers and this job has none.*--servers 1"):
        strategy_of(World(size=2, source="shoal", strategy="ps-sync"), None)
    with pytest.raises(BadSpec, match="has 1 servers and strategy allreduce uses none"):
        strategy_of(World(size=2, source="shoal", servers=(server,)), None)


@pytest.mark.parametrize(
    ("strategy", "answer"),
    [
        ("allreduce", True),
        ("ps-sync", True),
        ("ps-sync:backup=1", False),
        ("ps-ssp:staleness=0", True),
        ("gossip", False),
    ],
)
def test_who_goes_in_step(strategy: str, answer: bool) -> None:
    assert in_step(parse(strategy)) is answer


def test_a_job_and_a_restart_resume_and_a_plain_script_does_not() -> None:
    assert resumes(World(source="shoal"), None)
    assert resumes(World(source="torchrun", variables={"TORCHELASTIC_RESTART_COUNT": "1"}), None)
    assert not resumes(World(source="torchrun", variables={"TORCHELASTIC_RESTART_COUNT": "0"}), None)
    assert not resumes(World(), None)
    assert resumes(World(), True)
    assert not resumes(World(source="shoal"), False)


# -- wrap and step -----------------------------------------------------------------------------------------------------


def test_wrap_attaches_the_strategy_and_its_step_exchanges(sync: Remembers) -> None:
    with run_of_two() as run:
        model, optimizer = run.wrap(*pair())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert sync.calls == ["attach", "before", "after"]
        assert run.tally.step == 1
    assert sync.calls[-1] == "finish"


def test_two_wraps_step_apart_and_the_first_counts(sync: Remembers) -> None:
    with run_of_two() as run:
        _, first = run.wrap(*pair())
        _, second = run.wrap(*pair())
        second.step()
        first.step()
        second.step()
        assert run.tally.step == 1
        assert sync.calls.count("before") == 3


def test_after_an_error_the_others_are_not_left_in_good_order(sync: Remembers) -> None:
    with pytest.raises(ZeroDivisionError), run_of_two() as run:
        _, optimizer = run.wrap(*pair())
        _ = 1 / 0
    assert "finish" not in sync.calls
    assert not optimizer._optimizer_step_pre_hooks


def test_a_clean_exit_inside_is_no_error(sync: Remembers) -> None:
    with pytest.raises(SystemExit), run_of_two() as run:
        run.wrap(*pair())
        sys.exit(0)
    assert sync.calls[-1] == "finish"


def test_a_second_run_begins_when_the_first_has_ended() -> None:
    with train.start():
        with pytest.raises(TrainError, match="has a run already"):
            train.start()
    with train.start() as run:
        pass
    with pytest.raises(TrainError, match="has ended"):
        run.wrap(*pair())


def test_every_run_of_a_job_has_outputs_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shoal.train.run._before", 0)
    job = World(source="shoal", outputs=tmp_path)
    found = [_numbered(job), _numbered(job)]
    assert [(one.serial, one.outputs) for one in found] == [(0, tmp_path), (1, tmp_path / "run-2")]
    assert _numbered(World()).outputs == Path("outputs")


def test_step_refuses_a_loss_that_is_not_one_number() -> None:
    with train.start() as run:
        model, _ = run.wrap(*pair())
        with pytest.raises(BadModel, match=r"loss of run.step has shape \(4, 1\)"):
            run.step(model, lambda output, target: output - target, torch.ones(4, 2), torch.ones(4, 1))
        with pytest.raises(TrainError, match=r"write run.step\(model, loss_fn, x, y\)"):
            run.step(model, nn.functional.mse_loss, torch.ones(4, 2))
        with pytest.raises(TrainError, match="was not wrapped"):
            run.step(nn.Linear(1, 1), nn.functional.mse_loss, torch.ones(1), torch.ones(1))


def test_a_mark_gives_the_module_back() -> None:
    layer = nn.Linear(1, 1)
    with train.start() as run:
        assert run.mark(layer) is layer


# -- telling -----------------------------------------------------------------------------------------------------------


def test_epochs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with train.start() as run:
        seen = [(epoch, run.epoch, run.tally.epochs) for epoch in run.epochs(3)]
        assert seen == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]


def test_explain_tells_batch_rate_staleness_and_bytes(sync: Remembers) -> None:
    with run_of_two("ps-sync") as run:
        run.wrap(*pair())
        run.tally.batch, run.tally.samples_per_epoch = 32, 1000
        told = run.explain()
        assert told["batch"] == "32 x 2 = 64"
        assert told["learning_rate"] == "0.1: nobody"
        assert (told["staleness"], told["bytes_per_step"], told["parameters"]) == (0, 8, 12)
        text = str(told)
        assert "global batch       32 x 2 = 64" in text and "samples per epoch  1000" in text
        assert "parameters         12 bytes" in text


def test_explain_in_a_world_of_one() -> None:
    with train.start("gossip") as run:
        run.wrap(*pair())
        told = run.explain()
        assert told["strategy"] == "none: a world of one (asked for gossip)"
        assert told["batch"] == "known when the first batch is read"
        assert "nobody scales it" in told["learning_rate"]


def test_the_first_worker_says_what_is_done(sync: Remembers, caplog: pytest.LogCaptureFixture, heard: None) -> None:
    with run_of_two(rank=0) as run:
        run.wrap(*pair())
    assert "ps-async over 2 workers; batch known when" in caplog.text
    assert "learning rate 0.1: nobody" in caplog.text
    caplog.clear()
    with run_of_two(rank=1) as run:
        run.wrap(*pair())
    assert caplog.text == ""


def test_metrics_are_written_where_outputs_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_OUTPUTS", str(tmp_path))
    with train.start() as run:
        model, _ = run.wrap(*pair())
        for _ in run.epochs(1):
            for _ in range(3):
                run.report(loss=run.step(model, nn.functional.mse_loss, torch.ones(4, 2), torch.zeros(4, 1)))
    rows = [json.loads(text) for text in (tmp_path / "metrics" / "worker-0.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 3 and "loss" in rows[-1]["values"]
    assert sum(row["steps"] for row in rows) == 3


# -- profile -----------------------------------------------------------------------------------------------------------


def test_a_profile_measures_some_steps_and_ends_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profile.json"
    monkeypatch.setenv("TRAIN_PROFILE", f"{file}:7")
    steps = 0
    with pytest.raises(SystemExit) as ended, train.start("ps-async") as run:
        table = nn.Embedding(10, 4, sparse=True)
        model = nn.Sequential(table, nn.Linear(4, 1))
        model, _ = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(100):
            steps += 1
            run.step(model, nn.functional.mse_loss, torch.tensor([1, 2]), torch.zeros(2, 1))
    assert ended.value.code == 0 and steps == 7
    facts: dict[str, Any] = json.loads(file.read_text())
    assert facts["steps"] == 7 and facts["compute_seconds"] > 0
    assert facts["parameter_bytes"] == (40 + 4 + 1) * 4
    assert (facts["sparse_rows"], facts["sparse_bytes"]) == (2, 160)
    assert len(facts["fingerprint"]) == 1
    read = read_profile(facts)  # as `shoal plan --suggest` does
    assert read.touched == pytest.approx((2 * 16 + 5 * 4) / 180) and read.slow >= read.compute > 0


def test_a_profile_of_no_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_PROFILE", "x.json:0")
    with pytest.raises(BadSpec, match="must be 1 or more"):
        train.start()


# -- sparse tables -----------------------------------------------------------------------------------------------------


def test_embeddings_of_a_wrapped_model_are_trained_saved_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_OUTPUTS", str(tmp_path))

    def trained(resume: bool, steps: int) -> torch.Tensor:
        with train.start(resume=resume) as run:
            torch.manual_seed(0)
            table = train.Embedding(100, 4, std=0.0)
            model = nn.Sequential(table, nn.Linear(4, 1))
            model, optimizer = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5))
            for _ in range(steps):
                model(torch.tensor([3, 7])).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            rows = table.table().pull(torch.tensor([3, 7, 9]), training=False).clone()
            run.save()
            return rows

    first = trained(resume=False, steps=2)
    assert first[0].abs().sum() > 0 and first[2].abs().sum() == 0
    assert torch.equal(trained(resume=True, steps=0), first)


def test_a_profile_counts_the_rows_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "profile.json"
    monkeypatch.setenv("TRAIN_PROFILE", f"{file}:5")
    with pytest.raises(SystemExit), train.start() as run:
        model = nn.Sequential(train.Embedding(1000, 4), nn.Linear(4, 1))
        model, _ = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(100):
            run.step(model, nn.functional.mse_loss, torch.tensor([1, 2, 2]), torch.zeros(3, 1))
    facts = json.loads(file.read_text())
    assert (facts["sparse_rows"], facts["sparse_bytes"]) == (2, 16000)
    assert facts["parameter_bytes"] == 16000 + 20
