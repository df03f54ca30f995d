"""What every launcher must keep: a suite to subclass under pytest, with a fixture `launcher` that gives one.

class TestMine(LauncherContract):
    @pytest.fixture
    def launcher(self): return Mine()
"""

from __future__ import annotations

from typing import Any

from shoal import contract
from shoal.contract import Member, Process, Roster
from shoal.frameworks import framework
from shoal.job.nodes import Berth, Placement
from shoal.job.plan import Slot
from shoal.job.roles import Role
from shoal.job.spec import JobSpec, parse
from shoal.launch.api import Launcher, Place


class LauncherContract:
    """Two workers with two GPUs on two nodes, and a server where the framework has them, seen through any launcher."""

    strategy: str | None = None  # the framework's usual one

    def job(self, launcher: Launcher) -> JobSpec:
        keys: dict[str, Any] = {
            "framework": launcher.name,
            "script": "train.py",
            "args": ["--epochs", "5"],
            "strategy": self.strategy,
            "workers": 2,
            "resources": {"cpu": 2, "memory": "1GiB", "gpu": 2},
            "env": {"COLOUR": "blue", "CUDA_VISIBLE_DEVICES": "7", "NUMBER": "{index} of {size} in {odd}"},
        }
        row = framework(launcher.name)
        has_servers = row.any_role or row.pair(self.strategy).part("server") is not None
        return parse({**keys, "servers": 1} if has_servers else keys)

    def test_a_slot_holds_at_least_one_process(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        assert all(launcher.processes_per_slot(role) >= 1 for role in spec.expand())

    def test_the_same_question_has_the_same_answer(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        assert render(launcher, spec) == render(launcher, spec)

    def test_every_rank_knows_who_and_where_it_is(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        for process in render(launcher, spec).values():
            role, _, index = process.name.rpartition("-")
            assert process.env[contract.MEMBER] == process.name
            assert (process.env[contract.ROLE], process.env[contract.INDEX]) == (role, index)
            assert {contract.GANG, contract.JOB, contract.ATTEMPT, contract.NODE} <= process.env.keys()
            assert process.env[contract.ROSTER].startswith("@")

    def test_every_reserved_port_is_in_the_environment(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        for process in render(launcher, spec).values():
            role, _, index = process.name.rpartition("-")
            names = {contract.PORT_PREFIX + name.upper() for name in launcher.ports(spec, role, int(index))}
            assert names == {name for name in process.env if name.startswith(contract.PORT_PREFIX)}

    def test_only_workers_have_a_rank_and_no_two_the_same(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        processes = render(launcher, spec).values()
        ranks = [p.env[contract.RANK] for p in processes if p.env[contract.ROLE] == "worker"]
        assert ranks == [str(number) for number in range(len(ranks))]
        assert not any(contract.RANK in p.env for p in processes if p.env[contract.ROLE] != "worker")

    def test_the_users_variables_arrive_but_never_change_the_gpus(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        for process in render(launcher, spec).values():
            assert process.env["COLOUR"] == "blue"
            assert process.env["CUDA_VISIBLE_DEVICES"] != "7"

    def test_what_stands_for_the_roster_in_variables_is_filled_in(self, launcher: Launcher) -> None:
        processes = render(launcher, self.job(launcher)).values()
        workers = sum(process.env[contract.ROLE] == "worker" for process in processes)
        for process in processes:
            assert process.env["NUMBER"] == f"{process.env[contract.INDEX]} of {workers} in {{odd}}"

    def test_the_processes_of_a_slot_never_get_more_than_the_slot(self, launcher: Launcher) -> None:
        spec = self.job(launcher)
        for process in render(launcher, spec).values():
            role = next(role for role in spec.expand() if role.name == process.env[contract.ROLE])
            count = launcher.processes_per_slot(role)
            asked = role.resources
            assert (process.memory is None) == (asked.memory is None)
            assert (process.memory or 0) * count <= (asked.memory or 0) <= 1 << 30
            assert (process.cpu or 0.0) * count <= (asked.cpu or 0.0) <= 2


def render(
    launcher: Launcher, spec: JobSpec, nodes: int = 2, address: str = "10.0.0.{}", attempt: int = 1
) -> dict[str, Process]:
    """Every process of a job that was placed slot by slot on `nodes` in turn, ports counted from 40000."""
    roles = spec.expand()
    placement = _place(roles, nodes)
    roster = _roster(launcher, f"j1-{attempt}", spec, placement, address)
    return {
        member.name: launcher.process(
            spec,
            next(role for role in roles if role.name == member.role),
            roster,
            member,
            Place.at(placement, member.role, member.slot, job="j1", attempt=attempt),
        )
        for member in roster.members
    }


def _place(roles: tuple[Role, ...], nodes: int) -> Placement:
    berths = []
    used = dict.fromkeys(range(nodes), 0)
    for role in roles:
        for index in range(role.high):
            node, count = index * nodes // role.high, role.resources.gpu
            gpus = tuple(range(used[node], used[node] + count))
            used[node] += count
            berths.append(Berth(Slot(role.name, index, role.resources), f"node-{node}", gpus))
    return tuple(berths)


def _roster(launcher: Launcher, key: str, spec: JobSpec, placement: Placement, address: str) -> Roster:
    roles = spec.expand()
    per_slot = {role.name: launcher.processes_per_slot(role) for role in roles}
    members: list[Member] = []
    port = 40000
    for berth in placement:
        for _ in range(per_slot[berth.slot.role]):
            index = sum(member.role == berth.slot.role for member in members)
            local = sum(member.role == berth.slot.role and member.node == berth.node for member in members)
            names = launcher.ports(spec, berth.slot.role, index)
            ports = {name: port + number for number, name in enumerate(names)}
            port += len(names)
            host = address.format(int(berth.node.rpartition("-")[2]) + 1)
            name = f"{berth.slot.role}-{index}"
            members.append(Member(name, berth.slot.role, index, berth.node, host, ports, local, berth.slot.index))
    return Roster(1, key, members)
