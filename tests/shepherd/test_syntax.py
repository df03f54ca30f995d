"""What travels to a node must run there: Python 3.9 syntax, the standard library, and of ours only what travels too."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent
FILES = [*sorted((ROOT / "shepherd").glob("*.py")), *sorted((ROOT / "_lib").glob("*.py"))]
FILES += [ROOT / "contract.py", ROOT / "catalogue.py", ROOT / "errors.py"]
TRAVELS = ("shoal.shepherd", "shoal.contract", "shoal.catalogue", "shoal.errors", "shoal._lib")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_is_python_3_9(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    assert not [node for node in ast.walk(tree) if type(node).__name__ == "Match"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_what_travels_with_it(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.module != "shoal" else [f"shoal.{alias.name}" for alias in node.names]
        for name in names:
            assert name.startswith(TRAVELS) or name.split(".")[0] in sys.stdlib_module_names, name
