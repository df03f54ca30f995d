"""What passes between connections and a space: pushes in, permissions out."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from shoal.train.ps.recipe import Changes

T = TypeVar("T")


@dataclass(frozen=True)
class Granted:
    """A worker may go on."""

    version: int
    tau: int = 0
    dropped: bool = False
    waited_for: int | None = None  # the worker whose push, or leaving, ended the wait


class Ticket(Generic[T]):
    """Something a connection's thread waits for. Ends once: with a value or an error."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def grant(self, value: T) -> None:
        self._value = value
        self._done.set()

    def fail(self, error: BaseException) -> None:
        if not self._done.is_set():
            self._error = error
            self._done.set()

    def wait(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


@dataclass(frozen=True)
class Push:
    """What a worker says of a gradient that lies in its slot."""

    worker: int
    seq: int
    base: int
    clock: int = 0
    changes: Changes | None = None
    reads: bool = True  # the parameters, when it is answered
    heads: int = 1  # workers whose gradients it is the sum of; 0 for a step that was skipped


@dataclass
class Counts:
    """What has happened here since this process serves."""

    staleness: Counter[int] = field(default_factory=Counter)
    waited_for: Counter[int] = field(default_factory=Counter)  # who set others free: a straggler is here often
    pushes: int = 0
    dropped: int = 0
