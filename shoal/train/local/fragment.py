"""One part of a model that has rounds of its own: what it sends, what it makes of the mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.errors import BadSpec
from shoal.train.errors import BadCheckpoint
from shoal.train.flat import Flat
from shoal.train.local.buffers import Buffers
from shoal.train.local.outer import AVERAGE, SLOWMO, Outer
from shoal.train.local.rounds import RANK, Rounds, Word, going

if TYPE_CHECKING:
    from shoal.train.compress import Reducer

Named = Sequence[tuple[str, Tensor]]


def cut(named: Named, count: int) -> list[list[tuple[str, Tensor]]]:
    """Layers in turn to each fragment, so that every one of them has early and late ones; parameters in turn where
    there are fewer layers than fragments. BadSpec where there are fewer parameters, too."""
    layers: dict[str, list[tuple[str, Tensor]]] = {}
    for name, tensor in named:
        layers.setdefault(name.rpartition(".")[0], []).append((name, tensor))
    units = list(layers.values()) if len(layers) >= count else [[one] for one in named]
    if len(units) < count:
        raise BadSpec(f"fragments={count} is more than the {len(units)} parameters there are: take no more than these")
    return [[one for unit in units[place::count] for one in unit] for place in range(count)]


@dataclass
class Sent:
    """What is under way: values or changes, and with the last fragment the buffers."""

    flats: list[Tensor]
    buffers: list[Tensor] = field(default_factory=list)
    gammas: list[float] = field(default_factory=list)  # the inner rates, as the first member says them


class Fragment:
    """A Part. Values travel as they are where they are only averaged; else the change since the anchor does."""

    def __init__(
        self,
        name: str,
        named: Named,
        optimizer: Optimizer,
        options: Mapping[str, Any],
        rounds: Rounds,
        reducer: Reducer | None,
    ) -> None:
        self.name, self.optimizer, self.rounds = name, optimizer, rounds
        self.names = [one for one, _ in named]
        self.layout = Flat([tensor for _, tensor in named])
        self.parameters = [tensor for _, tensor in named]
        self.outer = Outer.of(options)
        self.buffers = Buffers([])
        self.steps = 0  # since it was last sent
        self.due: int | None = None  # the step at which what is under way is taken
        self._reducer = reducer
        self._zeroes = options["momentum"] == "zero"
        self._anchored = self.outer.kind != AVERAGE or reducer is not None
        self._anchor: list[Tensor] = []
        self._way: Future[Sent] | Sent | None = None
        self.begin()

    def begin(self) -> None:
        """The replicas are equal now: from here they part."""
        self._anchor = self.layout.read() if self._anchored else []

    def behind(self) -> int:
        return self.steps

    def send(self, background: bool) -> None:
        sent, word = self._give()
        meet = self.rounds.begin if background else self.rounds.now
        self._way = meet(self.name, word, lambda said: self._reduce(sent, said))
        self.steps = 0

    def wait(self) -> None:
        """Returns when what is under way has come; raises what went wrong with it."""
        if isinstance(self._way, Future):
            self._way = self._way.result()

    def take(self, mix: float) -> None:
        """The outer step, once `wait` has returned: the parameters are the new global ones, and `mix` of the old."""
        assert isinstance(self._way, Sent)
        sent, self._way, self.due = self._way, None, None
        goal = self._goal(sent)
        if mix:
            here = self.layout.read()
            goal = list(torch._foreach_lerp(goal, here, mix))
        self.layout.write(goal)
        if self.buffers:
            self.buffers.take(sent.buffers)
        if self._zeroes:
            self._zero_momentum()

    def flush(self, said: list[Word]) -> None:
        sent, _word = self._give()
        self._way = self._reduce(sent, said)
        self.steps = 0
        self.take(0.0)

    def _give(self) -> tuple[Sent, Word]:
        values = self.layout.read()
        if self._anchored:
            values = list(torch._foreach_sub(self._anchor, values))
        word = {"gammas": self._gammas()} if self.outer.kind == SLOWMO else {}
        return Sent(values, self.buffers.send() if self.buffers else []), word

    def _reduce(self, sent: Sent, said: list[Word]) -> Sent:
        group = self.rounds.group
        sent.gammas = list(going(said)[0].get("gammas") or self._gammas())
        if self._reducer is not None:
            self._reducer.mean(list(zip(self.names, self.layout.views(sent.flats), strict=True)), group)
        else:
            for flat in sent.flats:
                group.all_reduce(flat, "mean")
        if self.buffers:
            self.buffers.reduce(sent.buffers, group, int(said[0][RANK]))
        return sent

    def _goal(self, sent: Sent) -> list[Tensor]:
        if not self._anchored:
            return sent.flats
        self.outer.step(self._anchor, sent.flats, self.layout, sent.gammas)
        return self._anchor

    def _gammas(self) -> list[float]:
        rates = {id(one): float(group["lr"]) for group in self.optimizer.param_groups for one in group["params"]}
        return [rates[id(one)] for one in self.parameters]

    def _zero_momentum(self) -> None:
        for parameter in self.parameters:
            buffer = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                buffer.zero_()

    def state(self) -> dict[str, Any]:
        """Waits for what is under way, and keeps it: a run that goes on from here takes it at the same step."""
        self.wait()
        sent = self._way if isinstance(self._way, Sent) else None
        return {
            "steps": self.steps,
            "due": self.due,
            "anchor": [one.clone() for one in self._anchor],
            "outer": self.outer.state(),
            "sent": None if sent is None else [list(sent.flats), list(sent.buffers), sent.gammas],
            "read": self.buffers.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        like = self.layout.empty()
        kept = [*state["anchor"], *state["outer"]["buffers"]]
        for one, other in zip(kept, [*like, *like] if state["anchor"] else like, strict=False):
            if one.shape != other.shape:
                raise BadCheckpoint(
                    f"fragment {self.name} has {other.numel()} entries, in the checkpoint {one.numel()}: "
                    "it is of another model, or of another number of fragments"
                )
        self.steps, self.due = int(state["steps"]), state["due"]
        self.outer.load(state["outer"], like)
        if self._anchored:
            self._anchor = [
                a.to(b, copy=True) for a, b in zip(state["anchor"], like, strict=True)
            ] or self.layout.read()
        if state["sent"] is not None:
            flats, buffers, gammas = state["sent"]
            self._way = Sent(_copies(flats, like), list(buffers), list(gammas))
            self.buffers.load(state["read"])


def _copies(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    return [one.to(other, copy=True) for one, other in zip(tensors, like, strict=False)]
