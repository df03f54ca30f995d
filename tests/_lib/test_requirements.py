"""What files ask for, and when two of them ask for the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal._lib.requirements import Unreadable, find_line, name_of, plain_lines, read
from tests.support.wheels import wheel


def wanted(folder: Path, text: str, name: str = "requirements.txt") -> str:
    (folder / name).write_text(text)
    return read(folder, name).digest


def test_comments_and_blanks_do_not_count(tmp_path: Path) -> None:
    plain = wanted(tmp_path, "six==1.17.0\nnumpy>=2\n")
    assert wanted(tmp_path, "# why\nsix==1.17.0  # pinned\n\n numpy>=2") == plain
    assert wanted(tmp_path, "six==1.17.0\nnumpy>=2.1\n") != plain


def test_a_file_that_is_named_by_another_counts(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("six==1.16.0\n")
    before = wanted(tmp_path, "-r base.txt\n")
    (tmp_path / "base.txt").write_text("six==1.17.0\n")
    assert wanted(tmp_path, "-r base.txt\n") != before


def test_the_content_of_a_local_wheel_counts(tmp_path: Path) -> None:
    wheel(tmp_path, "mine", size=10)
    before = wanted(tmp_path, "./mine-1.0-py3-none-any.whl\n")
    wheel(tmp_path, "mine", size=11)
    assert wanted(tmp_path, "./mine-1.0-py3-none-any.whl\n") != before


def test_files_that_name_each_other_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r requirements.txt\nsix\n")
    assert wanted(tmp_path, "-r a.txt\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("six\n-e .\n", "line 2 of requirements.txt: '-e .' is an editable installation"),
        ("-r nowhere.txt\n", "there is no file nowhere.txt"),
        ("./nowhere.whl\n", "there is no ./nowhere.whl in the job's folder"),
    ],
)
def test_what_cannot_be_shared_or_is_not_there_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        wanted(tmp_path, text)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"six\n\xff\xfe")
    with pytest.raises(Unreadable, match="not text in UTF-8"):
        read(tmp_path, "requirements.txt")


def test_continued_lines_are_one(tmp_path: Path) -> None:
    assert list(plain_lines("six==1.17.0 \\\n  --hash=sha256:00\n\nnumpy\n")) == [
        (1, "six==1.17.0 --hash=sha256:00"),
        (4, "numpy"),
    ]


def test_a_package_is_found_however_its_name_is_written() -> None:
    assert find_line("# x\nScikit_Learn>=1.7\n", "scikit-learn") == (2, "Scikit_Learn>=1.7")
    assert name_of("git+https://example.com/x.git") == ""


PYPROJECT = """
[project]
name = "mine"
requires-python = ">=3.10"
dependencies = ["six==1.17.0"]
optional-dependencies = {train = ["numpy>=2"]}
"""


def test_a_pyproject_gives_its_dependencies_its_extras_and_its_python(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    plain, more = read(tmp_path, "pyproject.toml"), read(tmp_path, "pyproject.toml", ["train"])
    assert (plain.lines, plain.python) == (("six==1.17.0",), ">=3.10")
    assert more.lines == ("six==1.17.0", "numpy>=2") and more.digest != plain.digest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.poetry]\nname = 'x'\n", "has no table \\[project\\]"),
        ("[project]\nname = 'x'\ndynamic = ['dependencies']\n", "dynamic"),
        ("[project\n", "is not TOML"),
    ],
)
def test_a_pyproject_that_says_no_dependencies_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(Unreadable, match=words):
        read(tmp_path, "pyproject.toml")


def test_an_extra_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    with pytest.raises(Unreadable, match="no extra 'gpu'; it has: train"):
        read(tmp_path, "pyproject.toml", ["gpu"])


def test_a_lock_beside_a_pyproject_pins_what_that_asks_for(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "uv.lock").write_text(
        'version = 1\n[[package]]\nname = "six"\nversion = "1.17.0"\nsource = {registry = "https://pypi.org/simple"}\n'
        '[[package]]\nname = "mine"\nversion = "0.1"\nsource = {virtual = "."}\n'
    )
    found = read(tmp_path, "uv.lock")
    assert (found.lines, found.constraints) == (("six==1.17.0",), ("six==1.17.0",))


def test_a_lock_without_its_pyproject_is_refused(tmp_path: Path) -> None:
    (tmp_path / "poetry.lock").write_text("")
    with pytest.raises(Unreadable, match=r"there is none beside it"):
        read(tmp_path, "poetry.lock")


def test_a_pylock_gives_every_package_with_its_hashes_and_markers(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(
        'lock-version = "1.0"\nrequires-python = ">=3.11"\n[[packages]]\nname = "six"\nversion = "1.17.0"\n'
        "marker = \"sys_platform == 'linux'\"\nwheels = [{hashes = {sha256 = 'ab'}}]\n"
    )
    found = read(tmp_path, "pylock.toml")
    assert found.lines == ("six==1.17.0 ; sys_platform == 'linux' --hash=sha256:ab",)
    assert found.python == ">=3.11"
