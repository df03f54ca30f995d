"""All-reduce: the mean gradient of all workers at every step, whatever the script does between backward and step.

Values are whole numbers and rates powers of two, so that equality is exact.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from shoal.train.errors import BadModel, Disagreement, PeerLost
from shoal.train.group.threads import ThreadGroup
from shoal.train.sync import ahead
from shoal.train.sync.ahead import Rhythm
from shoal.train.sync.allreduce import AllReduce
from shoal.train.sync.native import Native
from tests.train.ranks import lone, run_ranks, setting
from tests.train.support import run_world

SIZE = 2
BATCH, WIDTH = 4, 3


class Counting(ThreadGroup):
    """Counts what is asked of it."""

    reduced = 0
    numbers = 0

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        self.reduced += 1
        self.numbers += tensor.numel()
        super().all_reduce(tensor, op)


class Net(nn.Module):
    """Two layers and a buffer; gradients of whole numbers are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 2, bias=False), nn.Linear(WIDTH, 2, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) % 3)

    def forward(self, x: Tensor, part: str = "both") -> Tensor:
        if part == "one":
            return self.one(x)  # type: ignore[no-any-return]
        return self.one(x) + 2 * self.two(x)  # type: ignore[no-any-return]


def data(rank: int, number: int = 0) -> Tensor:
    return ((torch.arange(BATCH * WIDTH) * (rank + 2) + number) % 7).float().view(BATCH, WIDTH)


def everyone(number: int = 0) -> Tensor:
    return torch.cat([data(rank, number) for rank in range(SIZE)])


def loss_of(output: Tensor) -> Tensor:
    return output.sum() / len(output)


Loop = Callable[[nn.Module, Any, Callable[[int], Tensor]], None]
Made = Callable[[], tuple[nn.Module, list[Optimizer]]]


def made() -> tuple[nn.Module, list[Optimizer]]:
    model = Net()
    return model, [SGD(model.parameters(), lr=0.25, momentum=0.5)]


class Hooked:
    """A synchroniser at work, hooked to its optimizers as a run would hook it."""

    def __init__(self, rank: int, group: ThreadGroup, make: Made, strategy: str) -> None:
        self.sync = AllReduce(setting(strategy, lone(group.size, rank), group))
        self.model, self.optimizers = make()
        assert self.sync.attach(self.model, self.optimizers) is self.model
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(lambda one, args, kwargs: self.sync.before_step(one))
            optimizer.register_step_post_hook(lambda one, args, kwargs: self.sync.after_step(one))


def trained(loop: Loop, make: Made = made, strategy: str = "allreduce") -> list[dict[str, Tensor]]:
    """The state of every worker after the loop, each with its own part of the data."""
    groups = [Counting(one._table, one.rank, one.seeing, 20.0) for one in ThreadGroup.make(SIZE)]

    def work(rank: int) -> dict[str, Tensor]:
        hooked = Hooked(rank, groups[rank], make, strategy)
        loop(hooked.model, hooked.optimizers, lambda number: data(rank, number))
        hooked.sync.finish()
        groups[rank].leave()
        return copy.deepcopy(hooked.model.state_dict())

    return run_ranks(SIZE, work)


def alone(loop: Loop, make: Made = made) -> dict[str, Tensor]:
    """The state of one process with everybody's data."""
    model, optimizers = make()
    loop(model, optimizers, everyone)
    return model.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def equals_alone(loop: Loop, make: Made = made, strategy: str = "allreduce") -> None:
    expected = alone(loop, make)
    assert not same(expected, make()[0].state_dict()), "nothing was trained"
    for state in trained(loop, make, strategy):
        assert same(state, expected), (state, expected)


# -- what the script does between backward and step --------------------------------------------------------------------


def plainly(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(4):
        optimizers[0].zero_grad()
        loss_of(model(batch(number))).backward()
        optimizers[0].step()


def with_clipping(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(3):
        optimizers[0].zero_grad()
        loss_of(model(batch(number))).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizers[0].step()


def keeping_gradients(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(3):
        optimizers[0].zero_grad(set_to_none=False)
        loss_of(model(batch(number))).backward()
        optimizers[0].step()


def accumulating(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for step in range(5):
        optimizers[0].zero_grad()
        for part in range(4):
            (loss_of(model(batch(4 * step + part))) / 4).backward()
        optimizers[0].step()


def accumulating_unevenly(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for parts in (2, 2, 2, 1, 3, 2, 2, 4, 2, 2):
        optimizers[0].zero_grad()
        for part in range(parts):
            loss_of(model(batch(part))).backward()
        optimizers[0].step()


def backward_twice_over_two_forwards(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(3):
        optimizers[0].zero_grad()
        first, second = loss_of(model(batch(number))), loss_of(model(batch(number + 1)))
        first.backward()
        second.backward()
        optimizers[0].step()


def two_forwards_one_backward(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(3):
        optimizers[0].zero_grad()
        (loss_of(model(batch(number))) + loss_of(model(batch(number + 1)))).backward()
        optimizers[0].step()


def calling_submodules(model: Any, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(3):
        optimizers[0].zero_grad()
        loss_of(model.one(batch(number))).backward()
        if number == 1:
            loss_of(model(batch(number))).backward()
        optimizers[0].step()


def looking_at_validation(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(3):
        optimizers[0].zero_grad()
        loss_of(model(batch(number))).backward()
        optimizers[0].step()
        with torch.no_grad():
            model.eval()(batch(number))
        model.train()(batch(number))  # with a graph, but without a backward


def scaled(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for number in range(3):
        optimizers[0].zero_grad()
        scaler.scale(loss_of(model(batch(number)))).backward()
        scaler.unscale_(optimizers[0])
        scaler.step(optimizers[0])
        scaler.update()


@pytest.mark.parametrize(
    "loop",
    [
        plainly,
        with_clipping,
        keeping_gradients,
        accumulating,
        accumulating_unevenly,
        backward_twice_over_two_forwards,
        two_forwards_one_backward,
        calling_submodules,
        looking_at_validation,
        scaled,
    ],
)
def test_equals_one_process_with_the_whole_batch(loop: Loop) -> None:
    equals_alone(loop)


@pytest.mark.parametrize("loop", [plainly, with_clipping, accumulating_unevenly, calling_submodules])
def test_equals_it_too_when_a_thread_carries_the_buckets(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "cores_to_spare", lambda workers: True)
    equals_alone(loop, strategy="allreduce:bucket=0.001")
    equals_alone(loop, strategy="allreduce:compress=bf16")


@pytest.mark.parametrize("bucket", ["0.001", "0.00002", "25"])
def test_the_size_of_buckets_changes_nothing(bucket: str) -> None:
    equals_alone(plainly, strategy=f"allreduce:bucket={max(0.001, float(bucket))}")


def test_accumulation_costs_one_exchange_to_a_step_once_it_is_known() -> None:
    numbers: list[int] = []

    def loop(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
        for _ in range(6):
            optimizers[0].zero_grad()
            for part in range(4):
                loss_of(model(batch(part))).backward()
            optimizers[0].step()

    groups = [Counting(one._table, one.rank, one.seeing, 20.0) for one in ThreadGroup.make(SIZE)]

    def work(rank: int) -> None:
        hooked = Hooked(rank, groups[rank], made, "allreduce")
        for _ in range(6):
            before = groups[rank].reduced
            hooked.optimizers[0].zero_grad()
            for part in range(4):
                loss_of(hooked.model(data(rank, part))).backward()
            hooked.optimizers[0].step()
            if rank == 0:
                numbers.append(groups[rank].reduced - before)

    run_ranks(SIZE, work)
    assert numbers == [4, 4, 1, 1, 1, 1]


def test_two_optimizers_of_one_model() -> None:
    def both() -> tuple[nn.Module, list[Optimizer]]:
        model = Net()
        return model, [SGD(model.one.parameters(), lr=0.25), SGD(model.two.parameters(), lr=0.5)]

    def loop(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
        for number in range(4):
            loss_of(model(batch(number))).backward()
            for optimizer in optimizers if number % 2 else optimizers[:1]:
                optimizer.step()
                optimizer.zero_grad()

    equals_alone(loop, both)


def test_two_optimizers_with_losses_of_their_own() -> None:
    def both() -> tuple[nn.Module, list[Optimizer]]:
        model = Net()
        return model, [SGD(model.one.parameters(), lr=0.25), SGD(model.two.parameters(), lr=0.5)]

    def loop(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
        for number in range(3):
            for optimizer, part in zip(optimizers, ("one", "both"), strict=True):
                optimizer.zero_grad()
                loss_of(model(batch(number), part)).backward()
                optimizer.step()

    equals_alone(loop, both, "allreduce:unused=true")


# -- models ------------------------------------------------------------------------------------------------------------


def partly(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
    for number in range(4):
        optimizers[0].zero_grad()
        loss_of(model(batch(number), part="one" if number < 3 else "both")).backward()
        optimizers[0].step()


def test_unused_parameters_are_named() -> None:
    with pytest.raises(BadModel, match=r"two\.weight took no part in the last loss.*allreduce:unused=true"):
        trained(partly)


def test_unused_parameters_are_named_when_the_script_accumulates() -> None:
    def loop(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
        for number in range(2):
            loss_of(model(batch(number), part="one")).backward()

    with pytest.raises(BadModel, match=r"two\.weight took no part"):
        trained(loop)


def test_unused_parameters_when_asked_for() -> None:
    equals_alone(partly, strategy="allreduce:unused=true")


def test_frozen_parameters_stay_and_may_be_thawed() -> None:
    def frozen() -> tuple[nn.Module, list[Optimizer]]:
        model = Net()
        model.two.requires_grad_(False)
        return model, [SGD(model.parameters(), lr=0.25)]

    def loop(model: Any, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
        before = model.two.weight.clone()
        for number in range(6):
            if number == 3:
                assert torch.equal(model.two.weight, before)
                model.two.requires_grad_(True)
                model.one.requires_grad_(False)
            optimizers[0].zero_grad()
            loss_of(model(batch(number))).backward()
            optimizers[0].step()

    equals_alone(loop, frozen)


def test_parameters_that_no_optimizer_steps_are_left_alone() -> None:
    def half() -> tuple[nn.Module, list[Optimizer]]:
        model = Net()
        return model, [SGD(model.one.parameters(), lr=0.25)]

    groups = [Counting(one._table, one.rank, one.seeing, 20.0) for one in ThreadGroup.make(SIZE)]

    def work(rank: int) -> int:
        hooked = Hooked(rank, groups[rank], half, "allreduce")
        loss_of(hooked.model(data(rank))).backward()
        hooked.optimizers[0].step()
        return groups[rank].numbers

    assert run_ranks(SIZE, work) == [WIDTH * 2] * SIZE


def test_a_tied_parameter_is_exchanged_once() -> None:
    def tied() -> tuple[nn.Module, list[Optimizer]]:
        model = Net()
        model.two.weight = model.one.weight
        return model, [SGD(model.parameters(), lr=0.25)]

    equals_alone(plainly, tied)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_kinds_of_numbers(dtype: torch.dtype) -> None:
    def other() -> tuple[nn.Module, list[Optimizer]]:
        model = Net().to(dtype)
        return model, [SGD(model.parameters(), lr=0.25)]

    def loop(model: nn.Module, optimizers: Any, batch: Callable[[int], Tensor]) -> None:
        optimizers[0].zero_grad()
        (model(batch(0).to(dtype)).sum() / len(batch(0))).backward()
        optimizers[0].step()

    equals_alone(loop, other)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDTH, 2), nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.zeros(20_000))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) + self.mask[0]  # type: ignore[no-any-return]


def test_buffers_are_those_of_the_lowest_worker_after_a_step() -> None:
    groups = [Counting(one._table, one.rank, one.seeing, 20.0) for one in ThreadGroup.make(SIZE)]

    def normed() -> tuple[nn.Module, list[Optimizer]]:
        model = Normed()
        return model, [SGD(model.parameters(), lr=0.25)]

    def work(rank: int) -> tuple[dict[str, Tensor], Tensor]:
        hooked = Hooked(rank, groups[rank], normed, "allreduce")
        for number in range(3):
            hooked.optimizers[0].zero_grad()
            loss_of(hooked.model(data(rank, number))).backward()
            own = hooked.model.norm.running_mean.clone()
            if number == 1 and rank == 0:
                hooked.model.mask.fill_(5)
            before = groups[rank].seeing.bytes_sent
            hooked.optimizers[0].step()
        assert groups[rank].seeing.bytes_sent - before < 1000, "the mask is sent though nobody changed it"
        return {name: one.clone() for name, one in hooked.model.named_buffers()}, own

    (first, mine), (second, other) = run_ranks(SIZE, work)
    assert same(first, second)
    assert torch.equal(first["norm.running_mean"], mine) and not torch.equal(second["norm.running_mean"], other)
    assert float(second["mask"][0]) == 5.0


# -- the model stays the user's ----------------------------------------------------------------------------------------


def test_the_model_stays_the_users_object() -> None:
    def work(rank: int) -> None:
        model = Net()
        hooked = Hooked(rank, groups[rank], lambda: (model, [SGD(model.parameters(), lr=0.25)]), "allreduce")
        seen: list[str] = []
        before = model.register_forward_pre_hook(lambda *_: seen.append("pre"))
        after = model.register_forward_hook(lambda *_: seen.append("post"))
        loss_of(model(data(rank))).backward()
        assert seen == ["pre", "post"]
        before.remove()
        after.remove()
        assert isinstance(model, Net) and type(model).__name__ == "Net" and repr(model) == repr(Net())
        assert list(model.state_dict()) == list(Net().state_dict())
        assert [name for name, _ in model.named_modules()] == [name for name, _ in Net().named_modules()]
        twin = copy.deepcopy(model)
        assert type(twin) is Net and same(twin.state_dict(), model.state_dict())
        assert type(copy.copy(model)) is Net
        assert type(pickle.loads(pickle.dumps(model))) is Net  # noqa: S301
        file = io.BytesIO()
        torch.save(model, file)
        if rank == 0:
            loss_of(twin(data(0))).backward()  # nobody else takes part
        hooked.optimizers[0].step()
        hooked.sync.finish()
        hooked.sync.finish()
        assert type(model) is Net
        loss_of(model(data(rank))).backward()

    groups = ThreadGroup.make(SIZE)
    run_ranks(SIZE, work)


def test_a_forward_on_the_object_itself_is_kept() -> None:
    def own() -> tuple[nn.Module, list[Optimizer]]:
        model = Net()
        inner = model.forward
        model.forward = lambda x: 3 * inner(x)  # type: ignore[method-assign]
        return model, [SGD(model.parameters(), lr=0.25)]

    equals_alone(plainly, own)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_script_module_is_exchanged_at_the_step() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(WIDTH, 2, bias=False)
            nn.init.ones_(self.one.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x)  # type: ignore[no-any-return]

    scripts = [torch.jit.trace(Plain(), torch.ones(1, WIDTH)) for _ in range(SIZE + 2)]  # never in two threads at once

    def script() -> tuple[nn.Module, list[Optimizer]]:
        model = scripts.pop()
        return model, [SGD(model.parameters(), lr=0.25)]

    equals_alone(plainly, script)


def test_a_class_that_refuses_subclasses_is_exchanged_at_the_step() -> None:
    def final() -> tuple[nn.Module, list[Optimizer]]:
        class Final(Net):
            def __init_subclass__(cls) -> None:
                raise TypeError("no")

        model = Final()
        return model, [SGD(model.parameters(), lr=0.25)]

    equals_alone(plainly, final)


@pytest.mark.parametrize("when", ["before", "in place", "after"])
def test_a_compiled_model_is_exchanged(when: str) -> None:
    (group,) = ThreadGroup.make(1)
    own = Net()
    optimizer = SGD(own.parameters(), lr=0.25)
    if when == "in place":
        own.compile(backend="eager")
    sync = AllReduce(setting("allreduce", lone(1, 0), group))
    model: Any = sync.attach(torch.compile(own, backend="eager") if when == "before" else own, [optimizer])
    if when == "after":
        model = torch.compile(model, backend="eager")
    for number in range(3):
        optimizer.zero_grad()
        loss_of(model(data(0, number))).backward()
        assert not sync._growth, "no bucket saw the gradients"
        sync.before_step(optimizer)
        optimizer.step()
    sync.finish()


def test_a_model_that_calls_itself() -> None:
    class Again(Net):
        def forward(self, x: Tensor, part: str = "both") -> Tensor:
            return super().forward(x) if part == "inner" else self(x, "inner")  # type: ignore[no-any-return]

    def again() -> tuple[nn.Module, list[Optimizer]]:
        model = Again()
        return model, [SGD(model.parameters(), lr=0.25)]

    equals_alone(plainly, again)


# -- with others -------------------------------------------------------------------------------------------------------


def test_workers_start_from_the_values_of_the_lowest() -> None:
    def work(rank: int) -> Tensor:
        torch.manual_seed(rank)
        model = nn.Linear(3, 3)
        sync = AllReduce(setting("allreduce", lone(SIZE, rank), groups[rank]))
        sync.attach(model, [SGD(model.parameters(), lr=0.1)])
        return model.weight.detach().clone()

    groups = ThreadGroup.make(SIZE)
    one, other = run_ranks(SIZE, work)
    assert torch.equal(one, other)


def test_different_models_are_found_at_the_start() -> None:
    def work(rank: int) -> None:
        model = nn.Linear(3, 3 + rank)
        sync = AllReduce(setting("allreduce", lone(SIZE, rank), groups[rank]))
        with pytest.raises(Disagreement, match="worker-0 has parameter weight"):
            sync.attach(model, [SGD(model.parameters(), lr=0.1)])

    groups = ThreadGroup.make(SIZE)
    run_ranks(SIZE, work)


SCRIPT = """
import torch
from torch import nn
from shoal import train

def network():
    net = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 200, bias=False))
    with torch.no_grad():
        for place, one in enumerate(net.parameters()):
            one.copy_((torch.arange(one.numel()).view(one.shape) + place) % 3 - 1)
    return net

def trained(net, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        (net(x).sum() / len(x)).backward()
        nn.utils.clip_grad_value_(net.parameters(), 64.0)
        optimizer.step()

def batches(rank):
    return [((torch.arange(4 * 300) * (rank + 2) + number) % 3).float().view(4, 300) for number in range(3)]

with train.start() as run:
    net = network()
    model, optimizer = run.wrap(net, torch.optim.SGD(net.parameters(), lr=2.0**-10))
    trained(model, optimizer, batches(run.rank))
    alone = network()
    each = [batches(rank) for rank in range(run.size)]
    trained(alone, torch.optim.SGD(alone.parameters(), lr=2.0**-10), [torch.cat(some) for some in zip(*each)])
    assert all(torch.equal(one, other) for one, other in zip(model.state_dict().values(), alone.state_dict().values()))
    assert not torch.equal(net[0].weight, network()[0].weight)
    print("equal", type(run.group()).__name__, run.seeing.bytes_sent > 0, flush=True)
"""


@pytest.mark.real
@pytest.mark.parametrize(("workers", "nodes", "kind"), [(2, 1, "SharedGroup"), (4, 2, "HostsGroup")])
def test_equals_one_process_between_processes(workers: int, nodes: int, kind: str) -> None:
    strategy = "allreduce:bucket=0.1"
    result = run_world(SCRIPT, workers=workers, nodes=nodes, strategy=strategy).check()
    assert [result.lines(f"worker-{rank}", "equal") for rank in range(workers)] == [[f"equal {kind} True"]] * workers


def test_the_rest_go_on_when_one_leaves() -> None:
    def work(rank: int) -> Tensor:
        hooked = Hooked(rank, groups[rank], made, "allreduce")
        for number in range(2 + 3 * (rank == 0)):
            hooked.optimizers[0].zero_grad()
            loss_of(hooked.model(data(rank, number))).backward()
            hooked.optimizers[0].step()
        hooked.sync.finish()
        groups[rank].leave()
        return next(hooked.model.parameters()).detach().clone()

    groups = ThreadGroup.make(SIZE)
    one, other = run_ranks(SIZE, work)
    assert not torch.equal(one, other)


def test_a_death_in_backward_is_raised_at_the_step_by_name() -> None:
    def work(rank: int) -> None:
        hooked = Hooked(rank, groups[rank], made, "allreduce")
        if rank == 1:
            groups[rank].die()
            return
        loss_of(hooked.model(data(rank))).backward()
        with pytest.raises(PeerLost) as lost:
            hooked.optimizers[0].step()
        assert lost.value.who == ["worker-1"]

    groups = ThreadGroup.make(SIZE)
    run_ranks(SIZE, work)


# -- compression -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["compress=topk,ratio=1", "compress=fp16", "compress=bf16"])
def test_compression_that_loses_nothing_changes_nothing(options: str) -> None:
    equals_alone(plainly, strategy=f"allreduce:{options}")
    equals_alone(accumulating_unevenly, strategy=f"allreduce:bucket=0.001,{options}")


@pytest.mark.parametrize("options", ["compress=topk,ratio=0.2", "compress=onebit", "compress=powersgd,rank=1"])
def test_compression_leaves_all_workers_bit_equal(options: str) -> None:
    first, second = trained(plainly, strategy=f"allreduce:{options}")
    assert same(first, second)
    assert not same(first, made()[0].state_dict())


def test_what_compression_left_over_is_kept_with_a_checkpoint() -> None:
    def work(rank: int) -> None:
        hooked = Hooked(rank, groups[rank], made, "allreduce:compress=topk,ratio=0.2")
        loss_of(hooked.model(data(rank))).backward()
        hooked.optimizers[0].step()
        state = hooked.sync.state()
        assert state["rank"] == rank and set(state["residuals"]) == {"one.weight", "two.weight"}
        other = Hooked(rank, groups[rank], made, "allreduce:compress=topk,ratio=0.2")
        other.sync.load(state)
        found = other.sync.state()["residuals"]
        assert all(torch.equal(found[name], one) for name, one in state["residuals"].items())
        other.sync.load({**state, "rank": 9})

    groups = ThreadGroup.make(SIZE)
    run_ranks(SIZE, work)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_rhythm_expects_what_the_last_two_steps_had() -> None:
    rhythm, anything = Rhythm(), torch.zeros(1)
    for had, expected in ((3, [True] * 3), (3, [True] * 3), (3, [False, False, True]), (2, [False, False])):
        found = []
        for _ in range(had):
            found.append(rhythm.is_last())
            rhythm.backward(anything)
        assert found == expected
        rhythm.step()
        rhythm.step()  # of a second optimizer
    assert rhythm.is_last()


def test_says_what_it_does() -> None:
    def work(rank: int) -> None:
        hooked = Hooked(rank, groups[rank], made, "allreduce:compress=fp16")
        facts = hooked.sync.facts()
        assert facts["bytes_per_step"] == 2 * WIDTH * 2 * 4 // 2 and "compression" in facts
        assert "mean over 2 workers" in facts["learning_rate"]

    groups = ThreadGroup.make(SIZE)
    run_ranks(SIZE, work)


def test_native_leaves_everything_alone() -> None:
    sync, model = Native(setting("native", lone(SIZE, 0))), Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    assert sync.attach(model, [optimizer]) is model and type(model) is Net
    sync.before_step(optimizer)
    sync.after_step(optimizer)
    sync.load(sync.state())
    sync.finish()
    assert sync.facts()["bytes_per_step"] == 0
