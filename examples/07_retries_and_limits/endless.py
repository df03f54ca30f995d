"""Works for ever, and saves what it has when it is asked to stop."""

import os
import signal
import sys
import time
from pathlib import Path

steps = 0


def save(*_: object) -> None:
    Path(os.environ["SHOAL_OUTPUTS"], "steps.txt").write_text(f"{steps}\n")
    print(f"asked to stop: saved after {steps} steps", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
print("working for ever", flush=True)
while True:
    time.sleep(0.05)
    steps += 1
