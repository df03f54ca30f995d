"""Runs one pickled function on every rank of a job; rank 0 leaves what it returned in result.json.

This file travels with the function: standard library only, any Python 3.9 or newer.
"""

import asyncio
import inspect
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    with open("call.json") as file:
        about = json.load(file)
    if list(sys.version_info[:2]) != about["python"]:
        theirs, ours = ".".join(map(str, about["python"])), ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"{about['function']} was sent from Python {theirs}, this is {ours}; name that one with environment=")
    function, args, kwargs = load()
    value = function(*args, **kwargs)
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    if os.environ.get("SHOAL_ROLE", "worker") == "worker" and os.environ.get("SHOAL_RANK", "0") == "0":
        keep(about["function"], value)


def load() -> Any:
    try:
        with open("call.pkl", "rb") as file:
            # Our own submission, opened in the submitter's own job.
            return pickle.load(file)  # noqa: S301
    except ModuleNotFoundError as missing:
        sys.exit(f"the function needs {missing.name!r}, which {sys.executable} does not have; install it there")


def keep(name: str, value: Any) -> None:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError) as wrong:
        sys.exit(
            f"{name} returned a {type(value).__name__} that cannot be written as JSON ({wrong}); return numbers, text,"
            " lists or dicts of these, and write everything else to files, which 'shoal get' fetches"
        )
    part = Path(".result.json.part")
    part.write_text(text)
    part.replace("result.json")


if __name__ == "__main__":
    main()
