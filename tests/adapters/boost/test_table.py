"""Files of every kind to the same rows, whoever reads how many of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.table import Table, load, load_valid
from shoal.adapters.boost.task import Task, read_task
from tests.adapters.worlds import meet

ROWS = [(n, n * 0.5, ("red", "green", "blue")[n % 3], n % 2) for n in range(23)]


def task(path: Path, **keys: Any) -> Task:
    return read_task(json.dumps({"data": str(path), "label": "y", **keys}))


def tables(made: Task, workers: int, in_turn: bool = False) -> list[Table]:
    def work(meeting: Any) -> Table:
        return load(made, meeting, None, None, in_turn)

    found = meet(workers, work)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if isinstance(one, Table)]


def firsts(part: Table) -> Any:
    return part.matrix[:, 0] if isinstance(part.matrix, np.ndarray) else part.matrix.toarray()[:, 0]


def joined(parts: list[Table]) -> tuple[Any, Any]:
    dense = [part.matrix if isinstance(part.matrix, np.ndarray) else part.matrix.toarray() for part in parts]
    return np.concatenate(dense), np.concatenate([part.label for part in parts])


def write_csv(path: Path, rows: Any = ROWS, header: str = "a,b,colour,y") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


WANTED = np.array([[a, b, {"blue": 0, "green": 1, "red": 2}[colour]] for a, b, colour, _ in ROWS])


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_row_is_read_by_exactly_one_worker_in_order(tmp_path: Path, workers: int) -> None:
    parts = tables(task(write_csv(tmp_path / "rows.csv")), workers)
    matrix, label = joined(parts)
    np.testing.assert_array_equal(matrix, WANTED)
    np.testing.assert_array_equal(label, [y for *_, y in ROWS])
    assert [number for part in parts for number in part.numbers] == list(range(len(ROWS)))
    assert all(len(part) and part.total == len(ROWS) for part in parts)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["csv", "npy", "svm"])
def test_rows_dealt_out_in_turn_are_all_read_once_and_known_by_their_numbers(
    tmp_path: Path, workers: int, kind: str
) -> None:
    file = tmp_path / f"rows.{kind}"
    if kind == "csv":
        write_csv(file)
    elif kind == "npy":
        np.save(file, np.array([[a, y] for a, _, _, y in ROWS]))
    else:
        file.write_text("".join(f"{y} 0:{a}\n" for a, *_, y in ROWS))
    label = {"csv": "y", "npy": 1, "svm": 0}[kind]
    parts = tables(task(file, label=label), workers, in_turn=True)
    seen = sorted((int(n), float(a)) for part in parts for n, a in zip(part.numbers, firsts(part), strict=True))
    assert seen == [(n, float(n)) for n in range(len(ROWS))]
    assert [int(part.numbers[1] - part.numbers[0]) for part in parts] == [workers] * workers


def test_texts_are_categories_that_all_workers_number_alike(tmp_path: Path) -> None:
    rows = [(n, 0, "low." if n < 20 else "high", n % 2) for n in range(10, 30)]  # neither worker sees both
    first, second = tables(task(write_csv(tmp_path / "rows.csv", rows)), 2)
    assert first.shape.categories == second.shape.categories == {"colour": ["high", "low."]}
    assert first.matrix[0, 2] == 1 and second.matrix[-1, 2] == 0


def test_a_column_is_of_texts_on_all_workers_when_it_is_on_one(tmp_path: Path) -> None:
    rows = [(n, 0, n if n < 10 else "x", n % 2) for n in range(20)]
    first, second = tables(task(write_csv(tmp_path / "rows.csv", rows)), 2)
    assert first.shape.categories["colour"] == sorted([*map(str, range(10)), "x"]) == second.shape.categories["colour"]


def test_what_is_missing_is_nan(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("a,b,y\n1,NA,0\n,2,1\n?,nan,1\n")
    (table,) = tables(task(file), 1)
    np.testing.assert_array_equal(np.isnan(table.matrix), [[False, True], [True, False], [True, True]])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_quoted_cell_may_go_over_several_lines(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "rows.csv"
    rows = "".join(f'{n},"two\nlines, {n % 2}",{n % 2}\n' for n in range(12))
    file.write_text("a,t,y\n" + rows)
    parts = tables(task(file), workers)
    assert joined(parts)[0][:, 0].tolist() == list(range(12))
    assert parts[0].shape.categories == {"t": ["two\nlines, 0", "two\nlines, 1"]}


def test_without_a_header_columns_have_numbers(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("1;2;0\n3;4;1\n")
    (table,) = tables(task(file, label=-1), 1)
    assert table.shape.names == ("0", "1") and table.matrix.tolist() == [[1, 2], [3, 4]]
    (named,) = tables(task(file, label="2", params={"header": False}), 1)
    assert named.label.tolist() == [0, 1]


def test_a_column_of_weights_and_those_to_ignore_are_not_learned_from(tmp_path: Path) -> None:
    params = {"weight": "b", "ignore": ["colour"]}
    first, second = tables(task(write_csv(tmp_path / "rows.csv"), params=params), 2)
    assert first.shape.names == ("a",) and second.weight is not None and second.weight[-1] == 11.0


def test_labels_of_any_kind_become_the_numbers_of_their_classes(tmp_path: Path) -> None:
    rows = [(n, 0, 0, "yes" if n % 3 else "no") for n in range(9)]
    first, second = tables(task(write_csv(tmp_path / "rows.csv", rows)), 2)
    assert first.shape.goal == second.shape.goal and first.shape.goal.classes == ("no", "yes")
    assert joined([first, second])[1].tolist() == [float(n % 3 > 0) for n in range(9)]


@pytest.mark.parametrize("kind", ["npy", "npz", "svm", "tsv"])
@pytest.mark.parametrize("workers", [1, 3])
def test_other_files_hold_the_same_rows(tmp_path: Path, kind: str, workers: int) -> None:
    numbers = np.array([[a, b, y] for a, b, _, y in ROWS])
    file, label = tmp_path / f"rows.{kind}", "y"
    if kind == "npy":
        np.save(file, numbers)
        label = "2"
    elif kind == "npz":
        np.savez(file, X=numbers[:, :2], y=numbers[:, 2])
    elif kind == "svm":
        file.write_text("".join(f"{y:g} 0:{a} 1:{b} # said\n" for a, b, y in numbers))
        label = "0"
    else:
        file.write_text("a\tb\ty\n" + "".join(f"{a}\t{b}\t{y}\n" for a, b, y in numbers))
    matrix, found = joined(tables(task(file, label=label), workers))
    np.testing.assert_array_equal(matrix, numbers[:, :2])
    np.testing.assert_array_equal(found, numbers[:, 2])


def test_several_files_are_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_INPUTS", str(tmp_path))
    (tmp_path / "data").mkdir()
    write_csv(tmp_path / "data" / "a.csv", ROWS[:10])
    write_csv(tmp_path / "data" / "b.csv", ROWS[10:])
    made = read_task(json.dumps({"data": "pool://me/data", "label": "y"}))
    matrix, _ = joined(tables(made, 2))
    assert sorted(matrix[:, 0].tolist()) == [row[0] for row in ROWS]


def test_which_rows_are_kept_for_evaluation_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    rows = [(n, 0, 0, n % 2) for n in range(2000)]
    made = task(write_csv(tmp_path / "rows.csv", rows))
    kept = [
        {int(a) for part in tables(made, workers) for a in part.split(0.2)[1].matrix[:, 0]} for workers in (1, 2, 5)
    ]
    assert kept[0] == kept[1] == kept[2] and 340 < len(kept[0]) < 460


def test_a_second_file_is_seen_as_the_first_was(tmp_path: Path) -> None:
    train = write_csv(tmp_path / "train.csv")
    valid = write_csv(tmp_path / "valid.csv", [(1, "blue", 5, 7), (0, "pink", 6, 8)], "y,colour,b,a")
    made = task(train, valid=str(valid))

    def work(meeting: Any) -> Table:
        return load_valid(made, meeting, load(made, meeting, None, None))

    (found,) = meet(1, work)
    assert isinstance(found, Table)
    assert found.matrix[0].tolist() == [7, 5, 0] and np.isnan(found.matrix[1, 2])
    assert found.label.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "keys", "says"),
    [
        ("", {}, "rows.csv is empty"),
        ("a,y\n", {}, "holds no rows"),
        ("a,y\n1,2\n", {}, "has 1 rows for 2 workers"),
        ("a,target\n1,2\n3,4\n", {"label": "taget"}, "label: 'taget' is not a column; did you mean 'target'?"),
        ("a,b\n1,2\n3,4\n", {"label": None}, "say which column is to be predicted; there are 'a', 'b'"),
        ("a,y\n1,0\n2,\n3,1\n", {}, "label: 'y' is missing in 1 of this worker's rows, first in row 1"),
        ("a,y\n1,0\n2,1,5\n3,1\n", {}, "a row has 3 cells instead of 2: '2,1,5'"),
        ("a,a,y\n1,1,1\n2,2,2\n", {}, "'a' occurs twice"),
        ("y\n1\n2\n", {}, "no column left to learn from"),
        ("a,y\n1,0\n2,1\n", {"params": {"weight": "w"}}, "weight: 'w' is not a column; there are 2"),
        ("a,b,y\n1,0,1\n-2,1,0\n", {"params": {"weight": "a"}}, "weight: 'a' must hold a number of at least 0"),
        ("a,y\n1,5\n2,5\n", {}, "is 5.0 in every row"),
        ("n,y\n" + "".join(f"name {i},{i % 2}\n" for i in range(1200)), {}, "more than 1000 different texts"),
    ],
)
def test_bad_data_is_told_alike_by_all_workers(tmp_path: Path, text: str, keys: dict[str, Any], says: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(text)
    for wrong in meet(2, lambda meeting: load(task(file, **keys), meeting, None, None)):
        assert isinstance(wrong, BadData) and says in wrong.message


def test_bytes_that_are_no_text_and_rows_that_are_none_are_told(tmp_path: Path) -> None:
    latin = tmp_path / "rows.csv"
    latin.write_bytes("größe,y\n1,0\n".encode("latin-1"))
    with pytest.raises(BadData, match="not text in UTF-8"):
        tables(task(latin), 1)
    svm = tmp_path / "rows.svm"
    svm.write_text("1 qid:3 1:2\n")
    with pytest.raises(BadData, match="for ranking"):
        tables(task(svm, label=None), 1)
    objects = tmp_path / "rows.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadData, match="objects are not read"):
        tables(task(objects), 1)
