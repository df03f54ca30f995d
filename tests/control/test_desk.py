"""What people ask for: addresses that lead nowhere are refused by every door, before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import BadSpec
from tests.control.conftest import ANN, World


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"outputs": "pool://team/models"}, "outputs: there is no pool 'team' for you"),
        ({"outputs": "pool://me/a//b"}, "outputs: the folder cannot contain 'a//b'"),
        ({"inputs": {"set": "pool://team/set"}}, "inputs.set: there is no pool 'team' for you"),
        ({"inputs": {"set": "pool://me/set"}}, "inputs.set: pool://me/set holds nothing"),
        ({"inputs": {"set": "job://nobody/set"}}, "inputs.set: there is no job 'nobody' for you"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_by_its_key(world: World, raw: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSpec) as planned:
        world.desk.plan(ANN, {"command": ["true"], **raw})
    with pytest.raises(BadSpec) as submitted:
        world.submit(**raw)
    assert planned.value.message == submitted.value.message
    assert planned.value.message.startswith(message)
    assert world.parts.store.active() == () and world.parts.store.queue(0, 10) == ()
