"""The list of lessons is whole: every lesson is in it and is tested."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTS = Path(__file__).with_name("test_examples.py")


def test_no_lesson_is_missing_from_the_list_or_from_the_tests() -> None:
    lessons = {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir() and folder.name[0].isdigit()}
    listed = set(re.findall(r"\[(\d\d_\w+)\]\(", (EXAMPLES / "README.md").read_text()))
    tested = {match[:2] for match in re.findall(r"def test_(\d\d)_", TESTS.read_text())}
    assert lessons == listed
    assert tested == {name[:2] for name in lessons}


def test_every_file_the_list_names_is_there() -> None:
    for path in re.findall(r"\]\(([\w/.]+)\)", (EXAMPLES / "README.md").read_text()):
        assert (EXAMPLES / path).is_file(), path
