"""The worker's end of the parameter servers: what one optimizer exchanges with all of them.

A `Portion` has a slot (what is pushed), a landing (where parameters come back to, first layers first) and the servers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shoal.train import compress
from shoal.train.api import Setting
from shoal.train.errors import NoRoom, WaitedTooLong
from shoal.train.ps.carry import packed, unpacked
from shoal.train.ps.counterpart import PARAMS, Counterpart, Outcome
from shoal.train.ps.dump import Dump
from shoal.train.ps.lane import Lane
from shoal.train.ps.layout import Layout, ParamInfo, Part
from shoal.train.ps.parcel import Parcels
from shoal.train.ps.pull import Landing
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.servers import Servers
from shoal.train.ps.slots import Slot, as_bytes
from shoal.train.seeing import EXCHANGE
from shoal.train.wire.frames import Buffer, Meta
from shoal.train.wire.segment import usable
from shoal.train.world import Peer

LOAD_PATIENCE = 600.0  # seconds for the first worker to load a checkpoint
PAUSE = 0.05  # seconds between two looks

_log = logging.getLogger("shoal.train")


@dataclass(frozen=True)
class Terms:
    """What the servers are to do with what is pushed."""

    strategy: str  # by name
    applier: str  # step, add, elastic, mean
    recipe: Recipe | None = None


@dataclass(frozen=True)
class Named:
    """A tensor of a space: its name, and the number of its group in the optimizer."""

    name: str
    tensor: Tensor
    group: int = 0


class Portion:
    """What one optimizer of this worker exchanges. Calls come from the training thread; `open` first, `leave` last."""

    ahead = True  # gradients may leave during backward, where that is worth it

    def __init__(self, setting: Setting, space: str, members: Sequence[Named], terms: Terms) -> None:
        self.space = space
        self.members = list(members)
        chunk = int(setting.options["chunk"] * (1 << 20))
        self.layout = Layout.of([_info(one) for one in members], len(setting.world.servers), chunk)
        self._setting, self._world, self._seeing = setting, setting.world, setting.seeing
        self._lane = Lane()
        self._told = terms.recipe  # as the servers know it
        tensors = [one.tensor for one in members]
        self.landing = Landing(self.layout, tensors)
        pinned = any(one.is_cuda for one in tensors)
        self.slot = self._make_slot(pinned)
        self.servers = Servers(
            [
                Counterpart(
                    self._world,
                    peer,
                    part,
                    self._greeting(terms, peer),
                    self._initial,
                    self._seeing.wait_is_for,
                    pinned,
                )
                for peer, part in zip(self._world.servers, self.layout.parts, strict=True)
                if part.count  # a small model leaves some servers nothing
            ]
        )
        self.squeezer = compress.make(setting.options)
        self.parcels = Parcels(space, self.slot, self.servers, tensors, self.squeezer, self.ahead)

    # -- its life

    def open(self) -> None:
        """Agrees with every server on what the space is. Raises Disagreement with the first difference."""
        with self._seeing.waiting_for(f"hello of {self.servers.names}"):
            self.servers.on_all(Counterpart.open)

    @property
    def fresh(self) -> bool:
        """Whether nobody had trained yet when this worker came."""
        return not any(one.joined_at for one in self.servers)

    def leave(self) -> None:
        """Goes in good order. Harmless twice."""
        self.parcels.close()
        self.servers.leave()
        self.slot.close()

    def abandon(self) -> None:
        """Goes without a word, because something is wrong."""
        self.parcels.close()
        self.servers.close()
        self.slot.close()

    # -- what a step does

    def lay_gradients(self) -> None:
        """The gradients as they are now are in the slot; a missing one counts as zero."""
        with self._seeing.spending(EXCHANGE):
            self.slot.put((index, self.members[index].tensor.grad) for index in self.parcels.stale())
            self._lane.settle()

    def lay_values(self) -> None:
        """The same with the values of the tensors."""
        with self._seeing.spending(EXCHANGE):
            self.slot.put((index, one.tensor) for index, one in enumerate(self.members))
            self._lane.settle()

    def add(self, tensors: Sequence[Tensor | None], sign: float = 1.0) -> None:
        """Adds to what the slot holds."""
        with self._seeing.spending(EXCHANGE):
            self.slot.add(((index, one) for index, one in enumerate(tensors) if one is not None), sign)

    def take_off(self) -> None:
        """Takes what the slot holds off the tensors."""
        with self._seeing.spending(EXCHANGE), torch.no_grad():
            for index, one in enumerate(self.members):
                one.tensor.sub_(self.slot.of(index).to(one.tensor.device, one.tensor.dtype))

    @property
    def versions(self) -> dict[int, int]:
        """Of the parameters last read, by server."""
        return {one.part.server: one.version for one in self.servers}

    def push(
        self,
        want: str = PARAMS,
        bases: Mapping[int, int] | None = None,
        recipe: Recipe | None = None,
        empty: bool = False,
    ) -> list[Outcome]:
        """Pushes the slot to every server and waits until this worker may go on. `bases` are the versions that it was
        computed on; `recipe` is the optimizer as it is now; `want` says what the answer brings from afar; an `empty`
        one stands for steps that were skipped."""
        based = self.versions if bases is None else bases
        extra: Meta = {"want": want, **({"heads": 0} if empty else {}), **self._changes(recipe)}
        with self._seeing.spending(EXCHANGE):
            self.parcels.seal()
        began = self._seeing.clock()
        with self._seeing.waiting_for(f"the answer of {self.servers.names} to push {self.servers[0].seq + 1}"):
            outcomes = self.servers.on_all(lambda one: self._push(one, {**extra, "base": based[one.part.server]}))
        for last in {name for one in outcomes for name in one.waited_for} - {self._world.me}:
            self._seeing.held_up(last, self._seeing.clock() - began)
        self.parcels.answered()
        self._seeing.stale(max(one.staleness for one in outcomes))
        return outcomes

    def pull(self, landing: Landing | None = None, pushed: bool = False) -> None:
        """Reads the parameters; `pushed` says that those from afar came with the push just now."""
        landing = landing or self.landing
        with self._seeing.spending(EXCHANGE):
            for one in self.servers:
                if one.reader is not None:
                    one.version = one.reader.copy(landing.pairs(one.part))
                    self._seeing.sent(0, one.part.bytes)
                    continue
                if not pushed:
                    reply = one.ask("pull", into=self.parcels.landing(one, PARAMS))
                    one.version = int(reply.meta["version"])
                    self._seeing.sent(0, reply.payload.nbytes)
                landing.scatter(one.part, self.parcels.staged(one))
            landing.finish()

    # -- what a checkpoint needs

    def dump(self) -> list[Dump]:
        """Everything the servers hold of the space, server by server."""
        with self._seeing.waiting_for(f"the state of {self.servers.names}"):
            replies = self.servers.on_all(lambda one: one.ask("dump"))
        return [dump for reply in replies for dump in unpacked(reply.meta["dumps"], reply.payload)]

    def take(self, dumps: Sequence[Dump]) -> None:
        """The opposite, from the dumps of all the servers there were then."""
        described, buffers = packed(dumps)
        with self._seeing.waiting_for(f"{self.servers.names} to take the state of a checkpoint"):
            self.servers.on_all(lambda one: one.ask("take", {"dumps": described}, buffers))

    def await_load(self) -> None:
        """Returns when the servers have taken what the first worker loads. WaitedTooLong names it."""
        until = time.monotonic() + LOAD_PATIENCE
        with self._seeing.waiting_for("worker-0 to load the checkpoint"):
            while not all(self._loaded(one) for one in self.servers):
                if time.monotonic() > until:
                    raise WaitedTooLong(
                        f"worker-0 has not loaded the checkpoint that {self._world.me} found for {LOAD_PATIENCE:g} s: "
                        "do both see the same outputs?",
                        ["worker-0"],
                    )
                time.sleep(PAUSE)

    def _loaded(self, one: Counterpart) -> bool:
        told = one.ask("pull", {"begin": 0, "count": 0}).meta
        return bool(told["loads"] or told["version"])

    def refill(self) -> None:
        """The servers take the values of the tensors as they are here now, in place of what they hold."""
        with self._seeing.waiting_for(f"{self.servers.names} to take new values"):
            self.servers.on_all(lambda one: one.ask("init", {"again": True}, [self._initial(one.part)]))

    # -- inside

    def _push(self, one: Counterpart, extra: Meta) -> Outcome:
        """At one server, in its thread."""
        before = one.moved
        self.parcels.hand_over(one)
        outcome = one.push(extra, lambda: self.parcels.payload(one), self.parcels.landing(one, str(extra["want"])))
        sent, received = (after - then for after, then in zip(one.moved, before, strict=True))
        self._seeing.sent(sent + one.part.bytes if one.here else sent, received)
        return outcome

    def _changes(self, recipe: Recipe | None) -> Meta:
        """What the user's scheduler has changed since the servers were told."""
        if recipe is None or self._told is None:
            return {}
        changes = recipe.changes(self._told)
        self._told = recipe
        if any(one.older for one in self.servers):
            changes = recipe.everything()
            for one in self.servers:
                one.older = False
        return {"changes": changes} if changes else {}

    def _initial(self, part: Part) -> Buffer:
        return as_bytes(self.landing.gather(part))

    def _make_slot(self, pinned: bool) -> Slot:
        try:
            return Slot(self.layout, self._slot_path(), self._lane, pinned)
        except NoRoom as short:
            _log.warning("%s sends space %s over TCP: %s", self._world.me, self.space, short.message)
            return Slot(self.layout, None, self._lane, pinned)

    def _slot_path(self) -> Path | None:
        world = self._world
        if world.shared is None or not usable() or not any(world.is_here(one) for one in world.servers):
            return None
        return world.shared / f"grad-{self.space}-w{world.rank}"

    def _greeting(self, terms: Terms, peer: Peer) -> Meta:
        here = self.slot.path is not None and self._world.is_here(peer)
        return {
            "space": self.space,
            "layout": self.layout.to_json(),
            "applier": terms.applier,
            "recipe": terms.recipe.to_json() if terms.recipe else None,
            "strategy": terms.strategy,
            "options": dict(self._setting.options),
            "remote": not here,
            "slot": str(self.slot.path) if here else None,
        }


def _info(one: Named) -> ParamInfo:
    return ParamInfo(
        one.name, one.tensor.numel(), str(one.tensor.dtype).removeprefix("torch."), one.group, tuple(one.tensor.shape)
    )
