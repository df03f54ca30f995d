"""Which micro-batch a worker of a pipeline computes when, with any number of workers at each stage. Pure.

Papers: Huang et al., *GPipe*, 2018 (1811.06965): all forwards, then all backwards. Narayanan et al., *PipeDream*, 2019
(1806.03377): one forward, one backward (1f1b), so that few activations wait.

The workers of a stage take micro-batches in turn. An order is made by playing the whole pipeline through, so it can be
played: nobody ever waits for somebody who waits for him.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FORWARD, BACKWARD = "forward", "backward"
Action = tuple[str, int]  # what, of which micro-batch


@dataclass
class _Worker:
    stage: int
    mine: list[int]  # micro-batches
    limit: int  # how many may wait for their backward
    done: list[Action] = field(default_factory=list)
    forwards: int = 0
    backwards: int = 0


def owner(microbatch: int, width: int) -> int:
    """Which of the `width` workers of a stage computes a micro-batch."""
    return microbatch % width


def orders(schedule: str, widths: Sequence[int], count: int) -> dict[tuple[int, int], list[Action]]:
    """For every (stage, worker of the stage) what it does, in order."""
    stages, widest = len(widths), max(widths)
    workers = {}
    for stage, width in enumerate(widths):
        for number in range(width):
            mine = list(range(number, count, width))
            limit = len(mine) if schedule == "gpipe" else (stages - stage) * -(-widest // width)
            workers[stage, number] = _Worker(stage, mine, limit)
    over: set[tuple[str, int, int]] = set()  # what, stage, micro-batch
    while any(len(one.done) < 2 * len(one.mine) for one in workers.values()):
        ready = [(one, act) for one in workers.values() if (act := _next(one, stages, over, schedule)) is not None]
        assert ready, "a pipeline that waits for itself"
        for one, (what, number) in ready:  # all at one time: what they make is there for the next round
            one.done.append((what, number))
            one.forwards += what == FORWARD
            one.backwards += what == BACKWARD
        over.update((what, one.stage, number) for one, (what, number) in ready)
    return {place: one.done for place, one in workers.items()}


def _next(worker: _Worker, stages: int, over: set[tuple[str, int, int]], schedule: str) -> Action | None:
    """A backward if one can be, else a forward if not too many wait."""
    all_forward = worker.forwards == len(worker.mine)
    if worker.backwards < worker.forwards and (schedule != "gpipe" or all_forward):
        number = worker.mine[worker.backwards]
        if worker.stage == stages - 1 or (BACKWARD, worker.stage + 1, number) in over:
            return BACKWARD, number
    if not all_forward and worker.forwards - worker.backwards < worker.limit:
        number = worker.mine[worker.forwards]
        if worker.stage == 0 or (FORWARD, worker.stage - 1, number) in over:
            return FORWARD, number
    return None
