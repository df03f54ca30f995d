"""What every rank is told, whichever the framework: who it is, where its things are, and its share of the slot.

Three layers, later ones win: defaults the user may change, the user's own variables, and facts nobody may change (a
rank that lied about its number would hang the gang; a GPU that was not given belongs to someone else).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from shoal import contract, environments
from shoal.contract import Member, Process, Roster
from shoal.errors import BadSpec
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch.api import Place
from shoal.launch.peers import WORKER, peers

# The shepherd puts its own paths in their place: only it knows the node's folders.
ROSTER_PATH = "@roster"
HOSTFILE_PATH = "@hostfile"
SHARED_PATH = "@shared"
INPUTS_PATH = "@inputs"
OUTPUTS_PATH = "@outputs"
LIBRARY_PATH = "@library"

# Python holds back what it prints into a pipe; a log must be live. And a native crash is to show where it happened.
DEFAULTS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}

_BRACED = re.compile(r"{\w+}")  # what may stand for something


def make(
    argv: Sequence[str],
    role: Role,
    roster: Roster,
    member: Member,
    *,
    defaults: Mapping[str, str],
    facts: Mapping[str, str],
    processes: int,
    words: Mapping[str, str] = MappingProxyType({}),
    session: bool = False,
) -> Process:
    """One rank. What stands for the roster in the user's variables is filled in, as in arguments. The slot's CPU and
    memory are shared out evenly among its `processes`, memory rounded down: together they never get more than the slot
    was given."""
    asked = role.resources
    own = dict(zip(role.env, filled(list(role.env.values()), roster, member, words), strict=True))
    return Process(
        name=member.name,
        argv=list(argv),
        env={**DEFAULTS, **defaults, **own, **facts},
        memory=None if asked.memory is None else asked.memory // processes,
        cpu=None if asked.cpu is None else asked.cpu / processes,
        cpu_quota=asked.cpu_quota,
        session=session,
    )


def argv(
    spec: JobSpec,
    role: Role,
    roster: Roster,
    member: Member,
    place: Place,
    *,
    own: Sequence[str] = (),
    words: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The role's own command; in a role of Shoal's the module that `own` names; else the job's script under its
    interpreter, or the job's command. What stands for the roster in them is filled in, with the framework's words for
    the roles."""
    fill = partial(filled, roster=roster, member=member, words=words)
    if role.command:
        return fill(role.command)
    if own and role.ours:
        return [python(spec, place), "-m", *fill(own)]
    if spec.script:
        return [python(spec, place), spec.script, *fill(spec.args)]
    if spec.command:
        return fill(spec.command)
    raise BadSpec(f"role {role.name!r} has nothing to run; give it a command, or the job a script or a command")


def python(spec: JobSpec, place: Place) -> str:
    """The interpreter: the submitter's where no environment is named, a path as it was written, else a placeholder for
    what the node finds or builds."""
    if spec.environment is None:
        return place.python
    return spec.environment if spec.environment.startswith("/") else environments.PYTHON


def filled(
    arguments: Sequence[str], roster: Roster, member: Member, words: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Arguments with `{rank}`, `{size}`, `{role}`, `{index}`, `{address}`, `{port}`, `{first_host}` with its parts,
    `{<role>_hosts}` and `{cluster}` filled in, for programs that take their peers as flags. Other braces stay
    as they are; `{{rank}}` is `{rank}`."""
    if not any(_BRACED.search(one) for one in arguments):
        return list(arguments)
    known = _stand_ins(roster, member, words)
    pattern = re.compile("(?<!{){(%s)}(?!})|{{(%s)}}" % (("|".join(map(re.escape, known)),) * 2))
    return [pattern.sub(lambda found: known[found[1]] if found[1] else f"{{{found[2]}}}", one) for one in arguments]


def _stand_ins(roster: Roster, member: Member, words: Mapping[str, str]) -> dict[str, str]:
    known = peers(roster)
    cluster = {words.get(role, role): list(map(address, who)) for role, who in known.roles.items()}
    hosts = {
        f"{variable_part(name).lower()}_hosts": ",".join(map(address, who))
        for role, who in known.roles.items()
        for name in (role, words.get(role, role))
    }
    first = known.workers[0] if known.workers else None
    texts = {
        "cluster": json.dumps(cluster, separators=(",", ":")),
        "role": words.get(member.role, member.role),
        "address": member.address,
        "first_host": address(first) if first else "",
        "first_address": first.address if first else "",
    }
    numbers = {
        "rank": member.index,
        "index": member.index,
        "size": len(known.workers),
        "port": _first_port(member),
        "first_port": _first_port(first) if first else 0,
    }
    return {**hosts, **texts, **{name: str(number) for name, number in numbers.items()}}


def _first_port(member: Member) -> int:
    return next(iter(member.ports.values()), 0)


def address(member: Member) -> str:
    """Where its peers reach a member: at its first port, when it has one."""
    host = f"[{member.address}]" if ":" in member.address else member.address
    return f"{host}:{next(iter(member.ports.values()))}" if member.ports else host


def facts(spec: JobSpec, roster: Roster, member: Member, place: Place, gpus: Sequence[int]) -> dict[str, str]:
    """The variables every rank has: SHOAL_* and the GPUs it may see."""
    told = {
        contract.GANG: roster.key,
        contract.JOB: place.job,
        contract.ATTEMPT: str(place.attempt),
        contract.ROLE: member.role,
        contract.INDEX: str(member.index),
        contract.SIZE: str(len(peers(roster).workers)),
        contract.MEMBER: member.name,
        contract.NODE: place.node,
        contract.ROSTER: ROSTER_PATH,
        contract.SHARED: SHARED_PATH,
        contract.INPUTS: INPUTS_PATH,
        contract.OUTPUTS: OUTPUTS_PATH,
        **{port_variable(name): str(number) for name, number in member.ports.items()},
        **_visible(gpus),
    }
    if member.role == WORKER:
        told[contract.RANK] = str(member.index)
    if spec.strategy:
        told[contract.STRATEGY] = spec.strategy
    if place.secret:
        told[contract.SECRET] = place.secret
    return told


def library(role: Role, *before: str) -> dict[str, str]:
    """Lets any interpreter find `shoal`, and nothing else of ours, before the user's own paths. Folders in `before`
    come first: below the library, they hold what a framework's jobs find there and no others."""
    own = role.env.get("PYTHONPATH")
    return {"PYTHONPATH": ":".join([*before, LIBRARY_PATH, *([own] if own else [])])}


def loopback(roster: Roster) -> dict[str, str]:
    """The loopback interface for gloo and NCCL when nobody is elsewhere: the host's own name may resolve to an address
    that nothing listens on."""
    return {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"} if peers(roster).on_one_machine else {}


def port_variable(name: str) -> str:
    return contract.PORT_PREFIX + variable_part(name)


def variable_part(name: str) -> str:
    """A name as part of a variable's: `parameter-server` is `PARAMETER_SERVER`."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def _visible(gpus: Sequence[int]) -> dict[str, str]:
    """Always set, also empty: a rank without a GPU must not find those of others."""
    if not gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    # CUDA numbers the fastest first unless told to count as the driver does, which is how the engine counted.
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
