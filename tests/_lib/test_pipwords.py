"""What pip said, made short. The words are what pip 23 and 25 print; real failures are in test_venvs."""

from __future__ import annotations

import pytest

from shoal._lib.pipwords import understand

MISSING = """
      building 'thing._fast' extension
      x86_64-linux-gnu-gcc -Wno-unused-result -c src/fast.c
      error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory
      [end of output]
  note: This error originates from a subprocess, and is likely not a problem with pip.
  ERROR: Failed building wheel for thing
ERROR: Could not build wheels for thing, which is required to install pyproject.toml-based projects
"""
CONFLICT = """
ERROR: Cannot install b==1.0 and c==2.0 because these package versions have conflicting dependencies.
The conflict is caused by:
    The user requested c==2.0
    b 1.0 depends on c<2
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/
"""


def test_a_missing_compiler_names_the_package_and_what_to_install() -> None:
    meaning = understand(MISSING.splitlines())
    assert meaning.package == "thing"
    assert "needs a C compiler: install gcc (Debian and Ubuntu: build-essential)" in meaning.advice


@pytest.mark.parametrize(
    ("line", "tool"),
    [
        ("      unable to execute 'gcc': No such file or directory", "gcc"),
        ("      FileNotFoundError: [Errno 2] No such file or directory: 'g++'", "g++"),
        ("      CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage", "g++"),
        ("      error: can't find Rust compiler", "rustc"),
        ("      RuntimeError: CMake must be installed to build this", "cmake"),
        ("      fatal error: Python.h: No such file or directory", "python3-dev"),
        ("      fatal error: ffi.h: No such file or directory", "-dev package"),
        ("      Error: pg_config executable not found.", "libpq-dev"),
        ("      ../meson.build:1:0: ERROR: Unknown compiler(s): [['cc'], ['gcc'], ['clang']]", "gcc"),
    ],
)
def test_each_tool_is_told(line: str, tool: str) -> None:
    assert tool in understand([line]).advice


def test_a_conflict_is_told_in_pips_words() -> None:
    meaning = understand(CONFLICT.splitlines())
    assert "b 1.0 depends on c<2" in meaning.words and "loosen" in meaning.advice


def test_another_python_is_told() -> None:
    words = ["ERROR: Ignored the following versions that require a different python version: 3.0 >=3.14",
             "ERROR: No matching distribution found for thing==3.0"]  # fmt: skip
    assert "other versions of Python" in understand(words).advice


def test_a_full_disk_is_not_the_requirements_fault() -> None:
    meaning = understand(["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"])
    assert meaning.full and "free room" in meaning.advice


def test_an_index_that_does_not_answer_is_told() -> None:
    words = ["WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/six/",
             "ERROR: No matching distribution found for six"]  # fmt: skip
    assert "the index does not answer" in understand(words).advice


def test_silence_is_told_as_such() -> None:
    assert understand([]).words == "it said nothing"
