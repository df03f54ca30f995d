"""Fails when it runs for the first time, and is started again: what it wrote into the job's folder is still there."""

import time
from pathlib import Path

tries = Path("evaluator.tries")
count = int(tries.read_text()) + 1 if tries.exists() else 1
tries.write_text(str(count))
print(f"evaluator, try {count}", flush=True)
if count == 1:
    raise SystemExit("the evaluator fails once")

Path("evaluator.ready").touch()
while True:  # it serves the workers, and is ended when they are done
    time.sleep(1)
