"""Any program as a gang: each process has a port and knows the others by variables, by the roster file and by a
hostfile."""

from __future__ import annotations

from collections.abc import Iterator

from shoal import contract
from shoal.contract import Member, Process, Roster
from shoal.job.roles import Role
from shoal.job.spec import JobSpec
from shoal.launch import environ
from shoal.launch.api import Place
from shoal.launch.peers import peers

MAIN = "main"
HOSTS_PREFIX = "SHOAL_HOSTS_"  # SHOAL_HOSTS_<ROLE>: address:port of every process of the role, in order
MOST_HOSTS = 500  # the system refuses a variable over 128 KiB and limits them all together; the file has everyone


class Command:
    """The launcher for programs that need no framework's variables."""

    name = "command"

    def processes_per_slot(self, role: Role) -> int:
        return 1

    def ports(self, spec: JobSpec, role: str, index: int) -> tuple[str, ...]:
        return (MAIN,)

    def process(self, spec: JobSpec, role: Role, roster: Roster, member: Member, place: Place) -> Process:
        facts = {**environ.facts(spec, roster, member, place, place.gpus), **dict(_hosts(roster))}
        facts[contract.HOSTFILE] = environ.HOSTFILE_PATH
        argv = environ.argv(spec, role, roster, member, place)
        return environ.make(argv, role, roster, member, defaults={}, facts=facts, processes=1)


def _hosts(roster: Roster) -> Iterator[tuple[str, str]]:
    """The roster as variables, role by role; a role with too many members is left to the roster file."""
    for role, members in peers(roster).roles.items():
        if len(members) <= MOST_HOSTS:
            yield HOSTS_PREFIX + environ.variable_part(role), ",".join(map(environ.address, members))
