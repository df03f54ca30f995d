"""Plans: slots, totals, and keys that are refused by name because nothing serves them yet."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import NotServed, UnknownName
from shoal.job.fields import Resources
from shoal.job.nodes import Berth, placement_from_json, placement_to_json
from shoal.job.plan import Served, make_plan
from shoal.job.spec import parse


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"framework": "mxnet"}, "framework"),
        ({"engine": "slurm"}, "engine"),
        ({"inputs": {"d": "dataset://digits@v1"}}, "inputs"),
        ({"outputs": "job://x/y"}, "outputs"),
    ],
)
def test_a_key_that_nothing_serves_yet_is_refused_by_name(raw: dict[str, Any], key: str) -> None:
    with pytest.raises(NotServed) as refused:
        make_plan(parse({"script": "a.py", **raw}), Served())
    assert refused.value.facts["key"] == key and str(refused.value).startswith(key)


def test_slots_carry_their_roles_resources_and_what_may_be_left_out() -> None:
    spec = parse({"script": "a.py", "workers": "1..3", "servers": 1, "resources": {"cpu": 0.5}})
    plan = make_plan(spec, Served())
    assert [(s.role, s.index, s.needed) for s in plan.slots] == [
        ("worker", 0, True), ("worker", 1, False), ("worker", 2, False), ("server", 0, True),
    ]  # fmt: skip
    assert plan.totals()["cpu"] == 2.0


def test_unset_cpu_is_said_in_the_plan() -> None:
    assert "share the node's cores" in make_plan(parse({"script": "a.py"}), Served()).notes[0]


def test_a_named_size_becomes_resources_and_a_wrong_one_offers_the_nearest() -> None:
    served = Served(sizes={"small": Resources(cpu=1), "large": Resources(cpu=8)})
    assert make_plan(parse({"script": "a.py", "size": "large"}), served).slots[0].resources.cpu == 8
    with pytest.raises(UnknownName, match="did you mean 'small'"):
        make_plan(parse({"script": "a.py", "size": "smal"}), served)


def test_a_placement_survives_its_json() -> None:
    plan = make_plan(parse({"script": "a.py", "workers": 2, "resources": {"cpu": 0.25, "gpu": 1}}), Served())
    placement = tuple(Berth(slot, "n0", (index,)) for index, slot in enumerate(plan.slots))
    assert placement_from_json(placement_to_json(placement)) == placement
