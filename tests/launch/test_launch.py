import gc

import pytest

from shoal.contract import Member, Roster
from shoal.errors import UnknownName
from shoal.job.fields import Resources
from shoal.job.nodes import Berth
from shoal.job.plan import Slot
from shoal.launch import LAUNCHERS, Place, environ, launcher
from shoal.launch import peers as counted


def test_every_name_in_the_catalogue_is_the_launchers_own() -> None:
    assert {launcher(name).name for name in LAUNCHERS.names()} == set(LAUNCHERS.names())


def test_a_wrong_name_answers_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'pytorch'"):
        launcher("pytorhc")


def test_a_place_knows_its_slots_gpus_and_those_of_its_role_on_the_node() -> None:
    def berth(role: str, index: int, node: str, *gpus: int) -> Berth:
        return Berth(Slot(role, index, Resources(gpu=len(gpus))), node, gpus)

    placement = (
        berth("worker", 1, "a", 3, 4),
        berth("worker", 0, "a", 0, 1),
        berth("server", 0, "a", 2),
        berth("worker", 2, "b", 0, 1),
    )
    place = Place.at(placement, "worker", 1, job="j", attempt=1)
    assert (place.node, place.gpus, place.node_gpus) == ("a", (3, 4), (0, 1, 3, 4))


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--job_name={role}", "--job_name=worker"),
        ("{index}/{size}", "1/2"),
        ("--port={port}", "--port=41"),
        ("--ps={server_hosts}", "--ps=10.0.0.1:50"),
        ("{worker_hosts}", "10.0.0.1:40,[fd00::2]:41"),
        ("{cluster}", '{"worker":["10.0.0.1:40","[fd00::2]:41"],"server":["10.0.0.1:50"]}'),
        ("{address} {port}", "fd00::2 41"),
        ("{first_host} {first_address} {first_port}", "10.0.0.1:40 10.0.0.1 40"),
        ("{{rank}}", "{rank}"),
        ('{"lr": {"rank": 1}}', '{"lr": {"rank": 1}}'),
        ("{epoch}", "{epoch}"),
    ],
)
def test_arguments_may_name_what_the_roster_knows(word: str, meant: str) -> None:
    members = [
        Member("worker-0", "worker", 0, "a", "10.0.0.1", {"main": 40}),
        Member("worker-1", "worker", 1, "b", "fd00::2", {"main": 41}),
        Member("server-0", "server", 0, "a", "10.0.0.1", {"main": 50}),
    ]
    assert environ.filled([word, "plain"], Roster(1, "j-1", members), members[1]) == [meant, "plain"]


def test_a_roster_is_counted_once_and_forgotten_with_it() -> None:
    roster = Roster(1, "j-1", [Member("worker-0", "worker", 0, "n", "127.0.0.1", {})])
    known = len(counted._known)
    assert counted.peers(roster) is counted.peers(roster)
    del roster
    gc.collect()
    assert len(counted._known) <= known
