"""The ledger: every batch is in one place, and all of them are done in the end, whoever is lost on the way."""

from __future__ import annotations

import json
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.data.ledger import Ledger, Range, count, minus, plus


def places(ledger: Ledger, total: int) -> Counter[int]:
    """Of each batch, in how many places it is."""
    seen: Counter[int] = Counter()
    for ranges in (*ledger.held.values(), ledger.back, ledger.done, [(ledger.next, total)]):
        for begin, end in ranges:
            seen.update(range(begin, end))
    return seen


class Epoch:
    """Workers that take, read and die by chance; what was really trained on is written down beside the ledger."""

    def __init__(self, total: int, workers: int, seed: int, deaths: int, known: bool = True) -> None:
        self.total, self.workers = total, workers
        self.ledger = Ledger(total if known else None, largest=5)
        self.chance, self.deaths, self.known = random.Random(seed), deaths, known
        self.alive = [f"worker-{n}" for n in range(workers)]
        self.hands: dict[str, list[Range]] = {}
        self.trained: Counter[int] = Counter()
        self.handed: Counter[int] = Counter()

    def run(self) -> None:
        while not self.ledger.over:
            worker = self.chance.choice(self.alive)
            if self.hands.get(worker):
                self.work(worker)
            else:
                self.take(worker)
            assert places(self.ledger, max(self.total, self.ledger.next)) == Counter(
                range(max(self.total, self.ledger.next))
            )

    def take(self, worker: str) -> None:
        shard = self.ledger.take(worker, self.workers)
        if shard is None:
            return
        begin, end = shard
        self.handed.update(range(begin, min(end, self.total)))
        if end > self.total:
            self.ledger.end(self.total)
            end = self.total
        if begin < end:
            self.hands.setdefault(worker, []).append((begin, end))

    def work(self, worker: str) -> None:
        begin, end = self.hands[worker].pop(0)
        if self.deaths and len(self.alive) > 1 and self.chance.random() < 0.3:
            self.deaths -= 1
            self.trained.update(range(begin, self.chance.randint(begin, end)))  # it had read some of it
            self.alive.remove(worker)
            self.ledger.leave(worker)
            self.hands.pop(worker)
            return
        self.trained.update(range(begin, end))
        self.ledger.finish(worker, [(begin, end)])


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 60), st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_without_deaths_every_batch_is_handed_out_and_trained_on_once(
    total: int, workers: int, seed: int, known: bool
) -> None:
    epoch = Epoch(total, workers, seed, deaths=0, known=known)
    epoch.run()
    assert epoch.trained == epoch.handed == Counter(range(total))
    report = epoch.ledger.report()
    assert report.exactly_once and report.batches == total and not report.lost
    assert "exactly once" in str(report)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 60), st.integers(2, 5), st.integers(0, 10**6), st.integers(1, 4))
def test_with_deaths_every_batch_is_trained_on_at_least_once(total: int, workers: int, seed: int, deaths: int) -> None:
    epoch = Epoch(total, workers, seed, deaths)
    epoch.run()
    assert set(epoch.trained) == set(range(total))
    report = epoch.ledger.report()
    assert report.again == sum(times - 1 for times in epoch.handed.values())
    if max(epoch.trained.values()) > 1:
        assert not report.exactly_once and report.lost
        assert "at least once" in str(report) and report.lost[0] in str(report)


def test_shards_get_smaller_towards_the_end() -> None:
    ledger, sizes = Ledger(total=200), []
    while shard := ledger.take("a", workers=2):
        sizes.append(shard[1] - shard[0])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 16 and sizes[-1] == 1 and sum(sizes) == 200


def test_what_a_worker_does_not_know_of_goes_to_others() -> None:
    ledger = Ledger(total=10, largest=4)
    lost, known = ledger.take("a", 1), ledger.take("a", 1)
    assert lost and known
    ledger.reconcile("a", [known])
    assert ledger.back == [lost] and ledger.held == {"a": [known]}


def test_a_worker_that_was_taken_for_lost_may_still_have_done_it() -> None:
    ledger = Ledger(total=4, largest=4)
    ledger.held["a"], ledger.next = [(0, 4)], 4
    ledger.leave("a")
    assert ledger.take("b", 1) == (0, 4)
    ledger.finish("a", [(0, 2)])
    assert ledger.held == {"b": [(2, 4)]} and ledger.done == [(0, 2)]
    ledger.finish("b", [(0, 4)])
    assert ledger.over and ledger.report().again == 4


def test_a_ledger_can_be_written_down_and_read_again() -> None:
    ledger = Ledger(total=50)
    first = ledger.take("a", 2)
    ledger.take("b", 2)
    assert first
    ledger.finish("a", [(first[0], first[0] + 1)])
    ledger.leave("b")
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger


def test_a_resumed_epoch_hands_out_only_what_was_not_done() -> None:
    ledger = Ledger.resumed(12, 4, [[0, 3], [5, 6]])
    seen: list[int] = []
    while shard := ledger.take("a", 1):
        seen += range(*shard)
        ledger.finish("a", [shard])
    assert seen == [3, 4, 6, 7, 8, 9, 10, 11] and ledger.over and ledger.report().exactly_once


ranges = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 8)).map(lambda one: (one[0], one[0] + one[1])), max_size=6
)


@settings(deadline=None, max_examples=100)
@given(ranges, st.tuples(st.integers(0, 20), st.integers(0, 9)))
def test_ranges_add_and_subtract_like_sets(every: list[Range], pair: Range) -> None:
    one = pair[0], pair[0] + pair[1]
    joined: list[Range] = []
    for other in every:
        joined = plus(joined, other)
    as_set = {n for begin, end in every for n in range(begin, end)}
    assert {n for begin, end in joined for n in range(begin, end)} == as_set
    assert count(joined) == len(as_set)
    assert {n for b, e in minus(joined, one) for n in range(b, e)} == as_set - set(range(*one))
    assert {n for b, e in plus(joined, one) for n in range(b, e)} == as_set | set(range(*one))
