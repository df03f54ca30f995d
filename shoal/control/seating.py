"""From a placement to processes: who the members are, what each shepherd is told, and the roster once all joined."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shoal import environments
from shoal.contract import GONE, Member, Roster, Seat, Task, gang_secret
from shoal.control.parts import Parts
from shoal.errors import StartFailed
from shoal.frameworks import NATIVE
from shoal.job.life import JobRecord
from shoal.job.nodes import Placement
from shoal.job.spec import JobSpec
from shoal.launch import LAUNCHERS
from shoal.launch.api import Launcher
from shoal.store import Attempt, RankRow, Shepherd

MemberRow = tuple[str, str, int, int, str, int]  # name, role, index, slot, node, local: a member before anything runs


def launcher_of(record: JobRecord) -> Launcher:
    launcher: Launcher = LAUNCHERS.load(record.spec.kind)()
    return launcher


def members_of(record: JobRecord, placement: Placement) -> list[MemberRow]:
    """Every process of the gang, numbered within its role in the order of the slots."""
    launcher = launcher_of(record)
    roles = {role.name: role for role in record.spec.expand()}
    per_slot = {name: launcher.processes_per_slot(role) for name, role in roles.items()}
    next_index: dict[str, int] = defaultdict(int)
    on_node: dict[tuple[str, str], int] = defaultdict(int)
    members: list[MemberRow] = []
    for berth in sorted(placement, key=lambda berth: (berth.slot.role, berth.slot.index)):
        role = berth.slot.role
        for _ in range(per_slot[role]):
            index, local = next_index[role], on_node[role, berth.node]
            members.append((f"{role}-{index}", role, index, berth.slot.index, berth.node, local))
            next_index[role] += 1
            on_node[role, berth.node] += 1
    return members


def tasks_of(parts: Parts, record: JobRecord, placement: Placement) -> tuple[Task, ...]:
    """What each node's shepherd is told: the same for the same attempt, so that a repeated start changes nothing."""
    launcher = launcher_of(record)
    seats: dict[str, list[Seat]] = defaultdict(list)
    for name, role, index, _, node, _ in members_of(record, placement):
        seats[node].append(Seat(name, role, list(launcher.ports(record.spec, role, index))))
    addresses = {node.name: node.address for node in parts.nodes_of(record.spec.engine)}
    missing = sorted(seats.keys() - addresses.keys())
    if missing:
        raise StartFailed(f"there is no node {missing[0]!r} any more; was the server started with other nodes?")
    secret = gang_secret(parts.store.server_secret(), record.key)
    return tuple(
        Task(
            server=parts.url,
            fingerprint=parts.fingerprint,
            key=record.key,
            secret=secret,
            node=node,
            host=addresses[node],
            folder=str(parts.home.gangs / record.key),
            work=record.in_place or str(parts.home.work / record.id),
            seats=seats[node],
            log_limit=record.spec.log_limit,
            note=str(parts.home.public_note) if parts.engine_of(record.spec.engine).can.shared_folder else None,
        )
        for node in sorted(seats)
    )


def environment_of(parts: Parts, spec: JobSpec) -> dict[str, Any] | None:
    """What the node is told of the job's environment; None for one that names none."""
    if spec.environment is None:
        return None
    settings = {name: value for name, value in spec.env.items() if name.startswith("PIP_")}
    found = environments.read(spec.environment)
    return replace(found, settings=settings, room=parts.environments_room, oldest=_oldest_python(spec)).to_dict()


def _oldest_python(spec: JobSpec) -> str:
    """The first version in which what Shoal brings along runs; none for who wants nothing of it."""
    hands_off = spec.strategy == NATIVE and not any(role.ours and not role.command for role in spec.expand())
    return "" if hands_off else spec.row.python


def programs_of(record: JobRecord) -> tuple[str, ...]:
    """The absolute paths among what the job's processes run: a sandbox must show them to it."""
    spec = record.spec
    named = [spec.environment, *(spec.command or ())[:1]]
    named += [role.command[0] for role in spec.expand() if role.command]
    return tuple(dict.fromkeys(path for path in named if path is not None and path.startswith("/")))


def roster_of(attempt: Attempt, ranks: Iterable[RankRow], shepherds: Iterable[Shepherd]) -> Roster:
    """The roster as it stands: members with the addresses and ports their shepherds announced."""
    announced = {shepherd.node: shepherd for shepherd in shepherds}
    members = [
        Member(
            name=rank.name,
            role=rank.role,
            index=rank.index,
            node=rank.node,
            address=announced[rank.node].address,
            ports=announced[rank.node].ports.get(rank.name, {}),
            local=rank.local,
            slot=rank.slot,
            state=GONE if rank.state == "gone" else "up",
        )
        for rank in ranks
    ]
    return Roster(attempt.roster_version, attempt.key, members)
