"""Run by `sieve` as a process of its own: tells which lines a regular expression matches, or dies of its time limit.

Standard library only, nothing of ours: it starts in 20 ms and has nothing to lose.
"""

import os
import re
import signal
import struct
import sys
from array import array

_QUESTION = struct.Struct(">dII")  # seconds of CPU, length of the pattern, length of the lines


def main() -> None:
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    os.nice(10)  # the server and the jobs go first
    while len(head := questions.read(_QUESTION.size)) == _QUESTION.size:
        seconds, pattern_length, length = _QUESTION.unpack(head)
        pattern = questions.read(pattern_length).decode("utf-8", "surrogatepass")
        lines = questions.read(length).decode("utf-8", "surrogatepass").split("\n")
        # Nobody handles the signal, so the kernel ends us, also in the middle of a match that Python cannot interrupt.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        search = re.compile(pattern).search
        found = array("I", [number for number, line in enumerate(lines) if search(line)]).tobytes()
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(struct.pack(">I", len(found)) + found)
        answers.flush()


if __name__ == "__main__":
    main()
