"""What pip's output means: its own words in a few lines, the requirement to blame, and what to do about it."""

from __future__ import annotations

import re
from typing import Iterable, List, NamedTuple, Optional, Tuple

FULL = ("No space left on device", "[Errno 28]", "Disk quota exceeded")
_MOST_WORDS = 4  # lines of pip's that are quoted
_LONGEST = 300  # characters of each

# A program that a build looked for in vain, what it is, and what brings it.
_MISSING = re.compile(
    r"No such file|not found|unable to execute|not set|Unknown compiler|not installed|must be installed|"
    r"can't find|could not find|no acceptable",
    re.IGNORECASE,
)
_TOOLS: Tuple[Tuple[str, str, str], ...] = (
    (r"\b(?:gcc|cc|clang|CMAKE_C_COMPILER|C compiler)\b", "a C compiler", "gcc (Debian and Ubuntu: build-essential)"),
    (r"(?:g\+\+|c\+\+|CMAKE_CXX_COMPILER)", "a C++ compiler", "g++ (Debian and Ubuntu: build-essential)"),
    (r"\b(?:gfortran|Fortran)\b", "a Fortran compiler", "gfortran"),
    (r"\bPython\.h\b", "Python's headers", "python3-dev (Fedora: python3-devel)"),
    (r"\b(?:cargo|rustc|Rust compiler)\b", "a Rust compiler", "rustc and cargo"),
    (r"\bcmake\b", "CMake", "cmake"),
    (r"\b(?:nvcc|CUDA_HOME)\b", "CUDA's compiler", "the CUDA toolkit"),
    (r"\bmpicc\b", "an MPI", "libopenmpi-dev"),
    (r"\bpg_config\b", "PostgreSQL's headers", "libpq-dev"),
    (r"\.h(?:pp)?: No such file", "a header that is not there", "the -dev package that brings it"),
)

_BUILT = (
    r"Failed building wheel for ([\w.-]+)",
    r"Could not build wheels for ([\w.-]+)",
    r"Failed to build '?([\w.-]+)",
    r"╰─> ([\w.-]+)$",
    r"^error in ([\w.-]+) setup command",
    r"^(?:Processing|Collecting) (?:\S*/)?([\w.-]+?)-\d[^\s/]*\.(?:tar\.gz|zip)(?![\s\S]*^(?:Processing|Collecting) )",
    r"Building wheel for ([\w.-]+) \([\w.]+\): finished with status 'error'",
)
_BLAMED = (
    r"No matching distribution found for ([^\s;,<>=!~\[(]+)",
    r"Could not find a version that satisfies the requirement ([^\s;,<>=!~\[(]+)",
    r"Package '([^']+)' requires a different Python",
)
_PYTHON = (r"requires a different Python: (.*)", r"require a different python version: (.*)")
_NETWORK = ("NewConnectionError", "Max retries exceeded", "Temporary failure in name resolution", "ProxyError",
            "Network is unreachable", "ReadTimeoutError", "Connection refused")  # fmt: skip


class Meaning(NamedTuple):
    """`words` are pip's; `package` is the one to blame, where it can be told; `advice` what to do."""

    words: str
    package: str
    advice: str
    full: bool  # the disk


def understand(output: Iterable[str]) -> Meaning:
    lines = [line.strip() for line in output]
    text = "\n".join(lines)
    full = any(mark in text for mark in FULL)
    return Meaning(_words(lines), _package(text), _advice(text, full), full)


def _words(lines: List[str]) -> str:
    said = [line for line in lines if line.startswith("ERROR: ")]
    said += [line for line in lines if re.match(r"error: |[\w.]+Error: ", line) and "subprocess-exited" not in line]
    conflict = [number for number, line in enumerate(lines) if line.startswith("The conflict is caused by")]
    if conflict:
        said += [
            line for line in lines[conflict[0] + 1 : conflict[0] + 6] if " depends on " in line or "requested" in line
        ]
    said = list(dict.fromkeys(said)) or [line for line in lines if line][-2:]
    return "; ".join(line[:_LONGEST] for line in said[:_MOST_WORDS]) or "it said nothing"


def _package(text: str) -> str:
    for pattern in (*_BLAMED, *_BUILT):
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found[1].strip(".,")
    return ""


def _advice(text: str, full: bool) -> str:
    if full:
        return "free room where environments are built, for example with 'shoal env rm', and try again"
    tool = _tool(text)
    if tool is not None:
        missing, package = tool
        return (
            f"it has no wheel for this Python and is built from source, which needs {missing}: install {package} on "
            "the node, or pin a version that has a wheel"
        )
    if any(re.search(pattern, text) for pattern in _PYTHON):
        return "it is made for other versions of Python: pin a version that fits, or name an interpreter that does"
    if any(mark in text for mark in _NETWORK):
        return "the index does not answer: see the node's network, or name another with PIP_INDEX_URL in env"
    if "ResolutionImpossible" in text or "conflicting dependencies" in text:
        return "loosen one of the versions that contradict each other"
    if "DO NOT MATCH THE HASHES" in text:
        return "the file is not the one that was locked: lock again, or see who changed it"
    if "No matching distribution" in text or "Could not find a version" in text:
        return "check the name and the version; a private index is named with PIP_EXTRA_INDEX_URL in env"
    return "read the build's lines in the job's log and mend the requirements"


def _tool(text: str) -> Optional[Tuple[str, str]]:
    for line in filter(_MISSING.search, text.splitlines()):
        for pattern, missing, package in _TOOLS:
            if re.search(pattern, line, re.IGNORECASE):
                return missing, package
    return None
