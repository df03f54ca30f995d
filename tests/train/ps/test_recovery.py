"""A server may die between any two lines: the next one finishes what was begun, and every push counts exactly once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.train.ps import applier, header, journal, stepper, work
from shoal.train.ps.header import BUSY, NEXT, OPEN
from shoal.train.ps.layout import Layout, ParamInfo
from shoal.train.ps.orders import Apply, Contribution, Drop, Hold, Order
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.shard import ADD, ELASTIC, MEAN, STEP, Shard
from tests.train.ps.shards import whole

FATAL = {module.__file__ for module in (applier, header, journal, stepper, work)}
LAYOUT = Layout.of([ParamInfo("a", 100), ParamInfo("b", 60)], chunk_bytes=256)  # three chunks
PART = LAYOUT.part(0)


class Death(BaseException):
    pass


def dies_at_line(number: int, act: Callable[[], object]) -> bool:
    """Runs until that many lines of the modules that write have begun; whether it died."""
    left = number

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FATAL:
            return None
        if event == "line":
            if left == 0:
                raise Death
            left -= 1
        return trace

    before, grad = sys.gettrace(), torch.is_grad_enabled()
    sys.settrace(trace)
    try:
        act()
    except Death:
        return True
    finally:
        sys.settrace(before)
        torch.set_grad_enabled(grad)  # a death on the last line of a `with` skips its end
    return False


def optimizer(name: str, **options: Any) -> Recipe:
    recipe = Recipe.of(getattr(torch.optim, name)([torch.zeros(2)], lr=1.0, **options))
    assert recipe is not None
    return recipe


def slots() -> dict[int, Tensor]:
    return {worker: whole(worker + 1, PART.count) for worker in range(3)}


def push(worker: int, seq: int, weight: float = 1.0) -> Contribution:
    return Contribution(worker, seq, weight, clock=seq)


MEAN_OF_TWO = Apply((push(0, 3), push(1, 2)), divisor=2.0)
SCALED = Apply((push(0, 3),), scale=0.5)
CASES: dict[str, tuple[str, Recipe | None, list[Order], Order]] = {
    "plain": (STEP, optimizer("SGD"), [], MEAN_OF_TWO),
    "first step": (STEP, optimizer("SGD", momentum=0.5), [], SCALED),
    "momentum": (STEP, optimizer("SGD", momentum=0.5), [Apply((push(2, 1),))], SCALED),
    "adam": (STEP, optimizer("Adam"), [Apply((push(2, 1),))], MEAN_OF_TWO),
    "add": (ADD, None, [], SCALED),
    "elastic": (ELASTIC, None, [], SCALED),
    "mean": (MEAN, None, [], MEAN_OF_TWO),
    "first hold": (STEP, optimizer("SGD"), [], Hold(push(0, 3, 0.5))),
    "second hold": (STEP, optimizer("SGD"), [Hold(push(1, 2))], Hold(push(0, 3, 0.5))),
    "with held": (
        STEP, optimizer("SGD"), [Hold(push(1, 2)), Hold(push(2, 1, 0.5))], Apply((push(0, 3),), 2.5, 2.5 / 3, 2),
    ),
    "only held": (STEP, optimizer("SGD"), [Hold(push(1, 2)), Hold(push(2, 1))], Apply((), 2.0, 1.0, 2)),
    "drop": (STEP, optimizer("SGD"), [], Drop(push(0, 3))),
}  # fmt: skip


def prepared(path: Path, case: str) -> Shard:
    """As the case wants it; made once, and copied for every death."""
    template = path.with_name("template")
    if not template.exists():
        kind, recipe, before, _ = CASES[case]
        shard = Shard.create(template, PART, kind, recipe)
        shard.fill(whole(9, PART.count))
        shard.remember({0: 0, 1: 0, 2: 0})
        for order in before:
            shard.obey(order, slots())
    for file in template.parent.glob("template*"):
        shutil.copyfile(file, path.with_name(file.name.replace("template", path.name)))
    return Shard.open(path)


def begun(case: str) -> int:
    """The first line after which the order is written down: found by dying, as everything here."""
    with tempfile.TemporaryDirectory() as folder:
        for line in range(1000):
            shard = prepared(Path(folder) / "shard", case)
            assert dies_at_line(line, lambda: shard.obey(CASES[case][-1], slots()))  # noqa: B023
            if shard.pending() is not None:
                return line
    raise AssertionError


def seen(shard: Shard, given: dict[int, Tensor]) -> tuple[object, ...]:
    """Everything that a death must not change."""
    dump = shard.dump()
    tensors = {name: flat.tolist() for name, flat in dump.tensors.items()}
    return dump.meta, tensors, {worker: slot.tolist() for worker, slot in given.items()}, shard.resume()


def wreck(shard: Shard, given: dict[int, Tensor], order: Order) -> None:
    """A death in the middle of a copy leaves anything in what was being written."""
    memory = shard._memory
    if not memory.header[BUSY] or memory.header[NEXT] >= len(PART.chunks):
        return
    index = memory.header[NEXT]
    chunk = PART.chunks[index]
    reach = slice(chunk.local, chunk.local + chunk.count)
    if memory.header[OPEN] != index:
        memory.journal.fill_(float("nan"))
        memory.journal_row[:] = -1
    elif isinstance(order, Hold):
        shard._beside.held[reach] = float("nan")
    else:
        memory.params[reach] = float("nan")
        memory.rows[index, 1:] = -1
        for flat in memory.vectors.values():
            flat[reach] = float("nan")
        if shard.applier == ELASTIC:
            given[0][reach] = float("nan")


@pytest.mark.parametrize("case", CASES)
def test_dying_at_any_line_changes_nothing_in_the_end(case: str, tmp_path: Path) -> None:
    order = CASES[case][-1]
    given = slots()
    once = prepared(tmp_path / "once", case)
    once.obey(order, given)
    expected = seen(once, given)
    number = cut_off = redone = 0
    while True:
        shard, given = prepared(tmp_path / "shard", case), slots()
        if not dies_at_line(number, lambda: shard.obey(order, given)):  # noqa: B023
            break
        wreck(shard, given, order)
        shard.close()
        shard = Shard.open(tmp_path / "shard")
        cut_off += shard.pending() is not None
        assert shard.recover(given) and shard.pending() is None
        if shard.resume().seqs.get(0, 0) < 3 and (order != CASES["only held"][-1] or shard.version == 0):
            redone += 1  # it had not begun: the worker sends it again
            shard.obey(order, given)
        assert seen(shard, given) == expected, f"died at line {number}"
        assert not (shard._memory.stamps % 2).any(), "a reader would wait for ever"
        number += 1
    assert redone and (cut_off or isinstance(order, Drop)) and number > 5


def test_dying_again_while_recovering_changes_nothing_either(tmp_path: Path) -> None:
    case, order = "momentum", CASES["momentum"][-1]
    once = prepared(tmp_path / "once", case)
    once.obey(order, slots())
    expected = seen(once, slots())
    for first in (begun("momentum"), begun("momentum") + 37, begun("momentum") + 80):
        number = 0
        while True:
            shard, given = prepared(tmp_path / "shard", case), slots()
            assert dies_at_line(first, lambda: shard.obey(order, given))  # noqa: B023
            shard = Shard.open(tmp_path / "shard")
            if not dies_at_line(number, lambda: shard.recover(given)):  # noqa: B023
                break
            wreck(shard, given, order)
            shard = Shard.open(tmp_path / "shard")
            assert shard.recover(given)
            assert seen(shard, given) == expected
            number += 5


def test_recovery_waits_for_slots_and_pushes_wait_for_recovery(tmp_path: Path) -> None:
    shard = prepared(tmp_path / "shard", "plain")
    assert dies_at_line(begun("plain") + 5, lambda: shard.obey(MEAN_OF_TWO, slots()))
    shard = Shard.open(tmp_path / "shard")
    assert shard.pending() == MEAN_OF_TWO
    assert not shard.recover({0: slots()[0]}) and shard.pending() == MEAN_OF_TWO
    with pytest.raises(RuntimeError, match="recover or abandon"):
        shard.obey(SCALED, slots())
    assert shard.recover(slots()) and shard.version == 1


def test_what_cannot_be_finished_is_undone_or_counted_and_said(tmp_path: Path) -> None:
    start = whole(9, PART.count)
    for line in range(0, 400, 9):
        shard = prepared(tmp_path / "shard", "plain")
        if not dies_at_line(line, lambda: shard.obey(MEAN_OF_TWO, slots())):  # noqa: B023
            break
        shard = Shard.open(tmp_path / "shard")
        pending, done = shard.pending(), shard._memory.header[NEXT]
        told = shard.abandon()
        assert shard.pending() is None and bool(told) == (pending is not None)
        changed = [not torch.equal(shard.params[c.local : c.local + c.count], start[c.local : c.local + c.count])
                   for c in PART.chunks]  # fmt: skip
        if "undone" in told:
            assert not any(changed) and shard.version == 0 and not shard.resume().seqs
        elif told:
            assert changed == [at < done for at in range(3)] and f"after {done} of 3" in told and shard.version == 1
            assert "worker-0, worker-1" in told


def test_a_missing_slot_changes_nothing(tmp_path: Path) -> None:
    shard = prepared(tmp_path / "shard", "plain")
    with pytest.raises(KeyError):
        shard.obey(MEAN_OF_TWO, {0: slots()[0]})
    with pytest.raises(ValueError, match=r"worker-1 pushed 3 elements"):
        shard.obey(MEAN_OF_TWO, {0: slots()[0], 1: torch.zeros(3)})
    assert shard.pending() is None and shard.version == 0
    assert torch.equal(shard.params, whole(9, PART.count))


SERVER = """
import sys, torch
from shoal.train.ps.shard import Shard
from shoal.train.ps.orders import Apply, Contribution
torch.set_num_threads(1)
shard = Shard.open(sys.argv[1])
slots = {0: torch.ones(shard.part.count)}
shard.recover(slots)
seq = shard.resume().seqs.get(0, 0)
print("serving", flush=True)
while True:
    seq += 1
    shard.obey(Apply((Contribution(0, seq, clock=seq),)), slots)
"""


@pytest.mark.real
def test_killed_for_real_again_and_again_it_still_counts_every_push_once(tmp_path: Path) -> None:
    part = Layout.of([ParamInfo("a", 400_000)], chunk_bytes=1 << 16).part(0)
    shard = Shard.create(tmp_path / "shard", part, STEP, optimizer("SGD"))
    shard.fill(torch.zeros(part.count))
    counted = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", SERVER, str(shard.path)], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"serving\n"
        deadline = time.monotonic() + 60
        while shard.version < counted + 50 and time.monotonic() < deadline:
            time.sleep(0.001)
        child.kill()
        child.wait()
        child.stdout.close()
        after = Shard.open(shard.path)
        assert after.recover({0: torch.ones(part.count)})
        counted = after.resume().seqs[0]
        assert counted == after.version > 0
        assert torch.equal(after.params[:400_000], torch.full((400_000,), -float(counted)))
