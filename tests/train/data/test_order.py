"""Who reads which places of a common order: everything once, everyone equally often, from any point on."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.data.order import Cut, Layer, remaining

cuts = st.builds(
    Cut,
    count=st.integers(0, 60),
    size=st.integers(1, 6),
    batch=st.integers(1, 6),
    drop_last=st.booleans(),
    even=st.booleans(),
)


def read(cut: Cut) -> list[list[list[int]]]:
    return [list(cut.batches(rank)) for rank in range(cut.size)]


@settings(deadline=None, max_examples=300)
@given(cuts)
def test_every_place_is_read_once_wherever_that_is_possible(cut: Cut) -> None:
    seen = Counter(place for batches in read(cut) for batch in batches for place in batch)
    if cut.drop_last:
        assert all(times == 1 for times in seen.values())
        if cut.even:
            assert len(seen) == cut.count // (cut.size * cut.batch) * cut.size * cut.batch
        return
    assert set(seen) == set(range(cut.count))
    assert sum(seen.values()) - cut.count == cut.repeated()
    if not cut.even or (cut.count >= cut.size and (cut.batch > 1 or cut.count % cut.size == 0)):
        assert cut.repeated() == 0


@settings(deadline=None, max_examples=200)
@given(cuts)
def test_even_workers_do_the_same_number_of_steps(cut: Cut) -> None:
    batches = read(cut)
    assert [len(one) for one in batches] == [cut.steps(rank) for rank in range(cut.size)]
    assert all(1 <= len(batch) <= cut.batch for one in batches for batch in one)
    if cut.even:
        assert len({len(one) for one in batches}) == 1
    if cut.drop_last:
        assert all(len(batch) == cut.batch for one in batches for batch in one)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 8))
def test_a_step_of_all_reads_what_one_process_with_a_large_batch_reads(size: int, batch: int, steps: int) -> None:
    batches = read(Cut(size * batch * steps, size, batch))
    for step in range(steps):
        together = sorted(place for one in batches for place in one[step])
        assert together == list(range(step * size * batch, (step + 1) * size * batch))


@settings(deadline=None, max_examples=200)
@given(cuts, st.data())
def test_what_is_left_goes_on_with_another_number_of_workers(cut: Cut, data: st.DataObject) -> None:
    steps = data.draw(st.integers(0, min(cut.steps(rank) for rank in range(cut.size))))
    done = Counter(place for rank in range(cut.size) for b in list(cut.batches(rank))[:steps] for place in b)
    layer = Layer(cut.size, tuple(cut.taken(rank, steps) for rank in range(cut.size)))
    left = remaining(range(cut.count), [layer])
    if cut.count >= cut.size:
        assert set(left) == set(range(cut.count)) - set(done)
    size = data.draw(st.integers(1, 5))
    again = Cut(len(left), size, cut.batch, even=False)
    second = Counter(left[place] for rank in range(size) for b in again.batches(rank) for place in b)
    assert set(done) | set(second) == set(range(cut.count))


def test_a_worker_that_would_end_early_reads_its_last_batch_in_two_parts() -> None:
    assert read(Cut(count=9, size=2, batch=2)) == [[[0, 2], [4, 6], [8]], [[1, 3], [5], [7]]]


def test_only_a_worker_with_fewer_samples_than_steps_repeats_one() -> None:
    cut = Cut(count=4, size=3, batch=1)
    assert read(cut) == [[[0], [3]], [[1], [1]], [[2], [2]]]
    assert cut.repeated() == 2


def test_nothing_is_no_step() -> None:
    assert read(Cut(count=0, size=2, batch=3)) == [[], []]


def test_two_restarts_leave_two_layers() -> None:
    left = remaining(range(12), [Layer(2, (2, 2)), Layer(3, (1, 0, 1))])
    assert left == [5, 7, 8, 9, 10, 11]
