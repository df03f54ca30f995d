"""What a server reads of its environment and of the roster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal import contract
from shoal.contract import Member, Roster
from shoal.errors import BadSpec, UnknownName
from shoal.train.ps.child import threads
from shoal.train.ps.place import Place, lost_workers


def roster_of(servers: int = 2, workers: int = 3) -> Roster:
    members = [Member(f"worker-{one}", "worker", one, "node-0", "10.0.0.1", {"train": 0}) for one in range(workers)]
    members += [
        Member(f"server-{one}", "server", one, f"node-{one}", f"10.0.0.{one + 1}", {"train": 4000 + one})
        for one in range(servers)
    ]
    return Roster(1, "job-1", members)


def told(folder: Path, roster: Roster, **more: str) -> dict[str, str]:
    (folder / "roster.json").write_text(roster.to_json())
    variables = {
        contract.INDEX: "1", contract.ROSTER: str(folder / "roster.json"), contract.SECRET: "s3cret",
        contract.SHARED: str(folder), contract.STRATEGY: "ps-ssp:staleness=2", contract.SIZE: "3",
    }  # fmt: skip
    return {**variables, **more}


def test_a_place_is_read_from_the_environment_and_the_roster(tmp_path: Path) -> None:
    place = Place.read(told(tmp_path, roster_of()))
    assert (place.name, place.host, place.port, place.node, place.workers) == (
        "server-1",
        "10.0.0.2",
        4001,
        "node-1",
        3,
    )
    assert place.strategy.options["staleness"] == 2
    assert place.next is not None and place.next.name == "server-0"
    assert Place.read(told(tmp_path, roster_of(), SHOAL_PORT_TRAIN="5000")).port == 5000


def test_the_only_server_has_no_next(tmp_path: Path) -> None:
    assert Place.read(told(tmp_path, roster_of(1), SHOAL_INDEX="0")).next is None


@pytest.mark.parametrize("name", [contract.INDEX, contract.ROSTER, contract.SECRET, contract.SHARED, contract.STRATEGY])
def test_what_is_missing_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadSpec, match=name):
        Place.read({**told(tmp_path, roster_of()), name: ""})


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="2 servers"):
        Place.read(told(tmp_path, roster_of(), SHOAL_INDEX="2"))
    with pytest.raises(UnknownName, match="ps-sync"):
        Place.read(told(tmp_path, roster_of(), SHOAL_STRATEGY="ps-synk"))


def test_the_roster_tells_who_is_gone(tmp_path: Path) -> None:
    roster, path = roster_of(), tmp_path / "roster.json"
    members = [replace(one, state="gone") if one.name in ("worker-2", "server-0") else one for one in roster.members]
    path.write_text(replace(roster, members=members).to_json())
    assert lost_workers(path) == {2}
    path.write_text('{"version": 2, "mem')
    assert lost_workers(path) == frozenset(), "it is being rewritten"
    assert lost_workers(tmp_path / "nothing") == frozenset()


def test_processes_of_a_node_share_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    first, second = (Place.read(told(tmp_path, roster_of(), SHOAL_INDEX=str(one))) for one in range(2))
    assert threads(first) == 2, "three workers and a server"
    assert threads(second) == 8
