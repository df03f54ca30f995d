"""Training with `DistributedOptimizer` against plain torch on the joint batch, as functions for all workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import shoal.adapters.hvd.torch as hvd

ROWS = 6  # of each worker in each step


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(ROWS, 5, generator=dice, dtype=torch.float64)
    return x, torch.stack([x.sum(1), x[:, 0] * 2], 1)


def joint(step: int) -> tuple[Tensor, Tensor]:
    parts = [batch(step, rank) for rank in range(hvd.size())]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ((net(x) - y) ** 2).mean()


def alike(net: nn.Module, other: nn.Module | None = None, tolerance: float = 1e-12) -> None:
    """Bit-equal on all workers; and as near as that to another one here."""
    flat = torch.cat([one.detach().view(-1) for one in net.parameters()])
    for theirs in hvd.allgather_object(flat):
        assert torch.equal(flat, theirs)
    if other is not None:
        expected = torch.cat([one.detach().view(-1) for one in other.parameters()])
        torch.testing.assert_close(flat, expected, rtol=0, atol=tolerance)


def begun(make: Callable[[Any], torch.optim.Optimizer], **options: Any) -> tuple[nn.Module, Any, nn.Module, Any]:
    """A model from a different beginning on each worker, made one; and its plain twin."""
    net, plain = model(hvd.rank()), model(0)
    optimizer = make(net.parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), **options)
    assert isinstance(wrapped, type(optimizer))
    return net, wrapped, plain, make(plain.parameters())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def trains_as_one_on_the_joint_batch() -> None:
    for make in (sgd, torch.optim.Adam):
        for options in ({}, {"groups": 2}, {"gradient_predivide_factor": 4.0}):
            net, optimizer, plain, other = begun(make, **options)
            for step in range(5):
                for one, the_other, data in ((net, optimizer, batch(step, hvd.rank())), (plain, other, joint(step))):
                    the_other.zero_grad()
                    loss_of(one, *data).backward()
                    the_other.step()
            alike(net, plain)


def sums_when_asked() -> None:
    net, optimizer, plain, other = begun(sgd, op=hvd.Sum)
    optimizer.zero_grad(), other.zero_grad()
    loss_of(net, *batch(0, hvd.rank())).backward()
    (loss_of(plain, *joint(0)) * hvd.size()).backward()
    optimizer.step(), other.step()
    alike(net, plain)


def adds_up_several_backward_passes() -> None:
    net, optimizer, plain, other = begun(sgd, backward_passes_per_step=2)
    for step in range(0, 6, 2):
        optimizer.zero_grad(), other.zero_grad()
        for one in (step, step + 1):
            loss_of(net, *batch(one, hvd.rank())).backward()
            loss_of(plain, *joint(one)).backward()
        optimizer.step(), other.step()
    alike(net, plain)
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    loss_of(net, *batch(9, hvd.rank())).backward()
    optimizer.step()
    alike(net)


def clips_between_synchronize_and_step() -> None:
    net, optimizer, plain, other = begun(sgd)
    for step in range(3):
        optimizer.zero_grad(), other.zero_grad()
        loss_of(net, *batch(step, hvd.rank())).backward()
        loss_of(plain, *joint(step)).backward()
        optimizer.synchronize()
        for one in (net, plain):
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        other.step()
    alike(net, plain)


def half_as_many_bits() -> None:
    net, optimizer, plain, other = begun(sgd, compression=hvd.Compression.fp16)
    for step in range(3):
        optimizer.zero_grad(), other.zero_grad()
        loss_of(net, *batch(step, hvd.rank())).backward()
        loss_of(plain, *joint(step)).backward()
        optimizer.step(), other.step()
    alike(net, plain, 1e-2)


def steps_with_a_closure() -> None:
    net, optimizer, plain, other = begun(lambda parameters: torch.optim.LBFGS(parameters, lr=0.3, max_iter=4))

    def evaluate(one: nn.Module, the_other: Any, data: tuple[Tensor, Tensor]) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            the_other.zero_grad()
            loss = loss_of(one, *data)
            loss.backward()
            return loss

        return closure

    for step in range(2):
        optimizer.step(evaluate(net, optimizer, batch(step, hvd.rank())))
        other.step(evaluate(plain, other, joint(step)))
    alike(net)


def workers_may_use_different_parts_of_the_model() -> None:
    torch.manual_seed(1)
    parts = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
    for groups in (None, 2):
        optimizer = hvd.DistributedOptimizer(sgd(parts.parameters()), parts.named_parameters(), groups=groups)
        for step in range(3):
            optimizer.zero_grad()
            order = [parts[(hvd.rank() + step) % 3], parts[2 - hvd.rank() % 3]]
            x = torch.ones(2, 3)
            for part in order:
                x = part(x)
            x.sum().backward()
            optimizer.step()
        alike(parts)
        for hook in optimizer._hooks:
            hook.remove()


def sparse_gradients() -> None:
    for as_dense in (False, True):
        torch.manual_seed(2)
        table, plain = nn.Embedding(10, 2, sparse=True), nn.Embedding(10, 2)
        plain.load_state_dict(table.state_dict())
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=as_dense
        )
        other = torch.optim.SGD(plain.parameters(), lr=1.0)
        for step in range(2):
            optimizer.zero_grad(), other.zero_grad()
            table(torch.tensor([hvd.rank(), 5, step])).sum().backward()
            rows = [row for rank in range(hvd.size()) for row in (rank, 5, step)]
            (plain(torch.tensor(rows)).sum() / hvd.size()).backward()
            optimizer.step(), other.step()
        alike(table, plain, 1e-6)


def adasum_takes_steps_of_its_own() -> None:
    if hvd.size() & (hvd.size() - 1):
        return
    net, optimizer, _, _ = begun(sgd, op=hvd.Adasum)
    before = loss_of(net, *joint(0)).item()
    for step in range(10):
        optimizer.zero_grad()
        loss_of(net, *batch(step % 2, hvd.rank())).backward()
        optimizer.step()
    alike(net)
    assert loss_of(net, *joint(0)).item() < before


def a_schedule_made_before_still_works() -> None:
    net = model(0)
    plain = sgd(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=net.named_parameters())
    loss_of(net, *batch(0, hvd.rank())).backward()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    alike(net)


def misuse_is_refused() -> None:
    net = model(0)
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), named_parameters=net.named_parameters())
    loss_of(net, *batch(0, hvd.rank())).backward()
    _raises(AssertionError, "race condition", optimizer.zero_grad)
    _raises(AssertionError, "more than backward_passes_per_step", lambda: loss_of(net, *batch(0, 0)).backward())
    optimizer.step()
    some = list(net.named_parameters())
    _raises(ValueError, "were not named", lambda: hvd.DistributedOptimizer(sgd(net.parameters()), some[1:]))
    _raises(ValueError, "duplicates", lambda: hvd.DistributedOptimizer(sgd(net.parameters()), [*some, some[0]]))
    _raises(ValueError, "must be > 0", lambda: hvd.DistributedOptimizer(sgd(net.parameters()), some, None, 0))


def _raises(kind: type[Exception], words: str, act: Callable[[], Any]) -> None:
    try:
        act()
    except kind as refused:
        assert words in str(refused), refused
    else:
        raise AssertionError(f"nothing was said of {words}")


CHECKS = (
    trains_as_one_on_the_joint_batch,
    sums_when_asked,
    adds_up_several_backward_passes,
    clips_between_synchronize_and_step,
    half_as_many_bits,
    steps_with_a_closure,
    workers_may_use_different_parts_of_the_model,
    sparse_gradients,
    adasum_takes_steps_of_its_own,
    a_schedule_made_before_still_works,
    misuse_is_refused,
)


def main() -> None:
    hvd.init()
    for check in CHECKS:
        check()
        print(f"ok {check.__name__}", flush=True)
