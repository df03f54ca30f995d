import pytest

from shoal.contract import Process
from shoal.job.spec import parse
from shoal.launch import Launcher
from shoal.launch.conformance import LauncherContract, render
from shoal.launch.mpi import Mpi

from .golden import check


class TestMpi(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return Mpi()


def rendered(address: str = "10.0.0.{}", **spec: object) -> dict[str, Process]:
    return render(Mpi(), parse({"framework": "mpi", "command": ["./solve", "--n={size}"], **spec}), 2, address)


def test_four_ranks_on_two_nodes_are_as_in_the_golden_file() -> None:
    check("mpi", rendered(workers=4, resources={"cpu": 1, "memory": "1GiB"}))


def test_the_program_is_run_by_the_adapter_with_what_the_roster_knows_filled_in() -> None:
    assert rendered(workers=2)["worker-1"].argv[1:] == ["-m", "shoal.adapters.mpi", "rank", "./solve", "--n=2"]


def test_the_loopback_interface_is_named_only_when_nobody_is_elsewhere() -> None:
    assert rendered("127.0.0.{}", workers=2)["worker-0"].env["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert not any("tcp_if_include" in name for name in rendered(workers=2)["worker-0"].env)


def test_a_lost_rank_fails_the_attempt() -> None:
    (role,) = parse({"framework": "mpi", "command": ["x"], "workers": 2}).expand()
    assert (role.leads, role.on_lost) == ("all", "fail")
