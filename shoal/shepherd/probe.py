"""Runs inside the ranks' interpreter, not in the shepherd: prints as JSON what is installed there.

Also says by which folders one can tell that this is still true. Anything from Python 3.8 on, standard library only.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

MARK = "shoal-probe "
LIMIT = 20  # seconds
_CUDA = re.compile(r"^cuda\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def look() -> Dict[str, Any]:
    """Name → version of every distribution, the first on the path winning as it does for `import`."""
    from importlib import metadata

    packages: Dict[str, str] = {}
    sources: Dict[str, List[str]] = {}
    cuda = None
    for found in metadata.distributions():
        try:
            name, version = found.metadata["Name"], found.version
        except Exception:  # half removed or damaged: pip lists it no more than we do
            continue
        plain = re.sub(r"[-_.]+", "-", name or "").lower()
        if not plain or not version or plain in packages:
            continue
        packages[plain] = str(version)
        source = _source(found)
        if source:
            sources[plain] = source
        if plain == "torch":
            cuda = _cuda(found)
    return {
        "path": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "packages": packages,
        "sources": sources,
        "cuda": cuda,
        "marks": _marks(),
    }


def _source(found: Any) -> Optional[List[str]]:
    """How, from where and at which commit it was installed, when that was no index (PEP 610)."""
    text = found.read_text("direct_url.json")
    if not text:
        return None
    told = json.loads(text)
    vcs = told.get("vcs_info") or {}
    return [str(vcs.get("vcs", "")), str(told.get("url", "")), str(vcs.get("commit_id", ""))]


def _cuda(found: Any) -> Optional[str]:
    """The version torch was built for, read from its source: importing it takes seconds."""
    try:
        with open(str(found.locate_file("torch/version.py")), encoding="utf-8") as file:
            told = _CUDA.search(file.read())
    except OSError:
        return None
    return told.group(1) if told else None


def _marks() -> Dict[str, int]:
    """Path → time of change; what is installed or removed changes the folder it lies in."""
    places = [*map(Path, sys.path), Path(os.path.realpath(sys.executable)), Path(sys.prefix, "pyvenv.cfg")]
    return {str(place): place.stat().st_mtime_ns for place in places if place.exists()}


if __name__ == "__main__":
    os.nice(10)
    signal.alarm(LIMIT)
    sys.path[:] = [place for place in sys.path if place]  # without the current folder, which is no one's packages
    print(MARK + json.dumps(look()))
