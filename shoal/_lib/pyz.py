"""One file that holds Python modules and starts them: a zip archive with sources, and bytecode for a quick start.

The bytecode is of the Python that builds; another version ignores it and takes the source beside it. The same sources
give the same bytes, and the file's name carries their hash, so a file that exists is never written again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import zipfile
from pathlib import Path
from typing import Dict, Iterable, Iterator, Tuple

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip archive can hold
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: bytecode that never looks for its source's time

_MARSHAL = 2  # the last format without back references, which depend on what else the building process holds


def build(target: Path, modules: Iterable[str], *, main: str) -> Path:
    """Writes `<stem of target>-<hash>.pyz` beside `target` and returns its path; returns at once when it is there.

    `modules` are module names; a package stands for all modules in it, and a parent that is not named itself becomes an
    empty package. `main` is `"module:function"`; what the function returns is the exit status. ModuleNotFoundError
    for a name that does not exist. Safe when several processes build at once.
    """
    content = _archive({**_sources(modules), "__main__.py": _starter(main)})
    path = target.with_name(f"{target.stem}-{hashlib.sha256(content).hexdigest()[:16]}.pyz")
    if not path.exists():
        _write_whole(path, content)
    return path


def _sources(modules: Iterable[str]) -> Dict[str, bytes]:
    found: Dict[str, bytes] = {}
    for name in modules:
        for path, file in _files(name):
            found[path] = file.read_bytes()
    for path in list(found):
        for parent in Path(path).parents:
            if parent.name:
                found.setdefault(f"{parent.as_posix()}/__init__.py", b"")
    return found


def _files(name: str) -> Iterator[Tuple[str, Path]]:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"there is no module {name!r} to put into the archive", name=name)
    origin = Path(spec.origin)
    place = name.replace(".", "/")
    if spec.submodule_search_locations is None:
        yield f"{place}.py", origin
        return
    for file in sorted(origin.parent.rglob("*.py")):
        yield f"{place}/{file.relative_to(origin.parent).as_posix()}", file


def _starter(main: str) -> bytes:
    module, _, function = main.partition(":")
    return f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n".encode()


def _archive(sources: Dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    # Stored, not deflated: it is read once per start, and inflating costs more than the disk.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(sources):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), sources[path])
            archive.writestr(zipfile.ZipInfo(f"{path}c", _EPOCH), _bytecode(path, sources[path]))
    return buffer.getvalue()


def _bytecode(path: str, source: bytes) -> bytes:
    code = compile(source, path, "exec", dont_inherit=True)
    return (
        importlib.util.MAGIC_NUMBER
        + _UNCHECKED_HASH
        + importlib.util.source_hash(source)
        + marshal.dumps(code, _MARSHAL)
    )


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
