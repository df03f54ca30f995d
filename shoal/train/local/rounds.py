"""When the workers of a group meet: which round it is, who only flushes what it has left, and who runs it.

Every round begins with a word from each member, so that two workers in different rounds are told apart instead of
mixing their numbers. A worker that has ended takes part in the rounds of the others until each of its own parts was in
one, and then leaves. Rounds of one worker run one after another, in a thread of their own where nobody waits for them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.seeing import Seeing

if TYPE_CHECKING:
    from shoal.train.api import Setting
    from shoal.train.group.api import Group

Word = dict[str, Any]  # what a member says when a round begins: round, rank, ends, and what the round needs
Body = Callable[[list[Word]], Any]  # the round itself, given what all said
ROUND, RANK, ENDS = "round", "rank", "ends"


class Part(Protocol):
    """Something with rounds of its own name."""

    def behind(self) -> int:
        """Steps that no round has seen."""
        ...

    def flush(self, said: list[Word]) -> None:
        """Takes part in a round after the end of training, with what there is."""
        ...


_open: dict[int, Rounds] = {}  # by the identity of the group of all workers, until it is left
_lock = threading.Lock()


class Rounds:
    """The rounds of one worker in one group, shared by everything that meets there."""

    def __init__(self, group: Group, main: Group, counted: tuple[Seeing, Seeing] | None = None) -> None:
        self.group, self._main = group, main
        self._counted = counted  # where the group counts its bytes, and where they are wanted
        self.parts: dict[str, Part] = {}
        self._users = 0
        self._orders: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._begun = 0  # and not finished
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @classmethod
    def of(cls, setting: Setting) -> Rounds:
        """The rounds of this worker; one object for all of its models. Collective when first asked for: rounds have a
        group of their own, because they run beside the training, and because who has ended waits in one of them for
        others that go on and agree on other things."""
        main = setting.group()
        with _lock:
            if id(main) not in _open:
                # What runs beside the training must not be taken away from its time: only its bytes are counted.
                apart = Seeing() if setting.options["delay"] else None
                group = _own(setting, main, apart or setting.seeing)
                _open[id(main)] = cls(group, main, (apart, setting.seeing) if apart else None)
            return _open[id(main)]

    def use(self, parts: dict[str, Part]) -> None:
        """One more user. The group is left when all of them have ended."""
        self._users += 1
        self.parts.update(parts)

    def now(self, name: str, word: Word, body: Body) -> Any:
        """Meets and runs the body here, after the rounds that were begun before."""
        with self._lock:
            idle = not self._begun
        return self._meet(name, word, body) if idle else self.begin(name, word, body).result()

    def begin(self, name: str, word: Word, body: Body) -> Future[Any]:
        """The same in the background. What it raises, the future raises."""
        future: Future[Any] = Future()
        with self._lock:
            self._begun += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shoal-rounds", daemon=True)
                self._thread.start()
        self._orders.put((future, lambda: self._meet(name, word, body)))
        return future

    def end(self, well: bool = True) -> None:
        """One user has ended. With the last one, every part that is behind takes part in one more round (unless the
        end is a bad one), and this worker leaves the group."""
        self._users -= 1
        if self._users:
            return
        self._stop_thread()
        if self.group is not self._main:
            self._main.leave()
        # Who ends does not fall with the others: when they are gone it keeps what it has.
        with suppress(PeerLost, WaitedTooLong):
            behind = {name for name, part in self.parts.items() if part.behind()} if well else set()
            while behind:
                behind.discard(self._flush(min(behind)))
        with _lock:
            _open.pop(id(self._main), None)
        self.group.leave()

    def _flush(self, name: str) -> str:
        """Takes part in the round that comes next: that of those who go on, or else the one the first of those who end
        is for. Returns its name."""
        said = self._say({ROUND: name, ENDS: True, RANK: self.group.rank})
        asked = _asked(said)
        self.parts[asked].flush(said)
        return asked

    def _meet(self, name: str, word: Word, body: Body) -> Any:
        said = self._say({**word, ROUND: name, ENDS: False, RANK: self.group.rank})
        _asked(said)
        try:
            return body(said)
        finally:
            self._count()

    def _count(self) -> None:
        if self._counted is not None:
            apart, wanted = self._counted
            with apart.lock:
                sent, received, apart.bytes_sent, apart.bytes_received = apart.bytes_sent, apart.bytes_received, 0, 0
            wanted.sent(sent, received)

    def _say(self, word: Word) -> list[Word]:
        said = self.group.gather(word)
        if not all(isinstance(one, dict) and ROUND in one for one in said):
            raise Disagreement(f"workers are in different exchanges ({said}): do all run the same script?")
        return said

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            future, meeting = order
            try:
                result, error = meeting(), None
            except BaseException as raised:  # travels to whoever waits for the future
                result, error = None, raised
            with self._lock:
                self._begun -= 1
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def _stop_thread(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._orders.put(None)
            thread.join()


def _own(setting: Setting, main: Group, seeing: Seeing) -> Group:
    """Another group of the same workers, where the world tells how to reach them."""
    if not setting.world.secret:
        return main
    from shoal.train.group.choose import make

    return make(setting.world, seeing, "rounds")


def going(said: list[Word]) -> list[Word]:
    """The words of those who go on; of everybody, when all are at their end."""
    return [one for one in said if not one[ENDS]] or said


def _asked(said: list[Word]) -> str:
    """The round that those who go on are in; Disagreement names two that are not in the same."""
    first, *others = going(said) if any(not one[ENDS] for one in said) else said[:1]
    for one in others:
        if one[ROUND] != first[ROUND]:
            raise Disagreement(
                f"worker-{first[RANK]} is in round {first[ROUND]!r}, worker-{one[RANK]} in {one[ROUND]!r}: "
                "all must step the same optimizers in the same order"
            )
    return str(first[ROUND])
