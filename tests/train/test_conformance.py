"""Every strategy passes the conformance suite, in a gang of two real processes (and a server where it needs one)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import BadSpec
from shoal.strategy import STRATEGIES, parse
from shoal.train import conformance
from tests.train.support import Result, run_world

SCRIPT = "import sys; from shoal.train.conformance import main; sys.exit(main(sys.argv[1:]))"
NAMES = sorted(STRATEGIES)
# Rounds as short as a check is, and gradients that are not numbers skipped.
OPTIONS = {"local-sgd": "every=2,nan=skip", "easgd": "every=2,nan=skip", "native": ""}


def asked(name: str) -> str:
    return f"{name}:{OPTIONS.get(name, 'nan=skip')}".rstrip(":")


def passed(result: Result) -> list[set[str]]:
    return [{line[3:] for line in result.lines(name, "ok ")} for name in ("worker-0", "worker-1")]


@pytest.mark.real
@pytest.mark.timeout(300)  # two launches; starting interpreters on a busy machine is what takes long
@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_keeps_what_every_strategy_must(name: str, tmp_path: Path) -> None:
    strategy = asked(name)
    first = run_world(SCRIPT, strategy=strategy, folder=tmp_path, args=["first"], timeout=150).check()
    expected = {check.__name__ for check in conformance.checks(name, STRATEGIES[name].family)}
    assert all({*expected, "second"} <= found for found in passed(first))
    again = run_world(SCRIPT, strategy=strategy, folder=tmp_path, args=["again"], timeout=120).check()
    assert all({"resumes", "leaves"} <= found for found in passed(again))


@pytest.mark.parametrize("name", [name for name in NAMES if STRATEGIES[name].options])
def test_a_strategy_refuses_an_option_it_does_not_have(name: str) -> None:
    with pytest.raises(BadSpec, match=f"option of strategy {name} is called 'nann'; did you mean 'nan'"):
        parse(f"{name}:nann=warn")
    with pytest.raises(BadSpec, match="nan='worn' must be warn | skip | stop.*did you mean 'warn'"):
        parse(f"{name}:nan=worn")
    with pytest.raises(BadSpec, match="given twice"):
        parse(f"{name}:nan=warn,nan=skip")
