"""The service "ps": what workers say to a parameter server, and what it answers.

    hello   {space, layout, applier, recipe, strategy, options, remote, slot, clock, version} the last two as it knows
            → {version, segment, last_seq, clock, initialised, lost}
    init    {space, again} + initial values over the part            → {version, initialised}
    part    {space, begin, count} + that range of the slot           → {}
    push    {space, seq, base, clock, changes, want} + the slot, when remote
            → {version, staleness, dropped, waited_for} + what was wanted, when remote
    pull    {space, clock, begin, count}, with a clock it waits as the rule says
            → {version, loads} + parameters; `loads` counts init again and take
    leave   {space}                                                  → {}
    dump    {space}                                                  → {dumps} + their tensors
    take    {space, dumps} of all servers there were + their tensors → {version}
    status  {}                                                       → {server, spaces}

A worker is known by the name it proved. `begin` and `count` are elements of the part. `want` is `params` (what workers
read), `slot` (what the server left in the slot: elastic averaging), `version` or `none`; only a remote worker is sent
any. A push is answered when the rule lets the worker go on. Any connection of a worker may bring parts and take pulls;
the one that said hello stands for its life: when it ends, the worker has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from shoal.errors import BadRequest
from shoal.train import compress
from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.ps.carry import packed, unpacked
from shoal.train.ps.copies import Copies
from shoal.train.ps.place import Place
from shoal.train.ps.served import Served, agree_on_strategy
from shoal.train.ps.spaces import Spaces
from shoal.train.ps.tickets import Granted, Push
from shoal.train.wire.frames import Meta
from shoal.train.wire.host import Answer, Peer
from shoal.train.world import WORKER

INIT_PATIENCE = 90.0  # seconds the others wait for the values of worker-0, when nobody knows that it is lost
FILL_PATIENCE = 120.0  # seconds a reader waits for the first values
LOOK = 0.2  # seconds between two looks at who is lost


class ParameterService:
    """Everything of one server that workers push to and pull from. `drop` ends a connection by its number."""

    def __init__(self, place: Place, drop: Callable[[int], None] = lambda number: None) -> None:
        self.place = place
        self.departed: set[int] = set()  # workers that left in good order, from all that they had joined
        self.spoken_for: set[int] = set()  # workers that never call: another of their machine does it for them
        self._drop = drop
        self._copies = Copies(place)
        self.all = Spaces(place, self._copies)
        squeezer = compress.make(place.strategy.options)
        self._decode = squeezer.decode if squeezer else None
        self._kinds: dict[str, Callable[[Peer, Meta, memoryview], Answer]] = {
            "hello": self._hello,
            "init": self._init,
            "part": self._part,
            "push": self._push,
            "pull": self._pull,
            "leave": self._leave,
            "dump": self._dump,
            "take": self._take,
            "status": self._status,
            **self._copies.kinds,
        }

    # A service of a host.

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        act = self._kinds.get(str(meta.get("kind")))
        if act is None:
            raise BadRequest(
                f"a parameter server does not know {meta.get('kind')!r}; it knows {', '.join(self._kinds)}"
            )
        return act(peer, meta, payload)

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        kind = meta.get("kind")
        if kind == "part" or (kind == "push" and self._decode is None):
            served = self._served(meta)
            begin, count = (int(meta["begin"]), int(meta["count"])) if kind == "part" else (0, served.part.count)
            return served.landing(worker_of(peer), peer.number, begin, count, size)
        return self._copies.buffer(meta, size)

    def left(self, peer: Peer) -> None:
        if not peer.name.startswith(WORKER):
            return
        for served in self.spaces().values():
            served.hung_up(worker_of(peer), peer.number)

    # Its life.

    def recover(self) -> list[str]:
        """Takes over what a process before left behind; says what it found, in words."""
        return self.all.recover()

    def start(self) -> None:
        """From now on copies are kept elsewhere, where the strategy says so."""
        self._copies.start()

    def spaces(self) -> dict[str, Served]:
        return self.all.spaces()

    def close(self, why: str) -> None:
        """A last copy of everything, and an end for all who wait."""
        self.all.refuse(why)
        self._copies.close()
        self.all.close()

    # What workers say.

    def _hello(self, peer: Peer, meta: Meta, _payload: memoryview) -> Answer:
        worker = worker_of(peer)
        agree_on_strategy(meta, self.place)
        served = self.all.make(meta)
        try:
            served.agree(meta)
        except Disagreement as refused:
            served.refused[worker] = refused
            raise
        served.refused.pop(worker, None)
        for number in served.hung_up_before(worker, peer.number):
            self._drop(number)
        self.departed.discard(worker)
        for other in meta.get("speaks_for") or ():
            self.spoken_for.add(int(other))
            served.space.leave(int(other), f"{peer.name} speaks for it")
        return served.welcome(worker, meta), ()

    def _init(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        served, worker = self._served(meta), worker_of(peer)
        # All begin with the values of one worker, on every server: the first one's, while it may still come, else
        # those of the lowest rank there is, whoever ran out of patience first.
        until = time.monotonic() + INIT_PATIENCE
        while worker > served.filler(time.monotonic() > until) and not served.filled.wait(LOOK):
            if 0 in served.refused:  # its values never come: the models differ, and whoever waits is to know
                raise Disagreement(f"worker-0 was refused: {served.refused[0].message}", **served.refused[0].facts)
            if worker not in served.present:
                raise PeerLost(f"{peer.name} hung up before its values were needed; call again", [peer.name])
        served.fill(payload, again=bool(meta.get("again")))
        return {"kind": "ok", "version": served.shard.version, "initialised": True}, ()

    def _part(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        self._served(meta)  # the payload has landed in the slot
        return {"kind": "ok"}, ()

    def _push(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        served, worker = self._served(meta), worker_of(peer)
        if payload.nbytes and self._decode is not None:
            served.berths.decode(worker, payload, self._decode)
        served.berths.ready(worker)
        clock, changes = int(meta.get("clock") or 0), meta.get("changes") or None
        reads = meta.get("want") != "none"
        heads = int(meta.get("heads", 1))
        granted = served.space.push(Push(worker, int(meta["seq"]), int(meta["base"]), clock, changes, reads, heads))
        return self._granted(served, peer, granted, str(meta.get("want") or "none"))

    def _granted(self, served: Served, peer: Peer, granted: Granted, want: str) -> Answer:
        worker = worker_of(peer)
        told = {
            "kind": "ok",
            "version": granted.version,
            "staleness": granted.tau,
            "dropped": granted.dropped,
            "waited_for": [] if granted.waited_for is None else [f"{WORKER}-{granted.waited_for}"],
        }
        if not served.is_remote(worker) or want not in ("params", "slot"):
            return told, ()
        if want == "slot":
            return told, [served.berths.view(worker)]
        version, values = served.read(peer.number)
        return {**told, "version": version}, [values]

    def _pull(self, peer: Peer, meta: Meta, _payload: memoryview) -> Answer:
        served, worker = self._served(meta), worker_of(peer)
        if not served.filled.wait(FILL_PATIENCE):
            raise WaitedTooLong(
                f"nobody gave space {served.name} its first values for {FILL_PATIENCE:g} s; did all wrap?",
                [f"{WORKER}-0"],
            )
        if meta.get("clock") is not None:
            served.space.ask(worker, int(meta["clock"]))
        begin = int(meta.get("begin") or 0)
        count = int(meta["count"]) if meta.get("count") is not None else served.part.count - begin
        version, values = served.read(peer.number, begin, count)
        return {"kind": "ok", "version": version, "loads": served.loads}, [values]

    def _leave(self, peer: Peer, meta: Meta, _payload: memoryview) -> Answer:
        worker = worker_of(peer)
        self._served(meta).leave(worker, peer.number)
        if not any(worker in served.present for served in self.spaces().values()):
            self.departed.add(worker)
        return {"kind": "ok"}, ()

    def _dump(self, _peer: Peer, meta: Meta, _payload: memoryview) -> Answer:
        described, buffers = packed([self._served(meta).freeze()])
        return {"kind": "ok", "dumps": described}, buffers

    def _take(self, _peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        served = self._served(meta)
        served.load(unpacked(meta["dumps"], payload))
        return {"kind": "ok", "version": served.shard.version}, ()

    def _status(self, _peer: Peer, _meta: Meta, _payload: memoryview) -> Answer:
        spaces = {name: {**served.status(), **self._copies.status(name)} for name, served in self.spaces().items()}
        return {"kind": "ok", "server": self.place.name, "threads": torch.get_num_threads(), "spaces": spaces}, ()

    def _served(self, meta: Meta) -> Served:
        return self.all.find(meta.get("space"))


def worker_of(peer: Peer) -> int:
    """The number of a worker, from the name that it proved."""
    role, _, number = peer.name.rpartition("-")
    if role != WORKER or not number.isdigit():
        raise BadRequest(f"{peer.name!r} is no worker; only workers push and pull")
    return int(number)
