"""Which interpreter an environment is made with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal._lib.pythons import NoPython, acceptable, admits, find, identity, is_older, own, version_of


@pytest.mark.parametrize(
    ("specifier", "version", "yes"),
    [
        (">=3.8", "3.8", True),
        (">=3.8,<3.9", "3.9", False),
        ("<3.9", "3.8", True),
        ("==3.8.*", "3.8", True),
        ("==3.8", "3.8", True),
        ("!=3.8.*", "3.8", False),
        ("~=3.7", "3.8", True),
        ("~=3.7.2", "3.8", False),
        (">3.8", "3.8", False),
        ("<=3.8", "3.8", True),
        (">=4", "3.8", False),
    ],
)
def test_a_bound_admits_what_it_says(specifier: str, version: str, yes: bool) -> None:
    assert admits(specifier, version) is yes


def test_our_own_patch_version_counts() -> None:
    exact = ".".join(map(str, sys.version_info[:3]))
    assert admits(f">={exact}", own()) and not admits(f">{exact}", own())


def test_text_that_is_no_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="'three' is not a bound"):
        admits("three", "3.8")


def test_our_own_version_comes_first_where_it_will_do() -> None:
    assert acceptable()[0] == own()
    assert own() not in acceptable(pythons=("3.8",))
    assert acceptable(("3.8", own()), "<4") == [own(), "3.8"]


def test_the_identity_depends_on_the_version_and_not_on_the_path() -> None:
    assert identity("3.11") != identity("3.12")
    assert sys.executable not in identity(own())


def test_the_interpreter_is_the_one_behind_a_virtual_environment() -> None:
    found = find([own()], "any")
    assert found.version == own()
    assert Path(found.path).resolve() == Path(sys.executable).resolve() and not _in_venv(found.path)
    assert Path(found.pip).name.startswith("pip-")


def _in_venv(path: str) -> bool:
    return (Path(path).parent.parent / "pyvenv.cfg").exists()


def test_a_version_that_is_not_here_names_those_that_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / "python3.8"
    shim.write_text("#!/bin/sh\nexit 127\n")  # as version managers leave them: there, and leading nowhere
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPython, match=rf"needs Python <3.9, and this node has {own()}, 3.8; install that version"):
        find(["3.8"], "<3.9")


def test_an_interpreter_tells_its_version_by_its_name_or_itself(tmp_path: Path) -> None:
    real = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    copy = tmp_path / "python"
    copy.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    copy.chmod(0o755)
    assert version_of(str(copy)) == ".".join(map(str, sys.version_info[:3]))
    (tmp_path / "python2.7").write_text("")
    assert version_of(str(tmp_path / "python2.7")) == "2.7"


def test_what_is_no_interpreter_tells_nothing(tmp_path: Path) -> None:
    assert version_of("/bin/true") is None and version_of(str(tmp_path / "absent")) is None


@pytest.mark.parametrize(
    ("version", "than", "yes"),
    [("3.9.18", "3.10", True), ("3.10", "3.10", False), ("3.10.1", "3.10", False), ("2.7", "3.9", True)],
)
def test_which_of_two_versions_is_older(version: str, than: str, yes: bool) -> None:
    assert is_older(version, than) is yes
