"""Prints `PER_SECOND` lines a second for `SECONDS`: each its number and the time it was printed."""

import sys
import time

PER_SECOND, SECONDS = int(sys.argv[1]), int(sys.argv[2])
began = time.monotonic()
for number in range(PER_SECOND * SECONDS):
    time.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
    print(number, time.time(), flush=True)
