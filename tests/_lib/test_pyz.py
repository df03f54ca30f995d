from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from shoal._lib import pyz


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"made_{tmp_path.name.replace('-', '_')}"
    inner = tmp_path / "src" / name / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("raise SystemExit('must not run')\n")
    (inner / "__init__.py").write_text("")
    (inner / "main.py").write_text("import sys\ndef start():\n    print(__file__, sys.argv[1:])\n    return 7\n")
    # find_spec imports the parent, which here is only allowed in the archive's own, empty form.
    (inner.parent / "__init__.py").write_text(
        "import sys\nif sys.argv[0].endswith('.pyz'): raise SystemExit('must not run')\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "src")
    return name


def test_an_archive_starts_its_function_with_its_arguments(package: str, tmp_path: Path) -> None:
    path = pyz.build(tmp_path / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    done = subprocess.run([sys.executable, "-I", "-S", path, "a", "b"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.strip() == f"{path}/{package}/inner/main.pyc ['a', 'b']"


def test_a_parent_that_is_not_named_is_empty(package: str, tmp_path: Path) -> None:
    path = pyz.build(tmp_path / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    with zipfile.ZipFile(path) as archive:
        assert archive.read(f"{package}/__init__.py") == b""
        assert f"{package}/inner/main.py" in archive.namelist()


def test_the_same_sources_give_the_same_file_also_in_another_process(package: str, tmp_path: Path) -> None:
    first = pyz.build(tmp_path / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(tmp_path / "src")!r})
from shoal._lib import pyz
target = Path({str(tmp_path / "again" / "tool.pyz")!r})
print(pyz.build(target, ["{package}.inner"], main="{package}.inner.main:start"))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    second = Path(said.strip())
    assert second.name == first.name
    assert second.read_bytes() == first.read_bytes()


def test_other_sources_give_another_name(package: str, tmp_path: Path) -> None:
    first = pyz.build(tmp_path / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    (tmp_path / "src" / package / "inner" / "main.py").write_text("def start(): return 8\n")
    second = pyz.build(tmp_path / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    assert first.exists()
    assert second != first


def test_nothing_half_written_is_left(package: str, tmp_path: Path) -> None:
    path = pyz.build(tmp_path / "out" / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    assert list(path.parent.iterdir()) == [path]


def test_a_module_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        pyz.build(tmp_path / "tool.pyz", ["no_such_thing"], main="no_such_thing:main")


def test_a_python_that_reads_other_bytecode_takes_the_source(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.MAGIC_NUMBER", b"\x00\x00\r\n")
    path = pyz.build(tmp_path / "tool.pyz", [f"{package}.inner"], main=f"{package}.inner.main:start")
    done = subprocess.run([sys.executable, "-I", "-S", path], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
