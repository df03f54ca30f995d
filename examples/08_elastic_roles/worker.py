"""Worker 2 dies in the middle; the others see the new roster and finish without it."""

import json
import os
import time
from pathlib import Path

member, rank = os.environ["SHOAL_MEMBER"], int(os.environ["SHOAL_RANK"])
roster_file = Path(os.environ["SHOAL_ROSTER"])


def up() -> list[str]:
    """The workers that are left. The file is replaced as a whole, so it can be read at any time."""
    members = json.loads(roster_file.read_text())["members"]
    return [one["name"] for one in members if one["role"] == "worker" and one["state"] == "up"]


print(f"{member} starts with {', '.join(up())}", flush=True)
if rank == 2:
    time.sleep(0.5)
    raise SystemExit("worker-2 gives up")

deadline = time.monotonic() + 60
while len(up()) > 2 or not Path("evaluator.ready").exists():
    if time.monotonic() > deadline:
        raise SystemExit(f"{member} still sees {', '.join(up())} after a minute")
    time.sleep(0.1)
print(f"{member} goes on with {', '.join(up())}", flush=True)
