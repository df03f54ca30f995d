"""All servers of a space at once, as one worker sees them.

One server of this node is talked to in the training thread; else each has a thread of its own, so that pushes travel
and are applied at the same time, and some of it during backward.
"""

from __future__ import annotations

import concurrent.futures as futures
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from shoal.train.ps.counterpart import Counterpart

T = TypeVar("T")


class Servers:
    """The counterparts of a space, in order."""

    def __init__(self, every: Sequence[Counterpart]) -> None:
        self._every = list(every)
        self._threads: list[futures.ThreadPoolExecutor] = []
        if len(self._every) > 1 or not all(one.here for one in self._every):
            self._threads = [futures.ThreadPoolExecutor(1, f"shoal-{one.peer.name}") for one in self._every]

    def __iter__(self) -> Iterator[Counterpart]:
        return iter(self._every)

    def __len__(self) -> int:
        return len(self._every)

    def __getitem__(self, at: int) -> Counterpart:
        return self._every[at]

    @property
    def near(self) -> bool:
        """Whether memory is shared with all of them."""
        return all(one.here for one in self._every)

    @property
    def names(self) -> str:
        names = [one.peer.name for one in self._every]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"

    def on_all(self, act: Callable[[Counterpart], T]) -> list[T]:
        """At every server, at the same time. When one fails for good nobody waits for the others."""
        if not self._threads:
            return [act(one) for one in self._every]
        running = [thread.submit(act, one) for one, thread in zip(self._every, self._threads, strict=True)]
        try:
            done, _ = futures.wait(running, return_when=futures.FIRST_EXCEPTION)
            for one in running:
                if one in done:
                    one.result()
        except BaseException:
            self.close()
            raise
        return [one.result() for one in running]

    def later(self, at: int, act: Callable[[], object]) -> None:
        """In the thread of one server, after what it has to do already."""
        if self._threads:
            self._threads[at].submit(act)

    def leave(self) -> None:
        """In good order. Harmless twice."""
        for one in self._every:
            one.leave()
        self._dismiss()

    def close(self) -> None:
        """Hangs up; who waits gets PeerLost. Harmless twice."""
        for one in self._every:
            one.close()
        self._dismiss()

    def _dismiss(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False)
