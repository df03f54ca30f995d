"""What lesson 4 submits: counts to --steps, reports progress, and leaves a file per rank in outputs."""

import argparse
import os
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10)
steps = parser.parse_args().steps

rank = os.environ.get("SHOAL_RANK", "0")
for step in range(1, steps + 1):
    print(f"progress {step}/{steps}", flush=True)

outputs = Path(os.environ.get("SHOAL_OUTPUTS", "outputs"))
outputs.mkdir(exist_ok=True)
(outputs / f"rank-{rank}.txt").write_text(f"{steps} steps\n")
