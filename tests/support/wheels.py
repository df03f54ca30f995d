"""Packages small enough to make by hand, so that tests run the real pip and need no index."""

from __future__ import annotations

import base64
import hashlib
import tarfile
import zipfile
from pathlib import Path

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def wheel(
    folder: Path, name: str, version: str = "1.0", *, needs: tuple[str, ...] = (), size: int = 0, **more: str
) -> Path:
    """A wheel with one module that says its version; `size` bytes of ballast; `more` are headers of its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    headers = [f"{key.replace('_', '-')}: {value}" for key, value in more.items()]
    headers += [f"Requires-Dist: {need}" for need in needs]
    files = {
        f"{module}.py": f"VERSION = {version!r}\n".encode(),
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers, ""]
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if size:
        files[f"{module}_ballast.bin"] = bytes(size)
    record = "".join(f"{path},sha256={_hash(content)},{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, content in files.items():
            archive.writestr(place, content)
    return path


def sdist(folder: Path, name: str, backend: str, version: str = "1.0") -> Path:
    """A source archive whose build runs `backend`, the text of a module with build_wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    root = folder / f"{name}-{version}"
    root.mkdir()
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(backend)
    (root / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(root, arcname=root.name)
    return path


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
