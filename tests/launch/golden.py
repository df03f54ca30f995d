"""Rendered gangs as files to read: SHOAL_GOLDEN=write makes them anew, to be looked at in the diff."""

import json
import os
from pathlib import Path

from shoal.contract import Process

FOLDER = Path(__file__).with_name("golden")


def check(name: str, processes: dict[str, Process]) -> None:
    text = json.dumps([process.to_dict() for process in processes.values()], indent=2, sort_keys=True) + "\n"
    file = FOLDER / f"{name}.json"
    if os.environ.get("SHOAL_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), f"{file} differs; if that is meant, run again with SHOAL_GOLDEN=write"
