"""What every strategy must keep, checked from inside a gang of two: `python -m shoal.train.conformance first|again`.

A strategy is done when it passes. All checks of a phase share one launch, because starting interpreters is what costs:
each wraps models of its own in the same run. A check prints `ok <name>`; the first that fails ends the process with its
traceback. `first` ends with a checkpoint, from which `again` goes on.

The checks hold for synchronous and asynchronous strategies alike: gradients that do not depend on the parameters make
the sum of all steps independent of their order, so a `settled` mean over the workers is exact for each of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from shoal import train
from shoal.train.errors import Disagreement, TrainError
from shoal.train.run import Run

Check = Callable[[Run], None]

STEPS = 60
RATE = 0.05
SETTLE = {"easgd": 24}  # steps until what was sent has arrived, where that is more than two: a spring must come to rest


class Line(nn.Module):
    """x · w, the gradient of whose sum is the sum of x, whatever w is."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def wrapped(run: Run, model: nn.Module, rate: float = RATE, **more: Any) -> tuple[Any, SGD]:
    optimizer = SGD(model.parameters(), lr=rate, **more)
    model, same = run.wrap(model, optimizer)
    assert same is optimizer, "wrap gives the same optimizer back"
    return model, optimizer


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def regression(run: Run, count: int = 16) -> tuple[Tensor, Tensor]:
    """Data of this worker's own, with one optimum for all: y = 2a - 3b + 1."""
    made = torch.Generator().manual_seed(run.replica)
    x = torch.rand(count, 2, generator=made) * 2 - 1
    return x, x @ torch.tensor([[2.0], [-3.0]]) + 1


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The state of the whole model; collective under partitions."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def everywhere(run: Run, values: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The values of every worker. Collective, so nobody is ahead of the others afterwards."""
    told = run.group().gather(plain(values))
    return [{name: torch.tensor(value) for name, value in one.items()} for one in told]


def plain(values: dict[str, Tensor]) -> dict[str, Any]:
    """As JSON can hold them."""
    return {name: value.float().tolist() for name, value in values.items()}


def settled(run: Run, model: Any, optimizer: SGD) -> Tensor:
    """The mean of w over the workers once all that was sent has been taken: steps of nothing read it."""
    everywhere(run, {})
    for _ in range(SETTLE.get(run.strategy.name, 2)):
        optimizer.zero_grad()
        (model(torch.zeros(1, 3))).sum().backward()
        optimizer.step()
        everywhere(run, {})
    return torch.stack([one["w"] for one in everywhere(run, whole(model))]).mean(0)


def close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-5))


def push(model: Any, optimizer: SGD, times: int = 1) -> None:
    """The gradient (1, 2, 3) added up `times`, and one step with it."""
    optimizer.zero_grad()
    for _ in range(times):
        model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    optimizer.step()


# -- what every strategy keeps -----------------------------------------------------------------------------------------


def starts_equal(run: Run) -> None:
    torch.manual_seed(run.rank)
    model, _ = wrapped(run, network())
    first, *others = everywhere(run, whole(model))
    for other in others:
        assert all(close(first[name], other[name]) for name in first), "workers start from different values"


def keeps_names_and_objects(run: Run) -> None:
    own = network()
    keys = list(own.state_dict())
    model, optimizer = wrapped(run, own, momentum=0.9)
    assert list(model.state_dict()) == keys, "state_dict has other keys than the user's"
    x, y = regression(run)
    run.step(model, nn.functional.mse_loss, x, y)
    assert list(model.state_dict()) == keys
    assert all(value.isfinite().all() for value in whole(model).values())
    assert optimizer.param_groups[0]["lr"] == RATE


def finds_the_optimum(run: Run) -> None:
    torch.manual_seed(0)
    model, _ = wrapped(run, nn.Sequential(nn.Linear(2, 4, bias=False), nn.Linear(4, 1)), rate=0.1)
    x, y = regression(run)
    first = float(run.step(model, nn.functional.mse_loss, x, y))
    for _ in range(4 * STEPS):
        loss = float(run.step(model, nn.functional.mse_loss, x, y))
    told = everywhere(run, {"loss": torch.tensor([loss])})
    assert all(float(one["loss"]) < 0.02 for one in told), f"from {first} the losses came to {told}"


def explains_itself(run: Run) -> None:
    told = run.explain()
    for name in ("batch", "learning_rate", "staleness", "bytes_per_step", "buffers", "parameters"):
        assert told.get(name) is not None, f"explain() says nothing of {name}"
    assert str(run.strategy.name) in str(told)


def follows_a_scheduler(run: Run) -> None:
    model, optimizer = wrapped(run, network(), rate=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step < 3 else RATE)
    before, (x, y) = whole(model), regression(run)
    for _ in range(3):
        run.step(model, nn.functional.mse_loss, x, y)
        scheduler.step()
    everywhere(run, {})
    assert all(close(before[name], value) for name, value in whole(model).items()), "a rate of 0 moved something"
    for _ in range(3):
        run.step(model, nn.functional.mse_loss, x, y)
    moved = any(not torch.equal(before[name], value) for name, value in whole(model).items())
    assert moved, "the new rate was not used"


# -- what synchronisation strategies keep besides ----------------------------------------------------------------------


def clips(run: Run) -> None:
    model, optimizer = wrapped(run, Line(), rate=1.0)
    before = settled(run, model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[100.0, 200.0, 300.0]])).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.001)
        optimizer.step()
    moved = float((settled(run, model, optimizer) - before).norm())
    assert 0 < moved <= 3 * run.size * 0.001 * 1.01, f"three steps clipped to 0.001 moved {moved}"


def accumulates(run: Run) -> None:
    model, optimizer = wrapped(run, Line())
    start = settled(run, model, optimizer)
    push(model, optimizer)
    once = settled(run, model, optimizer)
    push(model, optimizer, times=2)
    twice = settled(run, model, optimizer)
    assert float((once - start).norm()) > 0.01, "a step moved nothing"
    assert close((once - start) * 2, twice - once), f"moved {once - start}, then {twice - once} with twice the gradient"


def scales_gradients(run: Run) -> None:
    model, optimizer = wrapped(run, Line())
    start = settled(run, model, optimizer)
    push(model, optimizer)
    once = settled(run, model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (1.0, float("inf") if run.rank == 0 else 0.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.tensor([[1.0, 2.0, 3.0]])).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    twice = settled(run, model, optimizer)
    assert close(once - start, twice - once), f"moved {once - start} plainly and {twice - once} under a GradScaler"


def skips_what_is_not_a_number(run: Run) -> None:
    model, optimizer = wrapped(run, Line())
    push(model, optimizer)
    optimizer.zero_grad()
    (model(torch.ones(1, 3)) * (float("nan") if run.rank == 0 else 0.0)).sum().backward()
    optimizer.step()
    assert settled(run, model, optimizer).isfinite().all()


def keeps_two_optimizers_apart(run: Run) -> None:
    own = nn.ModuleDict({"a": Line(), "b": Line()})
    one, two = SGD(own["a"].parameters(), lr=RATE), SGD(own["b"].parameters(), lr=RATE)
    model, same_one, same_two = run.wrap(own, one, two)
    assert same_one is one and same_two is two
    before = whole(model)
    for _ in range(2):
        own["a"](torch.ones(1, 3)).sum().backward()
        own["b"](torch.ones(1, 3)).sum().backward()
        one.step()
        one.zero_grad()
    everywhere(run, {})
    after = whole(model)
    assert not torch.equal(before["a.w"], after["a.w"]) and torch.equal(before["b.w"], after["b.w"])
    for _ in range(2):  # under softsync who came first reads only at the next step what both have made
        two.step()
        everywhere(run, {})
    assert not torch.equal(before["b.w"], whole(model)["b.w"])


def evaluates_closures_once(run: Run) -> None:
    model, optimizer = wrapped(run, Line())
    start, calls = settled(run, model, optimizer), 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss: Tensor = model(torch.tensor([[1.0, 2.0, 3.0]])).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    loss = optimizer.step(closure)
    assert loss is not None and calls == 1
    moved = settled(run, model, optimizer) - start
    assert float(moved.norm()) > 0.01 and close(moved / moved[0], torch.tensor([1.0, 2.0, 3.0]))


class Tied(nn.Module):
    """Two layers with one weight, a frozen one, and a buffer that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.still = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.still.requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.still(self.one(x)))).sum(1, keepdim=True)  # type: ignore[no-any-return]


def keeps_tied_frozen_and_buffers(run: Run) -> None:
    own = Tied()
    model, _ = wrapped(run, own)
    before, (x, y) = whole(model), regression(run)
    for _ in range(3):
        run.step(model, nn.functional.mse_loss, x, y)
    after = whole(model)
    assert own.two.weight is own.one.weight, "tied parameters came apart"
    assert torch.equal(after["one.weight"], after["two.weight"])
    assert not torch.equal(before["one.weight"], after["one.weight"])
    assert torch.equal(before["still.weight"], after["still.weight"]), "a frozen parameter moved"
    assert int(after["norm.num_batches_tracked"]) == 3 and after["norm.running_var"].isfinite().all()


def ends_unevenly(run: Run) -> None:
    """Loaders of different lengths: nobody waits for ever, and all of them end."""
    model, optimizer = wrapped(run, Line())
    batches = [torch.ones(1, 3)] * (5 if run.rank == 0 else 3)
    taken = 0
    for x in run.shard(batches):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        taken += 1
    assert 1 <= taken <= 5


# -- over two launches -------------------------------------------------------------------------------------------------


def trains_and_saves(run: Run, model: Any, optimizer: SGD) -> None:
    x, y = regression(run)
    for epoch in run.epochs(2):
        for rate in (RATE, RATE, RATE, 0.0, 0.0):
            optimizer.param_groups[0]["lr"] = rate
            run.step(model, nn.functional.mse_loss, x, y)
            everywhere(run, {})  # what others sent is read by the steps that change nothing
        run.save(epoch)
    _note(run.world.outputs, run.rank).write_text(json.dumps(plain(whole(model))))


def resumes(run: Run, model: Any) -> None:
    """Each worker has the values it saved, or where all read one checkpoint those of the first."""
    saved = [json.loads(_note(run.world.outputs, rank).read_text()) for rank in {0, run.rank}]
    found = {name: value.flatten() for name, value in whole(model).items()}
    fits = [all(close(found[name], torch.tensor(value).flatten()) for name, value in one.items()) for one in saved]
    assert any(fits), "the values are not those that were saved"
    assert run.tally.step == 10, f"goes on after step {run.tally.step}, not 10"
    assert list(run.epochs(4)) == [2, 3]


def _note(outputs: Path, rank: int) -> Path:
    return outputs / f"expected-{rank}.json"


def refuses_another_model(run: Run) -> None:
    """Workers that wrap different models learn of it at once: at least the one that came second."""
    told = False
    try:
        wrapped(run, nn.Sequential(nn.Linear(2, 3 + run.rank), nn.Linear(3 + run.rank, 1)))
    except Disagreement as refused:
        told = "weight" in refused.message
        assert told, f"does not name the difference: {refused.message}"
    answers = everywhere(run, {"told": torch.tensor([float(told)])})
    assert any(float(one["told"]) for one in answers), "nobody noticed that the models differ"


def goes_on_when_one_leaves(run: Run, model: Any) -> None:
    """The last worker is done three steps before the others, who neither wait for it nor fail."""
    x, y = regression(run)
    for _ in range(3 if run.rank == run.size - 1 else 6):
        run.step(model, nn.functional.mse_loss, x, y)


EVERY: tuple[Check, ...] = (
    starts_equal,
    keeps_names_and_objects,
    finds_the_optimum,
    follows_a_scheduler,
)
SYNCHRONISERS: tuple[Check, ...] = (
    clips,
    accumulates,
    scales_gradients,
    skips_what_is_not_a_number,
    keeps_two_optimizers_apart,
    evaluates_closures_once,
    keeps_tied_frozen_and_buffers,
    ends_unevenly,
)
HANDS_OFF: tuple[Check, ...] = (keeps_names_and_objects, finds_the_optimum)


def checks(strategy: str, family: str) -> tuple[Check, ...]:
    """The checks of the first launch that apply."""
    if strategy == "native":
        return HANDS_OFF
    return EVERY if family == "partition" else (*EVERY, *SYNCHRONISERS)


def _passes(check: Callable[..., None], run: Run, *more: Any) -> None:
    check(run, *more)
    print(f"ok {check.__name__}", flush=True)


def first() -> None:
    with train.start() as run:
        model, optimizer = wrapped(run, network())  # the first of the run: its steps count
        for check in checks(run.strategy.name, run.strategy.kind.family):
            _passes(check, run)
        _passes(explains_itself, run)
        run.tally.step = 0
        _passes(trains_and_saves, run, model, optimizer)
        if run.strategy.name != "native":
            _passes(refuses_another_model, run)


def second() -> None:
    """Another run of the same process finds nothing of the first one."""
    with train.start() as run:
        own = network()
        for parameter in own.parameters():
            nn.init.constant_(parameter, 0.25)
        model, _ = wrapped(run, own)
        everywhere(run, {})
        fresh = all(bool((value == 0.25).all()) for value in whole(model).values())
        assert fresh and run.tally.step == 0 and run.resumed is None, "the second run goes on from the first"
        everywhere(run, {})
        run.step(model, nn.functional.mse_loss, *regression(run))
    print("ok second", flush=True)


def again() -> None:
    with train.start() as run:
        model, _ = wrapped(run, network())
        everywhere(run, {})  # who comes to a training under way takes that, not the checkpoint
        _passes(resumes, run, model)
        everywhere(run, {})
        if run.strategy.kind.family != "partition":
            _passes(goes_on_when_one_leaves, run, model)
    print("ok leaves", flush=True)


def first_and_second() -> None:
    first()
    second()


def main(arguments: Sequence[str]) -> int:
    phases = {"first": first_and_second, "again": again}
    if len(arguments) != 1 or arguments[0] not in phases:
        raise TrainError(f"conformance was given {list(arguments)}: say one of {', '.join(phases)}")
    phases[arguments[0]]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
