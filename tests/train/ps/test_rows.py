"""Rows of a sparse table: the arithmetic of torch's own optimizers, admission, eviction, updates that were cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.errors import UnknownName
from shoal.train.errors import BadModel, Disagreement
from shoal.train.ps import sparse
from shoal.train.ps.rows import Rows, TableInfo


def table(folder: Path, rows: int = 100, dim: int = 4, server: int = 0, servers: int = 1, **more: Any) -> Rows:
    return Rows(folder / f"t{server}", TableInfo("t", rows, dim, **{"optimizer": "sgd", **more}), server, servers)


def numbers(*rows: int) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64)


def whole(rows: int, dim: int) -> Tensor:
    return torch.arange(rows * dim, dtype=torch.float32).view(rows, dim) % 7 - 3


OPTIMIZERS = [
    ("sgd", torch.optim.SGD, {"lr": 0.5}),
    ("adagrad", torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-8}),
    ("adam", torch.optim.SparseAdam, {"lr": 0.01}),
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("name", "peer", "settings"), OPTIMIZERS)
def test_rows_move_as_under_torchs_own_optimizer(tmp_path: Path, name: str, peer: Any, settings: Any) -> None:
    mine = table(tmp_path, 20, 4, optimizer=name, hyper=settings, std=1.0)
    layer = nn.Embedding(20, 4, sparse=True)
    with torch.no_grad():
        layer.weight.copy_(mine.read(torch.arange(20)))
    optimizer = peer(layer.parameters(), **settings)
    for step in range(5):
        ids = torch.unique(torch.randint(0, 20, (9,), generator=torch.Generator().manual_seed(step)))
        grads = whole(len(ids), 4) / 4
        optimizer.zero_grad()
        layer(ids).backward(grads)
        optimizer.step()
        mine.update(ids, grads, {0: step + 1}, {})
    torch.testing.assert_close(mine.read(torch.arange(20), training=False), layer.weight.detach())


def test_a_row_takes_memory_when_it_is_first_used(tmp_path: Path) -> None:
    mine = table(tmp_path, 10_000_000)
    assert mine.facts["rows"] == 0
    mine.read(numbers(3, 9_999_999))
    assert mine.facts["rows"] == 2


def test_what_a_row_begins_with_depends_on_its_number_alone(tmp_path: Path) -> None:
    one = table(tmp_path / "one", 100, std=2.0)
    other = table(tmp_path / "two", 100, server=1, servers=3, std=2.0)
    assert torch.equal(one.read(numbers(1, 4, 7)), other.read(numbers(0, 1, 2)))
    spread = table(tmp_path / "many", 100_000, std=0.5).read(torch.arange(50_000), training=False)
    assert abs(float(spread.std()) - 0.5) < 0.01 and abs(float(spread.mean())) < 0.01


def test_reading_without_training_keeps_nothing(tmp_path: Path) -> None:
    mine = table(tmp_path)
    mine.read(numbers(1, 2), training=False)
    assert mine.used == 0


def test_a_row_is_kept_when_it_was_asked_for_often_enough(tmp_path: Path) -> None:
    mine = table(tmp_path, admit=3)
    before = mine.read(numbers(5))
    mine.update(numbers(5), torch.ones(1, 4), {0: 1}, {})
    assert mine.used == 0 and mine.facts["dropped"] == 1
    mine.read(numbers(5))
    assert torch.equal(mine.read(numbers(5)), before) and mine.used == 1


def test_the_rows_least_asked_for_make_room(tmp_path: Path) -> None:
    mine = table(tmp_path, 1000, keep=10, hyper={"lr": 1.0})
    for _ in range(5):
        mine.read(numbers(*range(5)))  # the popular ones
    mine.update(numbers(*range(5)), torch.ones(5, 4), {0: 1}, {})
    kept = mine.read(numbers(*range(5)))
    for first in range(100, 200, 5):
        mine.read(numbers(*range(first, first + 5)))
        mine.read(numbers(*range(5)))
    assert mine.used <= 10 and mine.facts["evicted"] > 0
    assert torch.equal(mine.read(numbers(*range(5)), training=False), kept)


def test_more_rows_than_are_kept_at_once_are_served_and_the_rest_dropped(tmp_path: Path) -> None:
    mine = table(tmp_path, 1000, keep=10)
    assert mine.read(torch.arange(50)).shape == (50, 4)
    assert mine.used == 10


@given(st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 49), min_size=1, max_size=40))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_another_number_of_servers_finds_every_row_again(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, ids: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    old = [table(folder / "old", 50, server=s, servers=before, optimizer="adagrad") for s in range(before)]
    for step, row in enumerate(ids):
        part = old[row % before]
        part.read(numbers(row // before))
        part.update(numbers(row // before), torch.full((1, 4), float(row + 1)), {0: step + 1}, {})
    new = [table(folder / "new", 50, server=s, servers=after, optimizer="adagrad") for s in range(after)]
    for one in new:
        one.take(part.export() for part in old)
    assert sum(one.used for one in new) == len(set(ids))
    for row in set(ids):
        mine = old[row % before].read(numbers(row // before), training=False)
        assert torch.equal(new[row % after].read(numbers(row // after), training=False), mine)


class Cut(Exception):
    pass


@pytest.mark.parametrize("place", range(5))
def test_an_update_that_was_cut_off_never_happened_and_is_taken_again(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies before, within and after the arithmetic, and between the writes of the head."""
    mine = table(tmp_path, optimizer="adagrad", hyper={"lr": 1.0})
    ids = numbers(1, 2, 3)
    mine.read(ids)
    mine.update(ids, torch.ones(3, 4), {0: 1}, {})
    before, version = mine.read(ids, training=False), mine.version

    real = sparse.SparseOptimizer.step
    if place == 0:
        monkeypatch.setattr(Rows, "_write_journal", _cut)
    elif place == 1:
        monkeypatch.setattr(sparse.SparseOptimizer, "step", _cut)
    elif place == 2:

        def half(self: Any, rows: Tensor, *rest: Any) -> None:
            real(self, rows, *rest)
            mine._all()[:2] = 99.0  # some of the rows are written, then it dies
            raise Cut

        monkeypatch.setattr(sparse.SparseOptimizer, "step", half)
    else:
        head = mine._head
        mine._head = _Dying(head, 1 if place == 3 else 2)
    with pytest.raises(Cut):
        mine.update(ids, torch.ones(3, 4), {0: 2, 3: 7}, {})
    monkeypatch.undo()

    again = table(tmp_path, optimizer="adagrad", hyper={"lr": 1.0})
    assert torch.equal(again.read(ids, training=False), before)
    assert again.version == version and again.seqs() == {0: 1}
    again.update(ids, torch.ones(3, 4), {0: 2, 3: 7}, {})
    assert again.seqs() == {0: 2, 3: 7} and again.version == version + 1


def _cut(*_: Any) -> None:
    raise Cut


class _Dying:
    """The head of a table whose process dies at the n-th write after the arithmetic."""

    def __init__(self, head: Any, after: int) -> None:
        self._head, self._left = head, after + 4  # four writes belong to the journal and the step

    def __getitem__(self, key: Any) -> Any:
        return self._head[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise Cut
        self._head[key] = value


def test_a_table_survives_its_process(tmp_path: Path) -> None:
    mine = table(tmp_path)
    values = mine.read(numbers(1, 50))
    again = table(tmp_path)
    assert again.used == 2 and torch.equal(again.read(numbers(1, 50)), values)


def test_rows_that_are_not_there_are_refused_by_number(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="row 101 is not in table 't' of 100 rows"):
        table(tmp_path, server=1, servers=2).read(numbers(50))
    with pytest.raises(BadModel, match="give more servers"):
        table(tmp_path / "huge", 1 << 40)


def test_two_workers_with_different_tables_are_told_the_first_difference() -> None:
    with pytest.raises(Disagreement, match="dim=8 here and 4"):
        TableInfo("t", 10, 4).check_same(TableInfo("t", 10, 8))


def test_a_wrong_optimizer_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'adagrad'"):
        sparse.make("adagrat", {})


def test_the_sparse_optimizer_is_that_of_the_dense_one() -> None:
    weights = [nn.Parameter(torch.zeros(2))]
    assert sparse.like(torch.optim.SGD(weights, lr=0.3)) == ("sgd", {"lr": 0.3})
    assert sparse.like(torch.optim.AdamW(weights, lr=0.3))[0] == "adam"
    assert sparse.like(torch.optim.RMSprop(weights, lr=0.3)) == ("adagrad", {"lr": 0.3})
