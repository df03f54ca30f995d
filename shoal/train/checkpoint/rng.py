"""The random numbers of a process: where each source stands, put back later, or set aside while others are drawn."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from shoal.train.api import State

_lock = threading.Lock()  # the sources are the process's: two threads must not borrow them at once


def capture(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Where Python's, NumPy's and torch's sources stand, and the given ones."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (str(kind), np.asarray(keys).copy(), int(position), int(has_gauss), float(gauss)),
        "given": [one.get_state() for one in generators],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: State, generators: Sequence[torch.Generator] = ()) -> None:
    """The opposite; a state of a machine with other cards sets those that are here."""
    torch.set_rng_state(_own(state["torch"]))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(state["numpy"]))
    for one, saved in zip(generators, state["given"]):  # noqa: B905 (fewer than were saved is fine)
        one.set_state(_own(saved))
    if "cuda" in state and torch.cuda.is_available():
        for number, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_own(saved), number)


def _own(state: torch.Tensor) -> torch.Tensor:
    """In memory of its own: torch reads it through an aligned pointer, and in a mapped file it may lie anywhere."""
    return state.clone()


@contextmanager
def aside(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Whatever is drawn inside, afterwards all sources stand where they stood."""
    with _lock:
        before = capture(generators)
        try:
            yield
        finally:
            restore(before, generators)


def sow(seed: int, generators: Sequence[torch.Generator] = ()) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    for one in generators:
        one.manual_seed(seed)


def mix(*words: object) -> int:
    """One seed from several words, the same everywhere."""
    text = "/".join(str(word) for word in words)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
