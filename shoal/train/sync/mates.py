"""Workers of one machine that push as one (*mates*): their gradients are added up in shared memory, the first of them
takes the sum to the servers, and what it reads there all of them read from it. So a machine crosses the network once,
however many workers it has.

A push says how many it speaks for, and the servers divide by all of those. The servers know the speakers only: a mate
that ends in good order is one less to speak for; when one dies the others cannot go on, as in all-reduce.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from shoal.errors import ShoalError
from shoal.train.api import Setting
from shoal.train.errors import Disagreement, NoRoom
from shoal.train.group import choose
from shoal.train.group.shm import SharedGroup
from shoal.train.ps.client import Named, Portion, Terms
from shoal.train.ps.counterpart import PARAMS, Counterpart, Outcome
from shoal.train.ps.pull import Landing
from shoal.train.ps.recipe import Recipe
from shoal.train.wire.frames import Meta
from shoal.train.wire.link import revive, tell
from shoal.train.wire.segment import usable
from shoal.train.world import Peer, World

_log = logging.getLogger("shoal.train")


def mates(setting: Setting) -> SharedGroup | None:
    """Those of this machine, met; None where each pushes for itself: it is the only one here, or all servers are here
    too and nothing crosses a network, or memory is short. Collective on the machine."""
    world, mine = setting.world, here(setting.world)
    if world.shared is None or not usable() or len(mine) == 1 or all(world.is_here(one) for one in world.servers):
        return None
    try:
        return choose.on_machine(world, mine, setting.seeing, f"mates-{setting.unit}")
    except NoRoom as short:
        _log.warning("%s; every worker of this machine pushes for itself, which is slower", short.message)
        return None


def here(world: World) -> list[int]:
    """The ranks of this machine."""
    return [one.index for one in world.workers if one.node == world.node]


class Shared(Portion):
    """What one optimizer of all mates exchanges. Every call is collective among those that have not left."""

    ahead = False  # the sum of a gradient is known when all have theirs

    def __init__(
        self, setting: Setting, space: str, members: Sequence[Named], terms: Terms, group: SharedGroup
    ) -> None:
        self._group = group
        self._first = min(here(setting.world))
        self.speaks = group.rank == self._first
        self._fresh = True
        self._heads = 0  # workers whose gradients lie in the slot
        self._parted = False
        self._terms = terms
        super().__init__(setting, space, members, terms)

    def open(self) -> None:
        self._agree()
        failed: ShoalError | None = None
        if self.speaks:
            try:
                super().open()
            except ShoalError as error:
                failed = error
        told = self._group.gather([tell(failed) if failed else None, super().fresh])[0]
        if failed:
            raise failed
        if told[0]:
            raise revive(told[0])
        self._fresh = bool(told[1])

    @property
    def fresh(self) -> bool:
        return self._fresh

    def lay_gradients(self) -> None:
        super().lay_gradients()
        self._add_up()

    def push(
        self,
        want: str = PARAMS,
        bases: Mapping[int, int] | None = None,
        recipe: Recipe | None = None,
        empty: bool = False,
    ) -> list[Outcome]:
        empty = self._all_empty(empty)
        if self.speaks:
            return super().push(want, bases, recipe, empty)
        self._seeing.stale(0)
        return []

    def pull(self, landing: Landing | None = None, pushed: bool = False) -> None:
        landing = landing or self.landing
        if self.speaks:
            super().pull(landing, pushed)
        if not self._parted:
            self._hand_out(landing)

    def _hand_out(self, landing: Landing) -> None:
        """What the one who speaks has read lands with the others too."""
        parts = [part for part in self.layout.parts if part.count]
        if self.speaks:
            for part in parts:
                self.slot.part(part).copy_(landing.gather(part))
        self._group.broadcast(self.slot.flat, self._first)
        if not self.speaks:
            for part in parts:
                landing.scatter(part, self.slot.part(part))
            landing.finish()
        self.slot.taint()

    def await_load(self) -> None:
        if self.speaks:
            super().await_load()

    def part(self) -> None:
        """This worker is done, and calls no more together with the others."""
        self._parted = True

    def go_on(self) -> None:
        """The one who speaks is done; while others are not, it speaks for them, with nothing of its own."""
        scratch = Landing(self.layout, [torch.empty_like(one.tensor) for one in self.members])
        while len(self._group.members()) > 1:
            self.slot.clear_all()
            self._add_up()
            self._heads -= 1
            if not self._heads:
                return
            super().push(empty=self._all_empty(True))
            super().pull(scratch, pushed=True)
            self._hand_out(scratch)

    def _add_up(self) -> None:
        self._group.all_reduce(self.slot.flat)
        self._heads = len(self._group.present)
        self.slot.taint()

    def _all_empty(self, mine: bool) -> bool:
        """Whether all mates have skipped this step."""
        full = torch.tensor([0.0 if mine else 1.0])
        self._group.all_reduce(full)
        return not full.item()

    def _agree(self) -> None:
        """The servers compare what speakers say; the optimizers of the others are compared here."""
        recipe = self._terms.recipe
        every = self._group.gather([self._group.rank, self._terms.applier, recipe.to_json() if recipe else None])
        for rank, *theirs in every:
            if theirs != every[0][1:]:
                raise Disagreement(
                    f"worker-{rank} has the optimizer {theirs} where worker-{every[0][0]} has {every[0][1:]}, in space "
                    f"{self.space}: every worker must build the same optimizers"
                )

    def _push(self, one: Counterpart, extra: Meta) -> Outcome:
        return super()._push(one, {"heads": self._heads, **extra})

    def _slot_path(self) -> Path | None:
        return super()._slot_path() if self.speaks else None

    def _greeting(self, terms: Terms, peer: Peer) -> Meta:
        others = [rank for rank in here(self._world) if rank != self._first]
        return {**super()._greeting(terms, peer), "speaks_for": others}
