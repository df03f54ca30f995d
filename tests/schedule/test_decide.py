"""Who starts where: gangs whole, nothing over-committed, nobody overtaken for ever."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import DoesNotFit
from shoal.job.nodes import Gpu, Node, Placement
from shoal.job.plan import Served, Slot, make_plan
from shoal.job.spec import parse
from shoal.schedule import Waiting, check_possible, decide
from shoal.schedule.fit import milli

GIB = 1 << 30


def node(name: str = "a", cpus: float = 2, memory: int = 8 * GIB, gpus: int = 0, **more: Any) -> Node:
    return Node(name, "127.0.0.1", cpus, memory, tuple(Gpu(i, "h200") for i in range(gpus)), **more)


def slots(**raw: Any) -> tuple[Slot, ...]:
    return make_plan(parse({"command": ["x"], **raw}), Served()).slots


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    decision = decide([Waiting("j", slots(workers=3, resources={"cpu": 1}))], [node()], [])
    assert decision.starts == () and decision.why["j"].rule == "impossible"


def test_a_job_that_waits_for_room_holds_back_those_behind_it() -> None:
    running = decide([Waiting("r", slots(resources={"cpu": 1}))], [node()], []).starts[0].placement
    queue = [Waiting("big", slots(resources={"cpu": 2})), Waiting("small", slots(resources={"cpu": 0.5}))]
    decision = decide(queue, [node()], [running])
    assert decision.starts == ()
    assert (decision.why["big"].rule, decision.why["small"].behind) == ("no_room", "big")


def test_a_job_that_can_never_start_holds_back_nobody() -> None:
    queue = [Waiting("never", slots(resources={"gpu": 1})), Waiting("small", slots(resources={"cpu": 0.5}))]
    decision = decide(queue, [node()], [])
    assert [start.job for start in decision.starts] == ["small"]
    assert "0 GPUs" in decision.why["never"].message


def test_four_workers_and_two_servers_that_ask_for_nothing_run_on_two_cores() -> None:
    assert decide([Waiting("j", slots(workers=4, servers=2))], [node()], []).starts


def test_sharing_is_bounded_but_a_large_gang_may_have_the_empty_node() -> None:
    shared = node(shares=4)
    assert decide([Waiting("big", slots(workers=6))], [shared], []).starts
    first = decide([Waiting("one", slots(workers=3))], [shared], []).starts[0].placement
    decision = decide([Waiting("two", slots(workers=3))], [shared], [first])
    assert decision.why["two"].rule == "no_room"


def test_servers_sit_beside_workers_unless_placed_apart() -> None:
    nodes = [node("a"), node("b")]
    beside = decide([Waiting("j", slots(workers=1, servers=1))], nodes, []).starts[0].placement
    assert {berth.node for berth in beside} == {"a"}
    roles = {"worker": {"count": 1}, "server": {"count": 1, "apart": True}}
    apart = decide([Waiting("j", slots(roles=roles))], nodes, []).starts[0].placement
    assert {berth.node for berth in apart} == {"a", "b"}


def test_gpus_are_given_by_index_and_type_and_never_twice() -> None:
    gpus = [node(gpus=4)]
    first = decide([Waiting("a", slots(workers=2, resources={"gpu": 1}))], gpus, []).starts[0].placement
    second = decide([Waiting("b", slots(resources={"gpu": 2, "gpu_type": "h200"}))], gpus, [first]).starts[0].placement
    assert [b.gpus for b in first] == [(0,), (1,)] and [b.gpus for b in second] == [(2, 3)]
    assert decide([Waiting("c", slots(resources={"gpu": 1, "gpu_type": "a100"}))], gpus, []).starts == ()


def test_labels_choose_the_node() -> None:
    nodes = [node("a"), node("b", labels={"rack": "r2"})]
    placed = decide([Waiting("j", slots(labels={"rack": "r2"}))], nodes, []).starts[0].placement
    assert [berth.node for berth in placed] == ["b"]


def test_a_range_takes_as_many_as_fit() -> None:
    placed = decide([Waiting("j", slots(workers="1..8", resources={"cpu": 0.5}))], [node()], []).starts[0].placement
    assert len(placed) == 4


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cpu": 64}, "worker asks for 64 CPUs; what exists: a has 2 CPUs"),
        ({"gpu": 1}, "asks for 1 GPUs"),
        ({"memory": "1TiB"}, "1.0 TiB"),
    ],
)
def test_more_than_any_node_has_is_refused_with_what_exists(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(DoesNotFit, match=says):
        check_possible(slots(resources=asked), [node()])


nodes_st = st.lists(
    st.builds(
        node,
        name=st.uuids().map(str),
        cpus=st.sampled_from([0.5, 1, 2, 4]),
        memory=st.integers(1, 8).map(lambda g: g * GIB),
        gpus=st.integers(0, 4),
        shares=st.integers(0, 6),
    ),
    max_size=4,
)
job_st = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([1, 2, 3, "1..4"]),
        "servers": st.integers(0, 2),
        "resources": st.fixed_dictionaries(
            {"gpu": st.integers(0, 2)},
            optional={"cpu": st.sampled_from([0.01, 0.1, 0.5, 1, 3]), "memory": st.sampled_from(["1GiB", "3GiB"])},
        ),
    }
)


@given(nodes_st, st.lists(job_st, max_size=8))
def test_whatever_is_asked_gangs_are_whole_and_nothing_is_over_committed(
    nodes: list[Node], jobs: list[dict[str, Any]]
) -> None:
    queue = [Waiting(f"j{i}", slots(**job)) for i, job in enumerate(jobs)]
    held: list[Placement] = []
    for _ in range(3):
        decision = decide(queue, nodes, held)
        assert decision == decide(queue, nodes, held), "the same input gives the same decision"
        started = {start.job: start.placement for start in decision.starts}
        for waiting in queue:
            assert (waiting.job in started) != (waiting.job in decision.why)
            if waiting.job in started:
                seated = {(b.slot.role, b.slot.index) for b in started[waiting.job]}
                assert {(s.role, s.index) for s in waiting.slots if s.needed} <= seated
        held += list(started.values())
        queue = [waiting for waiting in queue if waiting.job not in started]
    _check_capacity(nodes, held)


def _check_capacity(nodes: list[Node], held: list[Placement]) -> None:
    cpu: dict[str, int] = defaultdict(int)
    memory: dict[str, int] = defaultdict(int)
    gpus: dict[str, list[int]] = defaultdict(list)
    for placement in held:
        for berth in placement:
            cpu[berth.node] += milli(berth.slot.resources.cpu or 0)
            memory[berth.node] += berth.slot.resources.memory or 0
            gpus[berth.node] += berth.gpus
            assert len(berth.gpus) == berth.slot.resources.gpu
    for one in nodes:
        assert cpu[one.name] <= milli(one.cpus) and memory[one.name] <= one.memory
        assert len(gpus[one.name]) == len(set(gpus[one.name]))


def test_small_processes_leave_room_for_the_large_of_their_gang() -> None:
    roles = {"worker": {"count": 2, "resources": {"gpu": 1}}, "chief": {"count": 2, "resources": {"gpu": 3}}}
    check_possible(slots(roles=roles), [node("a", gpus=4), node("b", gpus=4)])


def test_what_a_job_waits_for_is_said_without_what_it_does_not_ask_for() -> None:
    running = decide([Waiting("r", slots(resources={"cpu": 2}))], [node()], []).starts[0].placement
    message = decide([Waiting("j", slots(resources={"cpu": 1}))], [node()], [running]).why["j"].message
    assert message.startswith("waits for room: it needs 1 CPUs for 1 process; free now: 0 CPUs")
