"""Workers train alone and meet every so often: local SGD, post-local SGD, DiLoCo, Streaming DiLoCo, SlowMo.

Stich, ICLR 2019 (1805.09767); Lin et al., ICLR 2020 (1808.07217); Douillard et al. 2023 (2311.08105) and 2025
(2501.18512); Wang et al., ICLR 2020 (1910.00643). After `every` steps of its own a worker sends how far it went, and
the mean of all goes through an outer step (`outer.py`). With `fragments` each part of the model has its own turn within
`every` steps, so that the traffic is spread; with `delay` a result is taken that many steps after it was sent, while
the exchange runs beside the training; `mix` of the local value stays then.

Invariant: after a round without mix all replicas are bit-equal; each fragment meets once in `every` steps, and has at
most one exchange under way. Cost: 2(n−1)/n·M bytes in `every` steps, and a copy of the parameters where there is an
outer step or compression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from shoal.train import compress
from shoal.train.local import together
from shoal.train.local.buffers import POLICY, Buffers
from shoal.train.local.fragment import Fragment, cut
from shoal.train.local.rounds import Rounds
from shoal.train.sync import alike
from shoal.train.unit import names, trained

if TYPE_CHECKING:
    from shoal.train.api import Setting, State


class LocalSGD:
    """The Synchroniser of `local-sgd`."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.options = setting, setting.options
        self.needs_gradient = self.options["from_epoch"] > 0
        self.spaces: dict[int, Space] = {}  # by the optimizer's identity
        self.rounds: Rounds | None = None

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        rounds = self.rounds = Rounds.of(self.setting)
        alike.agree(model, optimizers, rounds.group)
        alike.start_equal(alike.everything(model), rounds.group)
        buffers = Buffers(model.buffers())
        for number, optimizer in enumerate(optimizers):
            space = Space(self.setting, rounds, number, model, optimizer, buffers if number == 0 else Buffers([]))
            self.spaces[id(optimizer)] = space
        rounds.use({part.name: part for space in self.spaces.values() for part in space.parts()})
        return model

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        self.spaces[id(optimizer)].before_step()

    def after_step(self, optimizer: Optimizer) -> None:
        self.spaces[id(optimizer)].after_step()

    def finish(self) -> None:
        rounds, self.rounds = self.rounds, None
        if rounds is None:
            return
        try:
            for space in self.spaces.values():
                space.settle()
        except BaseException:
            rounds.end(well=False)
            raise
        rounds.end()

    def state(self) -> State:
        spaces = {str(number): space.state() for number, space in enumerate(self.spaces.values())}
        return {"rank": self.setting.world.rank, **spaces}

    def load(self, state: State) -> None:
        for number, space in enumerate(self.spaces.values()):
            if str(number) in state:
                space.load(state[str(number)], state.get("rank") == self.setting.world.rank)

    def facts(self) -> Mapping[str, Any]:
        every, size = self.options["every"], self.setting.world.size
        moved = sum(space.bytes for space in self.spaces.values())
        return {
            "learning_rate": "yours, unscaled: each worker steps with its own batch",
            "staleness": f"none; replicas drift apart for up to {every} steps",
            "bytes_per_step": round(2 * (size - 1) / max(1, size) * moved * compress.share(self.options) / every),
            "buffers": POLICY,
            "rounds": _told(self.options),
        }


class Space:
    """The parameters of one optimizer: counts its steps and knows when which fragment meets."""

    def __init__(
        self, setting: Setting, rounds: Rounds, number: int, model: nn.Module, optimizer: Optimizer, buffers: Buffers
    ) -> None:
        options = self.options = setting.options
        self.setting, self.rounds, self.optimizer = setting, rounds, optimizer
        self.steps = 0  # alone, since the workers parted
        steps = trained(optimizer)
        named = list(zip(names(model, steps), steps, strict=True))
        label = f"{setting.unit}.{number}"
        self.reducer = compress.reducer(options)
        self.fragments = [
            Fragment(f"{label}.{place}", part, optimizer, options, rounds, self.reducer)
            for place, part in enumerate(cut(named, options["fragments"]))
        ]
        self.fragments[-1].buffers = buffers  # once a round, with the last fragment
        self.together = together.Together(f"{label}.gradients", named, buffers, setting, rounds)

    @property
    def bytes(self) -> int:
        return sum(fragment.layout.bytes for fragment in self.fragments)

    def parts(self) -> list[Fragment | together.Together]:
        return [*self.fragments, self.together]

    def before_step(self) -> None:
        if self.together.on and self.together.step():
            for fragment in self.fragments:
                fragment.begin()

    def after_step(self) -> None:
        if self.together.on:
            return
        self.steps += 1
        for fragment in self.fragments:
            fragment.steps += 1
            if fragment.due == self.steps:
                self._take(fragment)
        every, count = self.options["every"], len(self.fragments)
        for place, fragment in enumerate(self.fragments):
            if self.steps % every == (place + 1) * (every // count) % every:
                self._send(fragment)

    def _send(self, fragment: Fragment) -> None:
        delay = self.options["delay"]
        fragment.send(background=delay > 0)
        fragment.due = self.steps + delay
        if not delay:
            self._take(fragment)

    def _take(self, fragment: Fragment) -> None:
        with self.setting.seeing.waiting_for(f"round {fragment.name} of step {self.steps}"):
            fragment.wait()
        fragment.take(self.options["mix"])

    def settle(self) -> None:
        """Takes what is under way."""
        for fragment in self.fragments:
            if fragment.due is not None:
                self._take(fragment)

    def state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "together": self.together.on,
            "fragments": [fragment.state() for fragment in self.fragments],
            "errors": self.reducer.state() if self.reducer else {},
        }

    def load(self, state: Mapping[str, Any], own: bool) -> None:
        """Errors of compression are each worker's own: one that was not there before has none."""
        self.steps, self.together.on = int(state["steps"]), bool(state["together"])
        for fragment, one in zip(self.fragments, state["fragments"], strict=True):
            fragment.load(one)
        if self.reducer and own:
            self.reducer.load(state["errors"])


def _told(options: Mapping[str, Any]) -> str:
    words = [f"every {options['every']} steps"]
    if options["slowmo"]:
        words.append(f"slow momentum {options['slowmo']:g}")
    elif options["outer"] != "average":
        words.append(f"outer Nesterov, rate {options['outer_lr']:g}, momentum {options['outer_momentum']:g}")
    if options["fragments"] > 1:
        words.append(f"in {options['fragments']} fragments")
    if options["delay"]:
        words.append(f"taken {options['delay']} steps later, mix {options['mix']:g}")
    if options["from_epoch"]:
        words.append(f"gradients averaged every step before epoch {options['from_epoch']}")
    return ", ".join(words)
