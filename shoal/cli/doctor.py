"""`shoal doctor`: looks at this machine as Shoal would use it; each finding is ok, warn or fail, with what to do."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal._lib import cgroup
from shoal._lib.cgroup import Cgroup
from shoal._lib.quantities import format_size
from shoal.cli.output import coloured, print_json
from shoal.home import Home

if TYPE_CHECKING:
    from shoal.engine.isolation import InForce

app = typer.Typer()

OLDEST_PYTHON = (3, 11)
LITTLE_DISK, NO_DISK = 5 << 30, 200 << 20
LITTLE_SHM = 512 << 20
FEW_FILES = 1024
# Shoal did not exist before; a clock that says so was never set.
EARLIEST = 1_735_689_600  # 2025-01-01
NVIDIA = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `todo` says what to do about it."""

    check: str
    level: str  # ok, warn, fail
    message: str
    todo: str = ""


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check this machine and say what to do.

    Looks at Python, ports, disk, GPUs, cgroups, clock, limits, the server and what keeps users' jobs apart; leaves with
    1 if something fails.

    Examples:
    shoal doctor
    shoal doctor --json
    """
    findings = examine(Home.here())
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            print(_line(finding))
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(1)


def examine(home: Home) -> list[Finding]:
    looks: Iterable[Callable[[], Finding]] = (
        lambda: python(sys.version_info[:3]),
        ports,
        lambda: disk(home),
        gpus,
        lambda: cgroups(cgroup.make),
        lambda: clock(time.time()),
        lambda: open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        lambda: shared_memory(Path("/dev/shm")),
        lambda: server(home),
        lambda: isolation(home),
    )
    return [look() for look in looks]


def _line(finding: Finding) -> str:
    codes = {"ok": 32, "warn": 33, "fail": 31}
    level = finding.level.ljust(4)
    shown = f"\x1b[{codes[finding.level]}m{level}\x1b[0m" if coloured() else level
    todo = f"; {finding.todo}" if finding.todo else ""
    return f"{shown}  {finding.check.ljust(13)}  {finding.message}{todo}"


def python(version: tuple[int, ...]) -> Finding:
    text = f"Python {'.'.join(map(str, version))} at {sys.executable}"
    if version[:2] < OLDEST_PYTHON:
        return Finding("python", "fail", text, "install Python 3.11 or newer and Shoal in it")
    return Finding("python", "ok", text)


def ports() -> Finding:
    """Every port is bound at 0, so one on loopback is all that is needed."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            number = probe.getsockname()[1]
            probe.listen(1)
            socket.create_connection(("127.0.0.1", number), timeout=2).close()
    except OSError as wrong:
        todo = "allow connections to 127.0.0.1 (firewall, sandbox)"
        return Finding("ports", "fail", f"loopback does not answer: {wrong}", todo)
    return Finding("ports", "ok", "loopback answers; ports are chosen by the system")


def disk(home: Home) -> Finding:
    folder = home.root
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        return Finding("disk", "fail", f"{folder} is not writable", "set SHOAL_HOME to a folder of your own")
    free = shutil.disk_usage(folder).free
    text = f"{format_size(free)} free for {home.root}"
    todo = "free room, or set SHOAL_HOME to a larger disk"
    if free < NO_DISK:
        return Finding("disk", "fail", text, todo)
    return Finding("disk", "warn", text, todo) if free < LITTLE_DISK else Finding("disk", "ok", text)


def gpus() -> Finding:
    from shoal.engine.gpus import find

    found = find()
    if found:
        return Finding("gpus", "ok", f"{len(found)}: {', '.join(sorted({gpu.type for gpu in found}))}")
    if not NVIDIA.exists():
        return Finding("gpus", "ok", "none; jobs run on CPUs")
    message = "there is an NVIDIA driver, but its library does not answer"
    return Finding("gpus", "warn", message, "run: pip install 'shoal[gpu]', and see what 'nvidia-smi' says")


def cgroups(make: Callable[..., Cgroup | None]) -> Finding:
    """Tried for real: a group is made as for a rank, and taken away again."""
    todo = "run as root, or under systemd with Delegate=yes, for hard limits"
    watched = "memory limits are kept by watching processes"
    group = make(f"shoal-doctor-{os.getpid()}", memory=64 << 20, cpu=1.0)
    if group is None:
        return Finding("cgroups", "warn", f"none that is writable; {watched}", todo)
    group.remove()
    if not group.holds_memory:
        return Finding("cgroups", "warn", f"v{group.version}, but without the memory controller; {watched}", todo)
    return Finding("cgroups", "ok", f"v{group.version}, writable: limits are kept by the system")


def clock(now: float) -> Finding:
    todo = "set the clock, for example with chrony or systemd-timesyncd"
    if now < EARLIEST:
        return Finding("clock", "fail", f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}", todo)
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    drift = (time.time() - wall) - (time.monotonic() - steady)
    if abs(drift) > 0.5:
        return Finding("clock", "warn", f"the clock jumped by {drift:.1f} s while it was watched", todo)
    return Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now)))


def open_files(limit: int) -> Finding:
    if limit == resource.RLIM_INFINITY:
        return Finding("open files", "ok", "no limit")
    if limit < FEW_FILES:
        return Finding("open files", "warn", f"at most {limit}", f"raise it: ulimit -n {FEW_FILES * 4}")
    return Finding("open files", "ok", f"at most {limit}")


def shared_memory(folder: Path) -> Finding:
    """Data loaders and parameter servers on one host talk through it; containers give 64 MiB unless told."""
    if not folder.is_dir():
        return Finding(
            "shared memory", "warn", f"no {folder}", "data loaders with workers may fail; mount a tmpfs there"
        )
    size = shutil.disk_usage(folder).total
    if size < LITTLE_SHM:
        todo = "start the container with --shm-size 2g"
        return Finding("shared memory", "warn", f"{folder} has {format_size(size)}", todo)
    return Finding("shared memory", "ok", f"{folder} has {format_size(size)}")


def server(home: Home) -> Finding:
    from shoal.client.connect import connect
    from shoal.errors import ServerAway, ShoalError

    try:
        found = connect(start=False).request("GET", "/server")
    except ServerAway as away:
        level = "ok" if home.read_note() is None else "warn"
        if level == "ok":
            return Finding("server", "ok", f"none runs on {home.root}; 'shoal run' starts one")
        return Finding("server", "warn", away.message, "start it: shoal server start")
    except ShoalError as wrong:
        return Finding("server", "fail", wrong.message)
    return Finding("server", "ok", f"{found['url']} answers, version {found['version']}")


def isolation(home: Home) -> Finding:
    """What keeps the jobs of different users apart: as the server says, else as one started now would decide."""
    from shoal.engine.isolation import choose, first_of
    from shoal.engine.offers import look
    from shoal.errors import ShoalError
    from shoal.server.settings import read_settings

    try:
        asked = read_settings(home, {}).isolation
        offers = look(home.root, asked.uids[0])
        force = _told_by_server() or choose(asked.mode, 1, lambda: offers)
    except ShoalError as wrong:
        return Finding("isolation", "fail", wrong.message)
    return keeps_apart(force, asked.mode == "auto", first_of(offers))


def keeps_apart(force: InForce, auto: bool, ahead: InForce) -> Finding:
    """`ahead` is what `auto` will take once there are several users."""
    watched = "; their memory is watched by shepherds (twice a second), not limited by cgroups"
    if force.mode != "none":
        return Finding("isolation", "ok", f"{force.mode}: {force.note}{watched if force.watches_memory else ''}")
    if auto and ahead.mode != "none":
        later = f"{ahead.mode}: {ahead.why}{watched if ahead.watches_memory else ''}"
        return Finding("isolation", "ok", f"none: {force.note} ({later})")
    todo = "give the server only to people who trust each other, or set isolation.mode to auto"
    if ahead.mode == "none":
        todo = "install bubblewrap, or run the server as root, or give it only to people who trust each other"
    return Finding("isolation", "warn", f"none: {force.note}; they can read each other's files", todo)


def _told_by_server() -> InForce | None:
    """None when no server of this home or address answers."""
    from shoal.client.connect import connect
    from shoal.engine.isolation import InForce
    from shoal.errors import ShoalError

    try:
        told = connect(start=False).request("GET", "/server")["isolation"]
    except ShoalError:  # what is wrong with the server is another finding's to say
        return None
    return InForce(told["mode"], told["why"])
