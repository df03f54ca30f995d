"""The user's optimizer on a server: torch's own class, one chunk at a time, its state in memory that outlives it.

An optimizer is asked once what it keeps per element and per parameter (the *schema*), so that room can be made for it.
A chunk's state is made by its first step, as torch would, and then moves into the segment.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.train.errors import BadOptimizer
from shoal.train.ps.layout import Chunk
from shoal.train.ps.recipe import Recipe


@dataclass(frozen=True)
class Schema:
    """What an optimizer keeps of a parameter: `vectors` as long as it, `scalars` of one number with its dtype."""

    vectors: tuple[tuple[str, ...], ...] = ()  # names, by parameter group
    scalars: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, recipe: Recipe, dtype: torch.dtype) -> Schema:
        """Found by stepping a tensor of two elements."""
        vectors: list[tuple[str, ...]] = []
        scalars: dict[str, str] = {}
        for group in range(len(recipe.groups)):
            state = _probed(recipe, group, dtype)
            vectors.append(tuple(name for name, value in state.items() if value.ndim))
            scalars.update({name: _dtype(value) for name, value in state.items() if not value.ndim})
        return cls(tuple(vectors), tuple(scalars.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The vectors of any group."""
        return tuple(dict.fromkeys(name for group in self.vectors for name in group))

    def covers(self, other: Schema) -> bool:
        """Whether there is room for what the other keeps."""
        vectors = zip(self.vectors, other.vectors, strict=True)
        return all(set(theirs) <= set(mine) for mine, theirs in vectors) and set(other.scalars) <= set(self.scalars)


@dataclass(frozen=True)
class Home:
    """Where the state of one chunk lies; `row[0]` says whether there is any yet."""

    row: np.ndarray[Any, np.dtype[Any]]
    vectors: dict[str, Tensor]
    scalars: dict[str, Tensor]


class Stepper:
    """Steps chunks. One optimizer per group: whichever chunk is stepped is its only parameter for that moment."""

    def __init__(
        self, recipe: Recipe, chunks: Sequence[Chunk], params: Sequence[Tensor], homes: Sequence[Home]
    ) -> None:
        self._recipe = recipe
        self._chunks, self._params, self._homes = chunks, params, homes
        self._optimizers: dict[int, Optimizer] = {}
        self._states: list[dict[str, Tensor] | None] = [None] * len(chunks)
        # Torch's wrappers around `step` are for profilers and compilers; they cost more than a small step itself.
        self._step: Callable[[Optimizer], Any] = inspect.unwrap(getattr(torch.optim, recipe.name).step)

    def retune(self, recipe: Recipe) -> None:
        """New hyperparameters from the next step on."""
        self._recipe = recipe
        for group, optimizer in self._optimizers.items():
            recipe.tune(group, optimizer)

    def step(self, index: int, gradient: Tensor) -> None:
        """One step of one chunk. Call it under no_grad."""
        param, home = self._params[index], self._homes[index]
        param.grad = gradient
        if home.row[0] or not (home.vectors or home.scalars):
            optimizer = self._of(self._chunks[index].group, param)
            optimizer.param_groups[0]["params"] = [param]
            optimizer.state[param] = self._states[index] or self._known(index)
            self._step(optimizer)
        else:
            optimizer = self._recipe.build(self._chunks[index].group, param)
            self._step(optimizer)
            self._move_in(home, optimizer.state[param])
        param.grad = None

    def _of(self, group: int, param: Tensor) -> Optimizer:
        made = self._optimizers.get(group)
        if made is None:
            made = self._optimizers[group] = self._recipe.build(group, param)
            made.state.clear()
        return made

    def _known(self, index: int) -> dict[str, Tensor]:
        home = self._homes[index]
        state = self._states[index] = {**home.vectors, **home.scalars}
        return state

    def _move_in(self, home: Home, state: dict[str, Tensor]) -> None:
        for name, place in (*home.vectors.items(), *home.scalars.items()):
            if name in state:
                place.copy_(state[name])
        home.row[0] = 1


def _probed(recipe: Recipe, group: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state after two steps; the second must have changed it in place, for there it will be in shared memory."""
    param = torch.ones(2, dtype=dtype)
    param.grad = torch.ones(2, dtype=dtype)
    optimizer = recipe.build(group, param)
    step = inspect.unwrap(type(optimizer).step)
    with torch.no_grad():
        step(optimizer)
        first = {name: value for name, value in optimizer.state[param].items() if isinstance(value, Tensor)}
        step(optimizer)
    for name, value in optimizer.state[param].items():
        if value is not None and value is not first.get(name):
            raise BadOptimizer(f"{recipe.name} of torch {torch.__version__} keeps {name!r} in a way that cannot be "
                               "shared; use another optimizer, or a strategy without servers")  # fmt: skip
    return first


def _dtype(value: Tensor) -> str:
    return str(value.dtype).replace("torch.", "")
