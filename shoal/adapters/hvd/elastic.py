"""Elastic training: what is committed survives the loss of workers, and those that are left go on from there.

The function is run again from the last commit, after all that are left have begun anew with new ranks and have been
made alike by `state.sync()`. Where nobody can be left (the role's rule ends the attempt with its rank), the error that
ends the job says who is missing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.errors import HorovodInternalError, HostsUpdatedInterrupt
from shoal.adapters.hvd.objects import broadcast_object

T = TypeVar("T")


class State:
    """What a training function must not lose. The base of states of one's own: `save`, `restore`, `sync`."""

    def __init__(self, bcast_object: Callable[..., Any] = broadcast_object, get_rank: Callable[[], int] = basics.rank):
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """To be called whenever the number of workers has changed: to set the learning rate, for example."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """From here a lost worker is recovered from."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Whether workers were added. In a job none are while it runs: who is lost is noticed by the next operation."""

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """Before `sync`, when the workers have changed."""


class ObjectState(State):
    """Plain objects, given by name and kept as attributes."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = basics.rank,
        **kwargs: Any,
    ) -> None:
        self._saved_state = kwargs
        self._set_attributes()
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attributes()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))


def run_fn(func: Callable[..., T], reset: Callable[[], None]) -> Callable[..., T]:
    """`func(state, ...)` until it returns; `reset` begins anew among those that are left."""

    @functools.wraps(func)
    def run(state: State, *args: Any, **kwargs: Any) -> T:
        skip = False
        while True:
            try:
                if not skip:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                if not basics.is_lost():
                    raise  # nobody is missing: it would only happen again
                state.restore()
                skip = False
            except HostsUpdatedInterrupt as changed:
                skip = changed.skip_sync
            reset()
            state.on_reset()

    return run


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorates the training function, whose first argument is the state."""
    return run_fn(func, basics.again)
