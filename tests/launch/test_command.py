import pytest

from shoal import contract
from shoal.contract import Member, Process, Roster
from shoal.errors import BadSpec
from shoal.job.spec import parse
from shoal.launch import Launcher, Place
from shoal.launch.command import HOSTS_PREFIX, MOST_HOSTS, Command
from shoal.launch.conformance import LauncherContract, render

from .golden import check


class TestCommand(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return Command()


def rendered(**spec: object) -> dict[str, Process]:
    return render(Command(), parse({"command": ["./serve", "--fast"], **spec}))


def test_a_command_on_two_nodes_is_as_in_the_golden_file() -> None:
    check("command", rendered(workers=2, servers=1))


def test_the_command_runs_as_it_was_given() -> None:
    assert rendered()["worker-0"].argv == ["./serve", "--fast"]


def test_every_process_has_a_port_and_knows_everybodys() -> None:
    processes = rendered(workers=2, servers=1)
    assert [p.env["SHOAL_PORT_MAIN"] for p in processes.values()] == ["40000", "40001", "40002"]
    for process in processes.values():
        assert process.env["SHOAL_HOSTS_WORKER"] == "10.0.0.1:40000,10.0.0.2:40001"
        assert process.env["SHOAL_HOSTS_SERVER"] == "10.0.0.1:40002"


def test_every_process_knows_the_hostfile() -> None:
    assert {p.env["SHOAL_HOSTFILE"] for p in rendered(workers=2).values()} == {"@hostfile"}


def test_each_process_sees_only_the_gpus_of_its_own_slot() -> None:
    processes = render(Command(), parse({"command": ["x"], "workers": 2, "resources": {"gpu": 2}}), nodes=1)
    assert [p.env["CUDA_VISIBLE_DEVICES"] for p in processes.values()] == ["0,1", "2,3"]


def test_a_role_too_large_for_a_variable_is_left_to_the_roster_file() -> None:
    assert HOSTS_PREFIX + "WORKER" in rendered(workers=MOST_HOSTS)["worker-0"].env
    assert HOSTS_PREFIX + "WORKER" not in rendered(workers=MOST_HOSTS + 1)["worker-0"].env


def test_a_role_with_nothing_to_run_is_refused_by_name() -> None:
    spec = parse({"roles": {"worker": {"command": ["x"]}}})
    bare = spec.model_copy(update={"roles": {}}).expand()[0]
    member = Member("worker-0", "worker", 0, "n", "10.0.0.1", {"main": 1})
    with pytest.raises(BadSpec, match="'worker' has nothing to run"):
        Command().process(spec, bare, Roster(1, "k-1", [member]), member, Place("j", 1, "n"))


def test_the_gangs_secret_is_told_when_there_is_one() -> None:
    spec = parse({"command": ["x"]})
    member = Member("worker-0", "worker", 0, "n", "::1", {"main": 1})
    place = Place("j", 1, "n", secret="s3")
    told = Command().process(spec, spec.expand()[0], Roster(1, "j-1", [member]), member, place).env
    assert told[contract.SECRET] == "s3"
    assert told["SHOAL_HOSTS_WORKER"] == "[::1]:1"
