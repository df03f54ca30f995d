"""What people ask for: addresses that lead nowhere are refused by every door, before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.control import User
from shoal.errors import BadSpec, NotFound
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


def test_a_removed_job_leaves_nothing_behind_and_dies_last_in_the_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.submit()
    world.desk.stop(ANN, job.id)
    work = world.parts.home.work
    (work / job.id).mkdir()
    (work / f".{job.id}.complete").touch()

    def die(*_: Any) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(world.parts.store, "delete_job", die)
        with pytest.raises(OSError, match="killed here"):
            world.desk.delete(ANN, job.id)
    assert world.desk.find(ANN, job.id)
    world.desk.delete(ANN, job.id)
    assert list(work.iterdir()) == []
    with pytest.raises(NotFound):
        world.desk.find(ANN, job.id)


def test_nobody_runs_in_the_servers_own_home(world: World) -> None:
    raw = {"command": ["true"], "in_place": True}
    with pytest.raises(BadSpec, match="lies in SHOAL_HOME"):
        world.desk.submit(ANN, raw, None, str(world.parts.home.logs))


def test_an_administrator_submits_for_those_who_exist(world: World) -> None:
    with pytest.raises(NotFound, match="no user 'nobody'"):
        world.desk.submit(User("root", admin=True), {"command": ["true"], "owner": "nobody"}, None, None)
