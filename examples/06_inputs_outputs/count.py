"""Counts the words of an input folder: each worker takes every size-th file and leaves its counts in outputs."""

import json
import os
from collections import Counter
from pathlib import Path

rank, size = int(os.environ["SHOAL_RANK"]), int(os.environ["SHOAL_SIZE"])
files = sorted(Path(os.environ["SHOAL_INPUTS"], "words").glob("*.txt"))

counts: Counter[str] = Counter()
for file in files[rank::size]:
    words = file.read_text().split()
    counts.update(words)
    print(f"{file.name}: {len(words)} words")

Path(os.environ["SHOAL_OUTPUTS"], f"counts-{rank}.json").write_text(json.dumps(counts, indent=1))
