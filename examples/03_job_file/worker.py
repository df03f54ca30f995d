"""Throws darts at a square, tells the tally how many fell into the circle, and asks what all workers found together.

The tally is another role of the same job. Its address is in SHOAL_HOSTS_TALLY: roles find each other by name.
"""

import json
import os
import random
import time
from urllib.request import urlopen

rank, size = int(os.environ["SHOAL_RANK"]), int(os.environ["SHOAL_SIZE"])
samples = int(os.environ["SAMPLES"])
tally = f"http://{os.environ['SHOAL_HOSTS_TALLY']}"

darts = random.Random(rank)
hits = 0
for number in range(1, samples + 1):
    hits += darts.random() ** 2 + darts.random() ** 2 < 1
    if number % (samples // 10) == 0:
        print(f"progress {number}/{samples} pi={4 * hits / number:.4f}", flush=True)


def ask(path: str) -> dict[str, float]:
    """The tally starts at the same time as the workers, so it may not listen yet."""
    for _ in range(100):
        try:
            with urlopen(f"{tally}/{path}", timeout=10) as answer:
                return json.load(answer)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"the tally at {tally} does not answer")


found = ask(f"add?rank={rank}&hits={hits}&samples={samples}")
while found["parts"] < size:
    time.sleep(0.1)
    found = ask("total")
if rank == 0:
    print(f"{size} workers say: pi is about {4 * found['hits'] / found['samples']:.3f}")
