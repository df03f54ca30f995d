"""One space on one server while it is served: the rule decides, the shard obeys, workers wait at their tickets.

Everything that happens to a space takes its turn, one at a time and in one order: joining, leaving, pushing, asking,
saving. Torch lets go of the GIL while it computes, so other connections go on receiving meanwhile.

After the death of the process before, an update may be half applied. It is finished first, from the same slots; where
one of them is gone, pushes wait until its worker has sent it again or is known to be lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from torch import Tensor

from shoal.train.errors import PeerLost
from shoal.train.ps.orders import Answer, Apply, Contribution, Order, Resume
from shoal.train.ps.rules import Rule
from shoal.train.ps.shard import Dump, Shard
from shoal.train.ps.tickets import Counts, Granted, Push, Ticket
from shoal.train.ps.turns import Turns
from shoal.train.world import WORKER

T = TypeVar("T")
Make = Callable[[Resume | None], Rule]

_log = logging.getLogger("shoal.train")


class Space:
    """Serves one shard by one rule. Public methods may be called from any thread."""

    def __init__(self, name: str, shard: Shard, make: Make) -> None:
        self.name = name
        self.shard = shard
        self.slots: dict[int, Tensor] = {}  # worker → its gradients over the part; set before its first push
        self.counts = Counts()
        self.changes = 0  # updates, and values that came in other ways, since this process serves
        self.on_change: Callable[[], None] = lambda: None  # called in its turn after each of them
        self._make = make
        self._rule: Rule | None = None  # None while an update of the process before is not finished
        self._tickets: dict[int, Ticket[Granted]] = {}
        self._stashed: list[tuple[Push, Ticket[Granted]]] = []
        self._reads: set[int] = set()  # workers that read the parameters when they are let go
        self._present: set[int] = set()
        self._ended: PeerLost | None = None  # why no worker is served any more
        self._turns = Turns(f"shoal-space-{name}")

    def start(self) -> Space:
        self._turns.start()
        self.call(self._recover)
        return self

    def refuse(self, why: str) -> None:
        """No worker is served any more; who waits gets PeerLost with the reason. The state can still be read."""
        self.call(lambda: self._shut(PeerLost(why)))

    def close(self) -> None:
        """Nothing happens here any more. Harmless twice."""
        self._turns.close()

    # What workers do.

    def push(self, push: Push) -> Granted:
        """Returns when the worker may go on."""
        ticket: Ticket[Granted] = Ticket()
        self._post(ticket, lambda: self._push(push, ticket), of_worker=True)
        return ticket.wait()

    def ask(self, worker: int, clock: int) -> Granted:
        """The same without a gradient: the worker wants to read."""
        ticket: Ticket[Granted] = Ticket()
        self._post(ticket, lambda: self._ask(worker, clock, ticket), of_worker=True)
        return ticket.wait()

    def join(self, worker: int, clock: int = 0) -> tuple[int, int]:
        """The last sequence number taken from this worker, and its clock."""
        return self.call(lambda: self._join(worker, clock))

    def interrupt(self, worker: int) -> None:
        """Who waits for the worker's sake waits no more: it calls anew."""
        self._post(
            Ticket[None](), lambda: self._cancel(worker, "it called again, over another connection"), patient=True
        )

    def leave(self, worker: int, why: str, for_good: bool = False) -> None:
        """Does not wait: the death of a worker must not hold up who reports it. One that left for good has no slot."""
        self._post(Ticket[None](), lambda: self._leave(worker, why, for_good), patient=True)

    def absent(self) -> tuple[int, ...]:
        """Members that are expected and not here (yet)."""
        return self.call(lambda: tuple(one for one in self._members() if one not in self._present))

    @property
    def recovering(self) -> bool:
        """An update of the process before is not finished yet."""
        return self._rule is None

    def fill(self, values: Tensor, again: bool = False) -> None:
        """The first values, flat over the part. Those that come later change nothing, unless they mean to (`again`)."""
        self.call(lambda: self._fill(values, again))

    def load(self, dumps: Sequence[Dump]) -> None:
        """Other values and another version in place of these; the numbers of pushes go on."""
        self.call(lambda: self._load(dumps))

    def call(self, act: Callable[[], T]) -> T:
        """Does something in its turn, between two events, and returns its result."""
        ticket: Ticket[T] = Ticket()
        self._post(ticket, lambda: ticket.grant(act()))
        return ticket.wait()

    def status(self) -> dict[str, Any]:
        """Plain numbers and names, for people."""
        return self.call(self._status)

    # What happens in its turn.

    def _status(self) -> dict[str, Any]:
        rule = self._rule
        waits = {} if rule is None else rule.waits()
        return {
            "version": self.shard.version,
            "initialised": self.shard.initialised,
            "members": list(self._members()),
            "clocks": {} if rule is None else {_name(one): clock for one, clock in sorted(rule.clocks.items())},
            "waits": {_name(one): [_name(other) for other in others] for one, others in waits.items()},
            "staleness": {str(tau): count for tau, count in sorted(self.counts.staleness.items())},
            "waited_for": {_name(one): count for one, count in sorted(self.counts.waited_for.items())},
            "pushes": self.counts.pushes,
            "dropped": self.counts.dropped,
            "recovering": rule is None,
        }

    def _post(
        self, ticket: Ticket[Any], act: Callable[[], None], of_worker: bool = False, patient: bool = False
    ) -> None:
        def guarded() -> None:
            try:
                if of_worker and self._ended is not None:
                    raise self._ended
                act()
            except Exception as error:
                ticket.fail(error)

        if not self._turns.take(guarded, patient):
            ticket.fail(self._ended or PeerLost(f"space {self.name} is closed; its server ends"))

    def _members(self) -> tuple[int, ...]:
        if self._rule is not None:
            return self._rule.members
        pending = self.shard.pending()
        needed = [one.worker for one in _contributions(pending)] if pending else []
        return tuple(sorted({*needed, *self.shard.resume().clocks}))

    def _join(self, worker: int, clock: int) -> tuple[int, int]:
        self._present.add(worker)
        if self._rule is not None:
            self._obey(self._rule.join(worker, clock))
            self.shard.remember(self._rule.clocks)
            return self._rule.seqs.get(worker, 0), self._rule.clocks[worker]
        resume = self.shard.resume()
        return resume.seqs.get(worker, 0), resume.clocks.get(worker, 0)

    def _leave(self, worker: int, why: str, for_good: bool = False) -> None:
        self._part_with(worker, why)
        if for_good and worker not in self._present:
            self.slots.pop(worker, None)
            self.shard.forget(worker)

    def _part_with(self, worker: int, why: str) -> None:
        self._present.discard(worker)
        self._cancel(worker, why)
        if self._ended is not None:
            return
        if self._rule is None:
            self._give_up_on({worker})
            return
        before = self._rule.members
        self._obey(self._rule.leave(worker))
        self.shard.remember(self._rule.clocks)
        if worker in before:
            count = len(self._rule.members)
            rest = f"{count} workers go on" if count > 1 else "1 worker goes on" if count else "nobody is left"
            _log.info("space %s: %s left (%s); %s", self.name, _name(worker), why, rest)

    def _push(self, push: Push, ticket: Ticket[Granted]) -> None:
        if self._rule is None and not self._recover():
            self._stashed.append((push, ticket))
            return
        assert self._rule is not None
        self._cancel(push.worker, "it pushed again")
        self._tickets[push.worker] = ticket
        (self._reads.add if push.reads else self._reads.discard)(push.worker)
        if push.changes:
            self.shard.retune(push.changes, push.clock)
        self.counts.pushes += 1
        self._obey(self._rule.push(push.worker, push.seq, push.base, push.clock, push.heads))

    def _ask(self, worker: int, clock: int, ticket: Ticket[Granted]) -> None:
        if self._rule is None and not self._recover():
            ticket.grant(Granted(self.shard.version))
            return
        assert self._rule is not None
        self._cancel(worker, "it asked again")
        self._tickets[worker] = ticket
        self._reads.add(worker)
        self._obey(self._rule.ask(worker, clock))

    def _obey(self, orders: list[Order]) -> None:
        try:
            for order in orders:
                if isinstance(order, Answer):
                    self._answer(order)
                    continue
                self.shard.obey(order, self.slots)
                if isinstance(order, Apply):
                    self._changed()
        except Exception as error:
            _log.exception("space %s: an update failed", self.name)
            self._begin_again(error)

    def _begin_again(self, error: Exception) -> None:
        """The rule is ahead of the shard, and the shard perhaps half way. Who waits is told why; both begin again from
        what is in memory."""
        for ticket in self._tickets.values():
            ticket.fail(error)
        self._tickets.clear()
        path = self.shard.path
        self.shard.close()
        self.shard = Shard.open(path)
        left = self.shard.abandon()
        if left:
            _log.warning("space %s: %s", self.name, left)
        self._begin()

    def _changed(self) -> None:
        self.changes += 1
        self.on_change()

    def _fill(self, values: Tensor, again: bool) -> None:
        if again or not self.shard.initialised:
            self.shard.fill(values)
            self._changed()

    def _load(self, dumps: Sequence[Dump]) -> None:
        self.shard.load(dumps)
        self._changed()
        for ticket in self._tickets.values():
            ticket.fail(PeerLost("other values were loaded meanwhile; push again"))
        self._tickets.clear()
        self._begin()

    def _answer(self, answer: Answer) -> None:
        if answer.seq:
            self.counts.staleness[answer.tau] += 1
            self.counts.dropped += answer.dropped
        if answer.released_by is not None:
            self.counts.waited_for[answer.released_by] += 1
        ticket = self._tickets.pop(answer.worker, None)
        if ticket is not None:
            if answer.worker in self._reads:
                self.shard.note_read(answer.worker)
            ticket.grant(Granted(self.shard.version, answer.tau, answer.dropped, answer.released_by))

    def _cancel(self, worker: int, why: str) -> None:
        tickets = [ticket for push, ticket in self._stashed if push.worker == worker]
        self._stashed = [(push, ticket) for push, ticket in self._stashed if push.worker != worker]
        if worker in self._tickets:
            tickets.append(self._tickets.pop(worker))
        for ticket in tickets:
            ticket.fail(PeerLost(f"{_name(worker)} is not waited for any more: {why}", [_name(worker)]))

    def _shut(self, why: PeerLost) -> None:
        self._ended = why
        for ticket in [*self._tickets.values(), *(ticket for _push, ticket in self._stashed)]:
            ticket.fail(why)
        self._tickets.clear()
        self._stashed.clear()

    # After the death of the process before.

    def _recover(self) -> bool:
        """Whether there is a rule now: what was cut off is finished, if there was anything."""
        pending = self.shard.pending()
        if not self.shard.recover(self.slots):
            return False
        if pending is not None:
            _log.info("space %s: finished the update that was cut off, at version %d", self.name, self.shard.version)
        self._begin()
        return True

    def _give_up_on(self, lost: Collection[int]) -> None:
        """Workers whose slots were needed will not come back."""
        pending = self.shard.pending()
        if pending is not None and not self.shard.recover(self.slots):
            needed = [one.worker for one in _contributions(pending)]
            if not set(needed) & set(lost):
                return
            _log.warning("space %s: an update was cut off and cannot be finished: %s", self.name, self.shard.abandon())
        self._begin()
        for worker in lost:
            self._leave(worker, "it did not come back")

    def give_up_on(self, lost: Collection[int]) -> None:
        """Members that were not seen again after a restart are taken for dead."""
        self._post(
            Ticket[None](), lambda: self._give_up_on(lost) if self.recovering else self._leave_all(lost), patient=True
        )

    def _leave_all(self, lost: Collection[int]) -> None:
        for worker in lost:
            if worker not in self._present:
                self._leave(worker, "it did not come back")

    def _begin(self) -> None:
        self._rule = self._make(self.shard.resume())
        for worker in self._present:
            self._obey(self._rule.join(worker))
        self.shard.remember(self._rule.clocks)
        stashed, self._stashed = self._stashed, []
        for push, ticket in stashed:
            self._post(ticket, lambda push=push, ticket=ticket: self._push(push, ticket))  # type: ignore[misc]


def _contributions(order: Order) -> tuple[Contribution, ...]:
    if isinstance(order, Apply):
        return order.contributions
    return () if isinstance(order, Answer) else (order.contribution,)


def _name(worker: int) -> str:
    return f"{WORKER}-{worker}"
