"""The bench: which figures are chosen, how they are shown, and one that is really measured."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from shoal.bench import BENCHES, Figure, Target, main
from shoal.bench.report import choose, group
from shoal.catalogue import Catalogue
from shoal.errors import ShoalError, UnknownName

ISSUE_2 = {
    "drain", "import", "launch.command", "launch.pytorch", "list.api", "list.cli", "logs.follow", "logs.ship",
    "scale.beat", "scale.join", "server.idle", "server.per_job", "steps.ddp",
}  # fmt: skip


def measured() -> Sequence[Figure]:
    return [
        Figure("fast", 12.3456, Target("<", 20, "ms"), note="for people only"),
        Figure("fast.ratio", 1.2, Target("≤", 1.0, "×"), peer="turtle 10 ms"),
    ]


def unmeasurable() -> Sequence[Figure]:
    raise ShoalError("the machine is on fire; put it out")


TRAINING = {
    *(f"allreduce.{size}mb.{ranks}" for size in (1, 10, 100) for ranks in (2, 4)),
    *("ddp.comm", "ddp.compute", "world.one", "fault.worker", "fault.server"),
    *("ps.rpc", "ps.memcpy", "ps.tensorflow", "ps.sparse", "straggler.async", "straggler.gossip"),
    *("gpu.world.one", "gpu.ps", "gpu.save"),
}

FRAMEWORKS = {f"fw.hvd.allreduce.{size}mb" for size in (1, 10, 100)}

FAKES = Catalogue(
    "bench",
    {
        "fast": f"{__name__}:measured",
        "fast.ratio": f"{__name__}:measured",
        "hot": f"{__name__}:unmeasurable",
    },
)


def test_every_promised_figure_has_a_name() -> None:
    assert set(BENCHES.names()) >= ISSUE_2 | TRAINING | FRAMEWORKS


@pytest.mark.parametrize("name", sorted(ISSUE_2 | TRAINING | FRAMEWORKS))
def test_every_name_leads_to_a_function(name: str) -> None:
    assert callable(BENCHES.load(name))


def test_a_beginning_chooses_all_that_begin_so() -> None:
    assert choose(["launch"]) == ["launch.command", "launch.pytorch"]
    assert {name.partition(".")[0] for name in choose(["fw.hvd"])} == {"fw"}
    assert choose(["scale.b", "imp"]) == ["import", "scale.beat"]


def test_no_name_chooses_everything_but_what_needs_a_card() -> None:
    assert choose([]) == [name for name in BENCHES.names() if not name.startswith("gpu.")]
    assert choose(["gpu.ps"]) == ["gpu.ps"]


def test_a_group_chooses_all_that_belong_to_it() -> None:
    assert {name.partition(".")[0] for name in choose(["fw"])} == {"env", "fw"}
    assert {*choose(["train"]), "gpu.world.one", "gpu.ps", "gpu.save"} == TRAINING | {"fault.worker.lost"}


def test_a_name_given_twice_is_measured_once() -> None:
    assert choose(["list", "list.api"]) == ["list.api", "list.cli"]
    assert list(group(["list.api", "list.cli"]).values()) == [["list.api", "list.cli"]]


@pytest.mark.parametrize(("wrong", "near"), [("lunch", "launch"), ("dain", "drain"), ("logs.sip", "logs.ship")])
def test_an_unknown_name_answers_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(UnknownName) as error:
        main([wrong])
    assert error.value.facts["nearest"] == near
    assert repr(near) in error.value.message


def test_json_is_one_line_per_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fast"], as_json=True, benches=FAKES) == 0
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first == {"bench": "fast", "value": 12.35, "unit": "ms", "target": "< 20 ms", "peer": None, "ok": True}
    assert second["peer"] == "turtle 10 ms"
    assert second["unit"] == "×"


def test_a_missed_target_is_said_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fast.ratio"], benches=FAKES) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == ["fast.ratio", "1.2", "×"]
    assert " miss " in line


def test_figures_that_were_not_asked_for_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fast.ratio"], as_json=True, benches=FAKES)
    assert [json.loads(line)["bench"] for line in capsys.readouterr().out.splitlines()] == ["fast.ratio"]


def test_what_cannot_be_measured_does_not_keep_the_rest_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hot", "fast"], as_json=True, benches=FAKES) == 1
    said = capsys.readouterr()
    assert "hot: the machine is on fire" in said.err
    assert len(said.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("sign", "met", "missed"), [("<", 0.9, 1.0), ("≤", 1.0, 1.1), ("≥", 1.0, 0.9)], ids=["below", "at most", "at least"]
)
def test_a_target_knows_when_it_is_met(sign: str, met: float, missed: float) -> None:
    target = Target(sign, 1.0, "×")
    assert target.met(met)
    assert not target.met(missed)


def test_the_import_is_measured_and_light(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import"], as_json=True) == 0
    figure = json.loads(capsys.readouterr().out)
    assert figure["bench"] == "import"
    assert figure["unit"] == "ms"
    assert figure["value"] > 0
