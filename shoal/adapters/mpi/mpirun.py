"""mpirun: how it is found and called, and the two programs that it starts: relays and the agent.

Checked against Open MPI 4.1.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.adapters.mpi.place import BECOME, RUN, Place
from shoal.errors import ShoalError

RANK = "OMPI_COMM_WORLD_RANK"
TOLD = (
    "OMPI_",
    "PMIX_",
    "PRTE_",
    "OPAL_",
    "ORTE_",
)  # how the names of the variables begin that make a rank of a process
SEGMENTS = ("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory")  # of version 4, of 5
WE = "shoal.adapters.mpi"


class NoMpi(ShoalError):
    """No MPI here, or one that cannot be used so."""

    code = "no_mpi"
    exit_code = 127  # as a shell's, so that the job's reason is a missing command


def find(path: str) -> str:
    """mpirun on that PATH; NoMpi names the package to install."""
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise NoMpi(
            f"framework mpi needs Open MPI, and there is no mpirun on PATH ({path}); install it (Debian, Ubuntu: "
            "openmpi-bin; Fedora, RHEL: openmpi), or add its folder to PATH under env"
        )
    version = subprocess.run([found, "--version"], check=False, capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        first = version.strip().splitlines()[:1] or ["it says nothing"]
        raise NoMpi(f"{found} is not Open MPI ({first[0]}); put an Open MPI (openmpi-bin) first on PATH under env")
    return found


def command(place: Place, mpirun: str, hosts: Path, python: str) -> list[str]:
    """One relay for each worker, rank by rank where the worker is."""
    agent = f"{python} -m {WE} agent"
    return [
        mpirun,
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("-np", str(len(place.workers)), "--hostfile", str(hosts), "--map-by", "seq", "--bind-to", "none"),
        # Daemons stay in the session of the worker that runs them, and all are started from here.
        *("--leave-session-attached", "--mca", "plm_rsh_agent", agent, "--mca", "plm_rsh_no_tree_spawn", "1"),
        *(python, "-m", WE, "relay"),
    ]


def write_hosts(place: Place, path: Path) -> None:
    """One line for each rank: mpirun's mapping `seq` takes them in order. It knows its own node by the host's name
    only, whatever addresses that has."""
    here = place.own.address
    names = (socket.gethostname() if worker.address == here else worker.address for worker in place.workers)
    path.write_text("".join(f"{name}\n" for name in names))


def relay(variables: Mapping[str, str]) -> int:
    """Stands for a rank under mpirun until the worker of that number has ended; ends as it did."""
    place = Place.read(variables)
    rank = place.workers[int(variables[RANK])]
    told = {name: value for name, value in variables.items() if name.startswith(TOLD)}
    with_rank = place.call(rank, BECOME, f"relay-{variables[RANK]}")
    code = int(with_rank.ask({"kind": BECOME, "variables": told}).meta["code"])
    if code < 0:
        end_by(-code)
    return code


def agent(variables: Mapping[str, str], arguments: Sequence[str]) -> int:
    """In ssh's place: `agent HOST COMMAND …` runs the command at the host and leaves with its status."""
    place = Place.read(variables)
    host, *words = arguments
    link = place.call(place.at(host), RUN, f"mpirun-{os.getpid()}")
    return int(link.ask({"kind": RUN, "command": " ".join(words)}).meta["code"])


def end_by(number: int) -> None:
    """Leaves as a process does that the signal ended."""
    if number != signal.SIGKILL:  # of which nobody may say anything
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
