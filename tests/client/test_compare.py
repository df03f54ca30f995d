from pathlib import Path

import pytest

from shoal.client.compare import Source, bandwidth, read_profile, remember, with_suggestion
from shoal.errors import BadSpec
from shoal.home import Home
from shoal.job.compared import Course, Mark, compare
from shoal.job.suggest import Machines, Profile, suggest


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "train.py").write_text("")
    return Source({"script": "train.py", "workers": 2, "servers": 2, "strategy": "gossip"}, base=tmp_path)


def test_each_strategy_gets_the_servers_it_can_use(source: Source) -> None:
    assert [role.name for role in source.under("allreduce").spec.expand()] == ["worker"]
    assert {role.name: role.high for role in source.under("ps-async").spec.expand()} == {"worker": 2, "server": 2}


def test_the_job_files_own_strategy_gives_way(source: Source) -> None:
    assert source.under("local-sgd:every=4").spec.strategy == "local-sgd:every=4"
    assert source.under(None).spec.strategy is None


def test_a_strategy_that_is_not_there_is_refused_before_anything_runs(source: Source) -> None:
    with pytest.raises(BadSpec, match="did you mean 'ps-async'"):
        source.under("ps-asinc")


def course(name: str, seconds: float) -> Course:
    return Course(name, tuple(Mark(seconds * at, at, at, at, {"loss": 1.0 / at}) for at in range(1, 9)))


def test_it_remembers_how_often_the_suggestion_was_right(tmp_path: Path) -> None:
    home = Home(tmp_path)
    found = compare([course("allreduce", 1.0), course("ps-async", 2.0)])
    right = with_suggestion(found, suggest(Profile(0.5, 4_000), Machines(4, 5e9)))
    assert (right.suggested, remember(home, "train.py", right)) == ("allreduce", (1, 1))
    wrong = compare([course("ps-async", 1.0), course("allreduce", 2.0)])
    again = with_suggestion(wrong, suggest(Profile(0.5, 4_000), Machines(4, 5e9)))
    assert remember(home, "train.py", again) == (1, 2)


def test_a_comparison_without_a_suggestion_is_not_counted(tmp_path: Path) -> None:
    assert remember(Home(tmp_path), "train.py", compare([course("allreduce", 1.0)])) == (0, 0)


def test_the_suggestion_is_of_those_that_were_run() -> None:
    found = compare([course("ps-async", 1.0), course("gossip", 2.0)])
    assert with_suggestion(found, suggest(Profile(0.5, 4_000), Machines(4, 5e9))).suggested in ("ps-async", "gossip")


def test_a_profile_is_read_with_what_it_has() -> None:
    profile = read_profile({"compute_seconds": 0.01, "parameter_bytes": 100, "touched": 0.5})
    assert (profile.compute, profile.parameter_bytes, profile.touched, profile.slow) == (0.01, 100, 0.5, 0.0)


def test_memory_moves_at_all() -> None:
    assert bandwidth() > 1e7
