"""A sparse text file, `label index:value index:value …` on each line, cut among the workers as a CSV file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.adapters.boost.columns import Floats
from shoal.adapters.boost.csv_file import own_lines
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.share import Share


def read(path: Path, share: Share) -> tuple[Floats, Any]:
    """The labels and a sparse matrix, as wide as this worker's largest index asks for."""
    from scipy.sparse import csr_array

    labels: list[float] = []
    starts, indices, values = [0], [], []
    for line in own_lines(path, 0, share):
        words = line.split(b"#")[0].split()
        if not words:
            continue
        try:
            labels.append(float(words[0]))
            for word in words[1:]:
                index, _, value = word.partition(b":")
                indices.append(int(index))
                values.append(float(value))
        except ValueError:
            raise _wrong(path, line) from None
        starts.append(len(indices))
    width = max(indices) + 1 if indices else 0
    matrix = csr_array((np.array(values), np.array(indices, dtype=np.int64), starts), shape=(len(labels), width))
    return np.array(labels), matrix


def _wrong(path: Path, line: bytes) -> BadData:
    if b"qid:" in line:
        return BadData(f"{path.name} holds groups (qid), which are for ranking; write a script for that")
    said = line.decode(errors="replace").strip()
    return BadData(
        f"{path.name}: {said[:80]!r} is no row; write 'label index:value index:value …', all of them numbers"
    )
