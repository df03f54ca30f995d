"""What `import shoal` promises: every public name, and that it is light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import shoal

HEAVY = ("httpx", "pydantic", "torch", "fastapi", "sqlalchemy", "yaml", "rich", "typer", "numpy", "asyncio")
HOMES: dict[str, str] = vars(shoal)["_HOMES"]
SLOW_TO_LIST = ("pydantic", "yaml", "pathspec", "cloudpickle", "rich", "asyncio.runners", "concurrent.futures.thread")


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", shoal.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(shoal, name) is not None
    assert name in dir(shoal)


def test_all_is_complete_and_sorted() -> None:
    assert set(shoal.__all__) == {*HOMES, "__version__"}
    assert shoal.__all__ == sorted(shoal.__all__)


def test_the_types_name_what_there_is() -> None:
    tree = ast.parse(Path(shoal.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [
        (node.module, alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert {name: module for module, name in imports} == HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'submitt'"):
        getattr(shoal, "submitt")  # noqa: B009


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(shoal.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert shoal.__version__ == project["version"]


def test_importing_shoal_imports_nothing_heavy() -> None:
    assert not modules_after("import shoal") & set(HEAVY)


def test_connecting_and_listing_imports_only_what_it_needs() -> None:
    code = "import shoal.client.connect, shoal.client.jobs\nshoal.client.http.Api('http://127.0.0.1:1', 't')"
    assert not modules_after(code) & {*SLOW_TO_LIST, "fastapi", "torch"}


def test_httpx_keeps_its_command_line_for_others() -> None:
    """Only our own import goes without it; a program that wants it can still have it."""
    loaded = modules_after("import shoal.client.http\nimport httpx._main")
    assert "httpx._main" in loaded
