"""The files of a job without a script: found, checked, and sent alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.client.draft import draft
from shoal.client.http import Api
from shoal.client.kinds import LightGBMJob, XGBoostJob
from shoal.client.upload import pack_files, upload_files
from shoal.errors import BadSpec
from tests.client.fake import Chunkery


@pytest.fixture
def rows(project: Path) -> Path:
    (project / "private.txt").write_text("nobody's business")
    file = project / "rows.csv"
    file.write_text("x,y\n1,0\n2,1\n")
    return file


def test_a_file_goes_along_without_its_folder(rows: Path) -> None:
    made = draft({"framework": "xgboost", "data": str(rows), "label": "y"})
    assert (made.spec.data, made.folder, made.files) == ("rows.csv", None, {"rows.csv": rows})
    assert [entry["path"] for entry in pack_files(made.files).entries] == ["rows.csv"]


def test_the_server_gets_the_file_and_nothing_else(rows: Path, api: Api, chunkery: Chunkery) -> None:
    upload_files(api, {"rows.csv": rows})
    assert list(chunkery.chunks.values()) == [rows.read_bytes()]


def test_two_files_of_one_name_do_not_fall_together(rows: Path, tmp_path: Path) -> None:
    other = tmp_path / "rows.csv"
    other.write_text("x,y\n3,1\n")
    made = draft(XGBoostJob(data=rows, valid=other, label="y"))
    assert (made.spec.data, made.spec.valid) == ("rows.csv", "valid-rows.csv")
    assert made.files == {"rows.csv": rows, "valid-rows.csv": other}


def test_with_a_folder_the_file_is_named_inside_it(rows: Path) -> None:
    made = draft(LightGBMJob(data="rows.csv", label="y", folder=rows.parent))
    assert (made.spec.data, made.folder, made.files) == ("rows.csv", rows.parent, {})


def test_in_place_the_file_stays_where_it_is(rows: Path) -> None:
    made = draft({"framework": "xgboost", "data": "rows.csv", "in_place": True}, base=rows.parent)
    assert made.spec.data == str(rows) and made.files == {}


def test_an_address_is_left_to_the_server() -> None:
    made = draft(XGBoostJob(data="pool://me/rows.csv", label="y", valid=0.2, params={"max_depth": 3}))
    assert made.spec.data == "pool://me/rows.csv" and made.files == {} and made.folder is None


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("row.csv", "did you mean rows.csv?"),
        ("private.txt", "of a type that is not read"),
        ("empty.csv", "is empty"),
        (".", "is a folder"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_sent(rows: Path, named: str, says: str) -> None:
    (rows.parent / "empty.csv").touch()
    with pytest.raises(BadSpec) as refused:
        draft({"framework": "xgboost", "data": named, "label": "y"}, base=rows.parent)
    assert says in refused.value.message


def test_a_file_outside_the_folder_is_refused(rows: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(BadSpec, match="is not in the folder"):
        draft({"framework": "xgboost", "data": str(rows)}, folder=other)
