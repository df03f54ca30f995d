"""How workers that torchrun started find each other: addresses, the secret, shared memory, parameter servers.

In a Shoal job all of this is in the roster. Under torchrun there is only a store: each worker leaves a card there, the
first one the secret, and, for strategies that need them, the addresses of servers it started as its children. Nothing
but JSON lies in the store. What is made here is taken away by `Meeting.close`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from shoal import contract
from shoal._lib.ports import free_ports
from shoal.contract import Member, Roster
from shoal.errors import BadSpec
from shoal.train.errors import TrainError, WaitedTooLong
from shoal.train.world import PORT, SERVER, WORKER, Peer, World, peers

PATIENCE = 300.0  # seconds for all workers to come
GRACE = 10.0  # seconds for a server to end
LINGER = 12 * 3600.0  # seconds for slower workers to end, of which nothing is heard
LOOK, NOTICE = 0.05, 60.0  # seconds between two looks at who has ended, and between two words about it
_SHM = Path("/dev/shm")
_PREFIX = "shoal-torchrun-"
_YOUNG = 60.0  # seconds in which a folder may still be without anyone's number
_LIBRARY = Path(__file__).parents[2]  # the folder that holds `shoal`

_log = logging.getLogger("shoal.train")


@dataclass
class Meeting:
    """What was made for this world, to be taken away at its end."""

    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    shared: Path | None = None
    store: Store | None = None  # kept: the first worker may host it
    rank: int = 0
    pids: tuple[int | None, ...] = ()  # of all workers; None for one of another node

    def close(self, ok: bool = True) -> None:
        """Ends the servers when all workers have left (after an error: at once), and removes the shared folder if
        nobody of this node is left in it. Harmless twice."""
        if self.store is not None:
            with suppress(Exception):  # whoever hosts it may be gone, and waits for nobody then
                self.store.set(f"left-{self.rank}", "1")
        if self.servers and ok:
            self._wait_for_others()
        for server in self.servers:
            _end(server)
        if self.shared:
            (self.shared / f"pid-{os.getpid()}").unlink(missing_ok=True)
            _remove_if_left(self.shared)
        self.servers, self.shared, self.store = [], None, None

    def _wait_for_others(self) -> None:
        """Slower workers still need the servers. A server that none of them came to cannot tell when they have left."""
        began = said = time.monotonic()
        while (missing := self._missing()) and not self._served_all():
            names, now = ", ".join(f"worker-{rank}" for rank in missing), time.monotonic()
            if now - began > LINGER:
                _log.warning("%s did not end within %g s; the servers end now", names, LINGER)
                return
            if now - said > NOTICE:
                said = now
                _log.info("the servers stay until %s has ended, for %.0f s now", names, now - began)
            time.sleep(LOOK)

    def _missing(self) -> list[int]:
        """The workers that have not said that they have left, and are not known to be dead."""
        assert self.store is not None
        others = [(rank, pid) for rank, pid in enumerate(self.pids) if rank != self.rank]
        alive = [rank for rank, pid in others if pid is None or Path(f"/proc/{pid}").exists()]
        return [rank for rank in alive if not self.store.check([f"left-{rank}"])]

    def _served_all(self) -> bool:
        """Whether a server has seen everybody come and go, or none is left to wait for."""
        codes = [server.poll() for server in self.servers]
        return 0 in codes or None not in codes


def meet(world: World, needs_servers: bool, servers: int) -> tuple[World, Meeting]:
    """The complete world. Only torchrun's is not complete from the start; a world of one has nobody to meet."""
    if world.source != "torchrun" or world.size == 1:
        return world, Meeting()
    if needs_servers and servers < 1:
        raise BadSpec(f"strategy {world.strategy} needs parameter servers: start(servers={servers}) must be 1 or more")
    store = _store(world)
    cards = _cards(world, store)
    shared = _shared(world, store, cards)
    secret = str(_agreed(store, "secret", world.rank == 0, lambda: secrets.token_hex(32)))
    roster = _roster(world, store, cards, servers if needs_servers else 0)
    path = shared / f"roster-{world.rank}.json"
    path.write_text(roster.to_json())
    whole = replace(
        world,
        workers=peers(roster, WORKER),
        servers=peers(roster, SERVER),
        secret=secret.encode(),
        shared=shared,
        roster=path,
    )
    _all_have_read(world, store)
    pids = tuple(card["pid"] if card["node"] == cards[world.rank]["node"] else None for card in cards)
    meeting = Meeting([], shared, store, world.rank, pids)
    if whole.servers and world.rank == 0:
        meeting.servers = [_serve(whole, server, path) for server in whole.servers]
    return whole, meeting


def _store(world: World) -> Store:
    """torchrun's own store where it has one; else the first worker hosts it, and torch.distributed may share it."""
    env = world.variables
    hosted = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            env["MASTER_ADDR"],
            int(env["MASTER_PORT"]),
            world.size,
            is_master=world.rank == 0 and not hosted,
            timeout=timedelta(seconds=PATIENCE),
            multi_tenant=True,
            wait_for_workers=False,
        )
    except Exception as failed:
        raise TrainError(
            f"no store at {env['MASTER_ADDR']}:{env['MASTER_PORT']} ({failed}): "
            "start the script with torchrun, or with shoal run"
        ) from failed
    _Count.starts += 1
    return PrefixStore(f"shoal-{env.get('TORCHELASTIC_RESTART_COUNT', '0')}-{_Count.starts}", store)


class _Count:
    """How many runs this process has started: each has keys of its own in the store."""

    starts = 0


def _cards(world: World, store: Store) -> list[dict[str, Any]]:
    host = _address(world.variables["MASTER_ADDR"])
    mine = {
        "node": machine(), "host": host, "port": free_ports(1, host)[0], "local": world.local_rank, "pid": os.getpid(),
    }  # fmt: skip
    store.set(f"card-{world.rank}", json.dumps(mine))
    return [json.loads(_read(store, f"card-{rank}", f"worker-{rank}")) for rank in range(world.size)]


def _shared(world: World, store: Store, cards: list[dict[str, Any]]) -> Path:
    """This node's folder for shared memory: the first of the node makes it, and the last to leave removes it."""
    node = cards[world.rank]["node"]
    first = next(rank for rank, card in enumerate(cards) if card["node"] == node)
    if world.rank == first:
        _sweep()
    folder = Path(str(_agreed(store, f"shared-{first}", world.rank == first, _folder)))
    (folder / f"pid-{os.getpid()}").touch()
    store.set(f"here-{world.rank}", "1")
    for rank in range(world.size):
        _read(store, f"here-{rank}", f"worker-{rank}")
    return folder


def _sweep() -> None:
    """Folders of runs that were killed: nobody whose number lies in them is alive."""
    for old in _root().glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if old.stat().st_uid == os.getuid() and time.time() - old.stat().st_mtime > _YOUNG:
                _remove_if_left(old)


def _remove_if_left(folder: Path) -> None:
    pids = [int(note.name.partition("-")[2]) for note in folder.glob("pid-*")]
    if not any(Path(f"/proc/{pid}").exists() for pid in pids):
        shutil.rmtree(folder, ignore_errors=True)


def _root() -> Path:
    return _SHM if os.access(_SHM, os.W_OK) else Path(tempfile.gettempdir())


def _folder() -> str:
    return tempfile.mkdtemp(prefix=_PREFIX, dir=_root())  # of mode 0700


def _roster(world: World, store: Store, cards: list[dict[str, Any]], servers: int) -> Roster:
    members = [
        Member(f"worker-{rank}", WORKER, rank, card["node"], card["host"], {PORT: card["port"]}, card["local"])
        for rank, card in enumerate(cards)
    ]
    if servers:
        host, node = cards[0]["host"], cards[0]["node"]
        ports = _agreed(store, "servers", world.rank == 0, lambda: free_ports(servers, host))
        members += [
            Member(f"server-{index}", SERVER, index, node, host, {PORT: port}, index)
            for index, port in enumerate(ports)
        ]
    return Roster(1, f"torchrun-{world.variables.get('TORCHELASTIC_RUN_ID', '0')}", members)


def _serve(world: World, server: Peer, roster: Path) -> subprocess.Popen[bytes]:
    """A parameter server as a child: the same contract as in a job, and it ends when all workers have left."""
    variables = {
        **world.variables,
        **_library(world.variables),
        contract.ROLE: SERVER,
        contract.INDEX: str(server.index),
        contract.MEMBER: server.name,
        contract.NODE: server.node,
        contract.SIZE: str(world.size),
        contract.ROSTER: str(roster),
        contract.SECRET: world.secret.decode(),
        contract.SHARED: str(world.shared),
        contract.OUTPUTS: str(world.outputs),
        contract.STRATEGY: str(world.strategy),
        contract.PORT_PREFIX + PORT.upper(): str(server.port),
    }
    variables.pop(contract.RANK, None)
    command = [sys.executable, "-m", "shoal.train.ps", "--until-left", str(world.size)]
    return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True)


def _library(variables: Mapping[str, str]) -> dict[str, str]:
    """The child must find the same `shoal`, however this process found it."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(_LIBRARY), variables.get("PYTHONPATH", "")]))}


def _all_have_read(world: World, store: Store) -> None:
    """The first worker may host the store: it stays until nobody reads there any more."""
    store.set(f"done-{world.rank}", "1")
    if world.rank == 0:
        for rank in range(world.size):
            _read(store, f"done-{rank}", f"worker-{rank}")


def _agreed(store: Store, key: str, mine: bool, make: Any) -> Any:
    """What the one whose turn it is made; the others read it."""
    if mine:
        value = make()
        store.set(key, json.dumps(value))
        return value
    return json.loads(_read(store, key, key))


def _read(store: Store, key: str, who: str) -> str:
    try:
        return bytes(store.get(key)).decode()
    except Exception as failed:
        raise WaitedTooLong(
            f"{who} did not come within {PATIENCE:g} s; does every process call train.start()?", [who]
        ) from failed


def _end(server: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if server.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(GRACE)
            return


def machine() -> str:
    """The same for all processes that share this machine's memory, and for no other: its name and its boot."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}-{boot[:8]}-{_SHM.stat().st_dev}"  # containers have a /dev/shm each
    return socket.gethostname()


def _address(master: str) -> str:
    """The address of this machine on the way to the first worker: no guess by name or interface."""
    with suppress(OSError):
        found = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"
