"""Which folders an interpreter needs, and that a path which only pretends to be one opens nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engine.interpreters import prefixes


def installation(folder: Path, name: str = "python3.11") -> Path:
    (folder / "lib" / "python3.11").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "os.py").touch()
    (folder / "bin").mkdir()
    (folder / "bin" / name).touch()
    return folder / "bin" / name


def environment(folder: Path, base: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = 3.11\n")
    (folder / "bin" / "python3").symlink_to(base)
    (folder / "bin" / "python").symlink_to("python3")
    return folder / "bin" / "python"


def test_a_virtual_environment_needs_itself_and_what_it_was_made_from(tmp_path: Path) -> None:
    base = installation(tmp_path / "base")
    assert prefixes(str(environment(tmp_path / "venv", base))) == (tmp_path / "venv", tmp_path / "base")


def test_links_on_the_way_to_the_real_interpreter_are_followed(tmp_path: Path) -> None:
    real = installation(tmp_path / "versions" / "3.11")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("../versions/3.11/bin/python3.11")
    assert prefixes(str(tmp_path / "bin" / "python3")) == (tmp_path / "versions" / "3.11",)
    assert prefixes(str(real)) == (tmp_path / "versions" / "3.11",)


def test_a_conda_prefix_is_one(tmp_path: Path) -> None:
    (tmp_path / "env" / "conda-meta").mkdir(parents=True)
    (tmp_path / "env" / "bin").mkdir()
    (tmp_path / "env" / "bin" / "python").touch()
    assert prefixes(str(tmp_path / "env" / "bin" / "python")) == (tmp_path / "env",)


@pytest.mark.parametrize("program", ["keys/bin/python", "keys/x", "gone/bin/python"])
def test_what_is_no_interpreters_folder_is_not_opened(tmp_path: Path, program: str) -> None:
    (tmp_path / "keys" / "bin").mkdir(parents=True)
    (tmp_path / "keys" / "bin" / "python").touch()
    assert prefixes(str(tmp_path / program)) == ()


def test_an_environment_that_names_a_strange_base_opens_itself_only(tmp_path: Path) -> None:
    (tmp_path / "keys" / "bin").mkdir(parents=True)
    (tmp_path / "keys" / "bin" / "python3").touch()
    trap = environment(tmp_path / "venv", tmp_path / "keys" / "bin" / "python3")
    assert prefixes(str(trap)) == (tmp_path / "venv",)


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("python3")
    (tmp_path / "bin" / "python3").symlink_to("python")
    assert prefixes(str(tmp_path / "bin" / "python")) == ()
