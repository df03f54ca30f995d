import pytest

from shoal.contract import Process
from shoal.errors import BadSpec
from shoal.job.spec import parse
from shoal.launch import Launcher
from shoal.launch.conformance import LauncherContract, render
from shoal.launch.sklearn import Sklearn

from .golden import check


class TestSklearn(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return Sklearn()


def rendered(nodes: int = 2, **spec: object) -> dict[str, Process]:
    job = {"framework": "sklearn", "script": "src/grid.py", "args": ["--cv", "3"], **spec}
    return render(Sklearn(), parse(job), nodes, "10.0.0.{}")


def test_a_chief_and_two_workers_are_as_in_the_golden_file() -> None:
    check("sklearn", rendered(workers=2, resources={"cpu": 2, "memory": "2GiB"}))


def test_the_script_is_the_chiefs_and_the_workers_are_shoals() -> None:
    processes = rendered(workers=2)
    assert processes["chief-0"].argv[1:] == ["-m", "shoal.adapters.sklearn", "src/grid.py", "--cv", "3"]
    assert processes["worker-1"].argv[1:] == ["-m", "shoal.adapters.sklearn", "--worker"]


def test_workers_that_share_a_node_use_one_thread_unless_they_have_cores_or_the_user_says() -> None:
    def threads(nodes: int, **spec: object) -> str | None:
        return rendered(nodes, workers=2, **spec)["worker-0"].env.get("OMP_NUM_THREADS")

    assert threads(1) == "1"
    assert threads(2) is None
    assert threads(1, resources={"cpu": 4}) == "4"
    assert threads(1, env={"OMP_NUM_THREADS": "3"}) == "3"


def test_the_job_ends_with_its_chief_and_a_lost_worker_comes_back() -> None:
    roles = {role.name: role for role in parse({"framework": "sklearn", "script": "x.py", "workers": 3}).expand()}
    assert (roles["chief"].leads, roles["chief"].on_lost) == ("all", "fail")
    assert (roles["worker"].leads, roles["worker"].on_lost, roles["worker"].high) == ("none", "restart", 3)


def test_two_chiefs_and_other_roles_are_refused() -> None:
    with pytest.raises(BadSpec, match=r"roles\.chief"):
        parse({"framework": "sklearn", "script": "x.py", "roles": {"chief": {"count": 2}}})
    with pytest.raises(BadSpec, match=r"roles\.server"):
        parse({"framework": "sklearn", "script": "x.py", "roles": {"server": {"count": 1}}})
    with pytest.raises(BadSpec, match="exchange nothing"):
        parse({"framework": "sklearn", "script": "x.py", "strategy": "allreduce"})
