"""Writes lines as fast as they are taken: `flood.py MEGABYTES`. Each has its number and text that does not repeat soon.

Made before the first write, so that only writing is measured; `content` gives the same bytes to whoever compares.
"""

import os
import random
import sys
from collections.abc import Iterable, Iterator

LINE = 100  # bytes, with its newline
BLOCK = 1_000_000  # bytes of one write
_TEXTS = 4096  # different endings: more than a compressor looks back


def content(megabytes: int) -> Iterator[bytes]:
    """The blocks of the whole output, in order."""
    draw = random.Random(7)
    words = [f" loss {draw.random():.8f} grad {draw.random():.8f} norm {draw.random():.8f}" for _ in range(_TEXTS)]
    texts = [word.ljust(LINE - 11, ".").encode() + b"\n" for word in words]
    per_block = BLOCK // LINE
    for block in range(megabytes):
        first = block * per_block
        yield b"".join([b"%010d%s" % (number, texts[number % _TEXTS]) for number in range(first, first + per_block)])


def write_all(blocks: Iterable[bytes]) -> None:
    for block in blocks:
        rest = memoryview(block)
        while rest:
            rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    write_all(list(content(int(sys.argv[1]))))
