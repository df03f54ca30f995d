"""What a strategy means for the roles of a job."""

from typing import Any

import pytest

from shoal.errors import BadSpec
from shoal.job.roles import Role
from shoal.job.spec import parse


def roles(**keys: Any) -> dict[str, Role]:
    return {role.name: role for role in parse({"script": "train.py", **keys}).expand()}


@pytest.mark.parametrize("strategy", ["ps-sync", "ps-async", "ps-softsync:c=2", "ps-ssp:staleness=3", "easgd"])
def test_a_strategy_with_servers_gets_one_when_nobody_says_how_many(strategy: str) -> None:
    assert roles(workers=4, strategy=strategy)["server"].low == 1
    assert roles(workers=4, servers=2, strategy=strategy)["server"].low == 2


@pytest.mark.parametrize("strategy", ["allreduce", "local-sgd", "gossip", "fsdp", "tensor", "pipeline", "native"])
def test_the_others_have_none(strategy: str) -> None:
    assert roles(workers=4, strategy=strategy).keys() == {"worker"}


def test_no_servers_for_a_strategy_that_lives_of_them_is_refused() -> None:
    for asked in ({"servers": 0}, {"roles": {"server": {"count": 0}}}):
        with pytest.raises(BadSpec, match="servers must be at least 1"):
            roles(strategy="ps-sync", **asked)


def test_servers_for_a_strategy_that_has_none_are_refused() -> None:
    with pytest.raises(BadSpec, match="allreduce has no servers"):
        roles(strategy="allreduce", servers=2)
    assert "server" not in roles(strategy="allreduce", servers=0)


def test_hands_off_leaves_servers_to_the_script() -> None:
    assert roles(strategy="native", servers=2)["server"].low == 2


@pytest.mark.parametrize(
    ("strategy", "worker", "server"),
    [("ps-sync", "fail", "restart"), ("ps-async", "continue", "restart"), ("easgd", "continue", "restart")],
)
def test_a_lost_rank_means_what_the_strategy_can_bear(strategy: str, worker: str, server: str) -> None:
    found = roles(workers=2, strategy=strategy)
    assert (found["worker"].on_lost, found["server"].on_lost) == (worker, server)


def test_what_the_job_says_of_a_lost_rank_holds() -> None:
    asked = {"worker": {"count": 2, "on_lost": "fail"}, "server": {"on_lost": "fail"}}
    found = roles(strategy="ps-async", roles=asked)
    assert (found["worker"].on_lost, found["server"].on_lost) == ("fail", "fail")


def test_without_a_strategy_a_lost_rank_fails_the_attempt() -> None:
    assert roles(workers=2)["worker"].on_lost == "fail"


def test_a_wrong_strategy_is_a_fault_of_its_field() -> None:
    with pytest.raises(BadSpec) as refused:
        parse({"script": "train.py", "strategy": "ps-asinc"})
    assert refused.value.problems[0]["field"] == "strategy"
    assert "did you mean 'ps-async'" in refused.value.message


def test_a_copy_on_the_next_server_needs_a_next_server() -> None:
    for asked in ({}, {"servers": 1}):
        with pytest.raises(BadSpec, match="at least 2 servers"):
            roles(strategy="ps-async:replicas=1", **asked)
    assert roles(strategy="ps-async:replicas=1", servers=2)["server"].low == 2
    assert "server" not in roles(strategy="fsdp:replicas=2", workers=4)
