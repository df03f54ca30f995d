"""This worker's rows as the trainers take them: a matrix, labels and weights, agreed with the other workers.

Columns of texts become categories: the number of the text among all texts of the column, in their order, the same on
every worker. Nothing is dropped unless the task says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from shoal.adapters.boost import array_file, columns, csv_file, goal, libsvm_file, parquet_file
from shoal.adapters.boost.columns import Columns, Floats
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.goal import MOST_CLASSES, Goal, Seen
from shoal.adapters.boost.share import Share
from shoal.adapters.boost.task import Task
from shoal.adapters.meeting import Meeting

MOST_CATEGORIES = 1_000
_SPARSE = (".svm", ".libsvm")
_NUMBER = Goal("number")
T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """What every worker's rows have in common."""

    names: tuple[str, ...]
    categories: dict[str, list[str]] = field(default_factory=dict)  # of columns of texts
    label: str = ""
    goal: Goal = _NUMBER

    @property
    def categorical(self) -> list[int]:
        return [number for number, name in enumerate(self.names) if name in self.categories]


@dataclass(frozen=True)
class Table:
    """Some of the rows, with their numbers among all."""

    shape: Shape
    matrix: Any
    label: Floats
    weight: Floats | None
    numbers: NDArray[np.int64]
    total: int  # rows of all workers

    def __len__(self) -> int:
        return len(self.label)

    def pick(self, mask: NDArray[np.bool_]) -> Table:
        weight = None if self.weight is None else self.weight[mask]
        return replace(
            self, matrix=self.matrix[mask], label=self.label[mask], weight=weight, numbers=self.numbers[mask]
        )

    def split(self, share: float) -> tuple[Table, Table]:
        """Training rows, and about that share of all for evaluation: which ones, the number of a row decides alone, so
        it does not depend on the workers."""
        chosen = _mixed(self.numbers.astype(np.uint64)) < int(share * 2**64)
        return self.pick(~chosen), self.pick(chosen)


def load(task: Task, meeting: Meeting, objective: str | None, num_class: int | None, in_turn: bool = False) -> Table:
    """The training rows of this worker. BadData, on all workers alike, when one of them cannot use its part."""
    share = Share(meeting.rank, meeting.size, in_turn)
    if task.data[0].suffix.lower() in _SPARSE:
        return _load_sparse(task, task.data, meeting, share, None, objective, num_class)
    parts = together(meeting, lambda: _columns(task, task.data, meeting, share))
    numbers, total = _count(meeting, [part.count for part in parts], task.data, share)
    found = _joined(parts)
    label, weight, features = together(meeting, lambda: _roles(task, found))
    shape = Shape(tuple(found.names[at] for at in features), label=found.names[label])
    shape = replace(shape, categories=_categories(meeting, shape, [found.cells[at] for at in features]))
    values, seen = _label(meeting, found, label, numbers)
    shape = replace(shape, goal=together(meeting, lambda: goal.decide(shape.label, seen, objective, num_class)))
    return together(meeting, lambda: _table(task, shape, found, features, values, weight, numbers, total))


def load_valid(task: Task, meeting: Meeting, train: Table) -> Table:
    """The rows of the second file, seen as the training rows were."""
    share = Share(meeting.rank, meeting.size)
    if task.valid[0].suffix.lower() in _SPARSE:
        return _load_sparse(task, task.valid, meeting, share, train.shape, None, None)
    parts = together(meeting, lambda: _columns(task, task.valid, meeting, share))
    numbers, total = _count(meeting, [part.count for part in parts], task.valid, share, least=1)
    found = _joined(parts)

    def work() -> Table:
        at = [found.find("valid", name) for name in train.shape.names]
        label = found.find("label", train.shape.label)
        weight = None if task.weight is None else found.find("weight", task.weight)
        return _table(task, train.shape, found, at, found.cells[label], weight, numbers, total)

    return together(meeting, work)


def together(meeting: Meeting, work: Callable[[], T]) -> T:
    """What `work` gives here, once it went well everywhere; what went wrong on one worker is raised on all."""
    result: T | None = None
    wrong = None
    try:
        result = work()
    except BadData as bad:
        wrong = bad.message
    told = [word for word in meeting.gather(wrong) if word]
    if told:
        raise BadData(told[0])
    return result  # type: ignore[return-value]


# -- reading -----------------------------------------------------------------------------------------------------------


def _columns(task: Task, files: tuple[Path, ...], meeting: Meeting, share: Share) -> list[Columns]:
    """This worker's part of every file."""

    def anyone(mine: bool) -> bool:
        return any(meeting.gather(mine))

    parts = [_read(task, path, share, anyone) for path in files]
    for path, part in zip(files, parts, strict=True):
        if part.names != parts[0].names:
            raise BadData(f"{path.name} has other columns than {files[0].name}; give files of one kind")
    return parts


def _read(task: Task, path: Path, share: Share, anyone: Callable[[bool], bool]) -> Columns:
    suffix = path.suffix.lower()
    if path.stat().st_size == 0:
        raise BadData(f"{path.name} is empty; give a file with rows")
    if suffix == ".parquet":
        return parquet_file.read(path, share, task.ignore)
    if suffix in (".npy", ".npz"):
        return array_file.read(path, share)
    return csv_file.read(path, share, anyone, task.header)


def _joined(parts: list[Columns]) -> Columns:
    names = parts[0].names
    cells = tuple(_one([part.cells[at] for part in parts]) for at in range(len(names)))
    return Columns(names, cells, sum(part.count for part in parts))


def _one(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [cell for part in parts for cell in (part.tolist() if isinstance(part, np.ndarray) else part)]


def _count(
    meeting: Meeting, mine: list[int], files: tuple[Path, ...], share: Share, least: int | None = None
) -> tuple[NDArray[np.int64], int]:
    """The numbers of this worker's rows, and how many there are in all; every worker must have one to train on."""
    told = meeting.gather(mine)
    counts = [sum(one) for one in told]
    total, named = sum(counts), ", ".join(path.name for path in files[:3])
    if total == 0:
        raise BadData(f"{named} holds no rows; give a file with some")
    if total < (least or meeting.size):
        raise BadData(f"{named} has {total} rows for {meeting.size} workers; give at most as many workers as rows")
    if least is None and 0 in counts:
        raise BadData(f"worker-{counts.index(0)} got no row of the {total} in {named}; give fewer workers")
    by_file = [[one[at] for one in told] for at in range(len(files))]
    before = np.cumsum([0, *map(sum, by_file)])
    return np.concatenate([share.numbers(one) + before[at] for at, one in enumerate(by_file)]), total


# -- what the columns are ----------------------------------------------------------------------------------------------


def _roles(task: Task, found: Columns) -> tuple[int, int | None, list[int]]:
    """The columns of the label and the weight, and those to learn from."""
    if task.label is None and "y" not in found.names:
        shown = ", ".join(map(repr, found.names[:12])) + (" …" if len(found.names) > 12 else "")
        raise BadData(f"label: say which column is to be predicted; there are {shown}")
    label = found.find("label", task.label if task.label is not None else "y")
    weight = None if task.weight is None else found.find("weight", task.weight)
    ignored = {found.find("ignore", name) for name in task.ignore if name in found.names or not _is_parquet(task)}
    features = [at for at in range(len(found.names)) if at not in {label, weight, *ignored}]
    if not features:
        raise BadData("there is no column left to learn from; give data with more columns, or ignore fewer")
    return label, weight, features


def _is_parquet(task: Task) -> bool:
    return task.data[0].suffix.lower() == ".parquet"  # there, ignored columns are not even read


def _categories(meeting: Meeting, shape: Shape, cells: list[Any]) -> dict[str, list[str]]:
    """The texts of every column that holds some, on any worker."""
    told = meeting.gather([columns.numbers(one) is None for one in cells])
    texts = [at for at in range(len(cells)) if any(one[at] for one in told)]
    mine = {str(at): columns.distinct(columns.texts(cells[at]))[: MOST_CATEGORIES + 1] for at in texts}
    every = meeting.gather(mine)
    found = {shape.names[at]: sorted({text for one in every for text in one[str(at)]}) for at in texts}
    for name, known in found.items():
        if len(known) > MOST_CATEGORIES:
            raise BadData(
                f"the column {name!r} holds more than {MOST_CATEGORIES} different texts, such as {known[0]!r}: that is "
                f"no category; make it a number, or leave it out with params ignore=[{name!r}]"
            )
    return found


def _label(meeting: Meeting, found: Columns, at: int, numbers: NDArray[np.int64]) -> tuple[Any, Seen]:
    """The label's cells, numbers or texts alike on all workers, and its different values."""
    values = columns.numbers(found.cells[at])
    text = any(meeting.gather(values is None))
    cells: Any = columns.texts(found.cells[at]) if text else values
    together(meeting, lambda: _must_be_whole(found.names[at], cells, numbers))
    mine = columns.distinct(cells) if text else np.unique(cells).tolist()
    seen = goal.values_of(meeting.gather(mine[: MOST_CLASSES + 1]), text)
    return cells, seen


def _must_be_whole(name: str, cells: Any, numbers: NDArray[np.int64]) -> None:
    missing = [at for at, cell in enumerate(cells) if cell is None or cell != cell]
    if missing:
        raise BadData(
            f"label: {name!r} is missing in {len(missing)} of this worker's rows, first in row {numbers[missing[0]]} "
            "(from 0): take those rows out, or mend them"
        )


def _table(
    task: Task,
    shape: Shape,
    found: Columns,
    at: list[int],
    label: Any,
    weight: int | None,
    numbers: NDArray[np.int64],
    total: int,
) -> Table:
    matrix = np.empty((found.count, len(at)), dtype=np.float64, order="F")
    for number, (column, name) in enumerate(zip(at, shape.names, strict=True)):
        matrix[:, number] = _feature(shape, name, found.cells[column])
    return Table(
        shape, np.ascontiguousarray(matrix), trained_label(shape, label), _weight(found, weight), numbers, total
    )


def _feature(shape: Shape, name: str, cells: Any) -> Floats:
    if name in shape.categories:
        return columns.codes(columns.texts(cells), shape.categories[name])
    values = columns.numbers(cells)
    if values is None:
        raise BadData(f"valid: the column {name!r} holds texts, and numbers in the training data; make them alike")
    return values


def trained_label(shape: Shape, cells: Any) -> Floats:
    """The label as it is trained: numbers, or the number of each class."""
    classes = shape.goal.classes
    if classes is None:
        values = columns.numbers(cells)
        assert values is not None
        return values
    if isinstance(classes[0], str):
        numbered = columns.codes(columns.texts(cells), [str(one) for one in classes])
    else:
        number = {float(one): float(at) for at, one in enumerate(classes)}
        plain = columns.numbers(cells)
        numbered = np.array([number.get(float(one), np.nan) for one in (plain if plain is not None else [np.nan])])
    if np.isnan(numbered).any():
        raise BadData(f"label: {shape.label!r} has a value in the evaluation rows that no training row has")
    return numbered


def _weight(found: Columns, at: int | None) -> Floats | None:
    if at is None:
        return None
    values = columns.numbers(found.cells[at])
    if values is None or np.isnan(values).any() or (values < 0).any():
        raise BadData(f"weight: {found.names[at]!r} must hold a number of at least 0 in every row")
    return values


# -- sparse files ------------------------------------------------------------------------------------------------------


def _load_sparse(
    task: Task,
    files: tuple[Path, ...],
    meeting: Meeting,
    share: Share,
    shape: Shape | None,
    objective: str | None,
    num_class: int | None,
) -> Table:
    """LibSVM: the label stands first on each line, and columns have numbers only."""
    from scipy.sparse import vstack

    def work() -> list[tuple[Floats, Any]]:
        if task.label not in (None, 0, "0") or task.weight is not None or task.ignore:
            raise BadData("a LibSVM file has its label first and no names: leave label, weight and ignore out")
        return [libsvm_file.read(path, share) for path in files]

    parts = together(meeting, work)
    label = np.concatenate([one for one, _ in parts])
    numbers, total = _count(meeting, [len(one) for one, _ in parts], files, share, least=1 if shape else None)
    widest = max(meeting.gather(max(matrix.shape[1] for _, matrix in parts)))
    width = widest if shape is None else len(shape.names)  # no tree asks for a column that training never saw
    for _, matrix in parts:
        matrix.resize((matrix.shape[0], width))
    if shape is None:
        together(meeting, lambda: _must_be_whole("label", label, numbers))
        seen = goal.values_of(meeting.gather(np.unique(label)[: MOST_CLASSES + 1].tolist()), False)
        names = tuple(map(str, range(width)))
        decided = together(meeting, lambda: goal.decide("label", seen, objective, num_class))
        shape = Shape(names, label="label", goal=decided)
    known = shape
    numbered = together(meeting, lambda: trained_label(known, label))
    return Table(known, vstack([matrix for _, matrix in parts]).tocsr(), numbered, None, numbers, total)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each number as one that looks random, evenly over 64 bits (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
