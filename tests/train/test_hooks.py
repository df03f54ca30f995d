"""What happens around a step, with a synchroniser that only remembers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.train.errors import BadModel, BadOptimizer, NotFinite
from shoal.train.finite import Finite
from shoal.train.hooks import AMP_MARK, Hooks
from tests.train.fakes import Remembers


def hooked(
    model: nn.Module, sync: Remembers | None, policy: str = "warn", kind: Any = torch.optim.SGD, **more: Any
) -> tuple[torch.optim.Optimizer, Hooks, list[int]]:
    steps: list[int] = []
    optimizer = kind(model.parameters(), lr=1.0, **more)
    names = {id(one): name for name, one in model.named_parameters()}
    finite = Finite(policy, lambda every: [names[id(one)] for one in every])
    return optimizer, Hooks(optimizer, sync, finite, lambda: steps.append(1)), steps


def line(weight: float = 2.0) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def backward(model: nn.Module, factor: float = 1.0) -> None:
    (model(torch.ones(1, 1)) * factor).sum().backward()


def test_a_step_exchanges_before_and_after_and_counts() -> None:
    model, sync = line(), Remembers()
    optimizer, _, steps = hooked(model, sync)
    backward(model, 3.0)
    optimizer.step()
    assert sync.calls == ["before", "after"]
    assert sync.seen == [[torch.tensor([[3.0]])]]
    assert steps == [1]
    assert model.weight.item() == -1.0


def test_gradients_that_a_strategy_takes_away_are_not_stepped_here_and_come_back() -> None:
    model, sync = line(), Remembers(steps_here=False)
    optimizer, _, _ = hooked(model, sync)
    backward(model, 3.0)
    optimizer.step()
    assert model.weight.item() == 2.0
    assert model.weight.grad is not None and model.weight.grad.item() == 3.0


def test_removed_hooks_leave_the_optimizer_as_it_was() -> None:
    model, sync = line(), Remembers()
    optimizer, hooks, steps = hooked(model, sync)
    hooks.remove()
    backward(model)
    optimizer.step()
    assert (sync.calls, steps) == ([], [])
    assert not hasattr(optimizer, AMP_MARK)


@pytest.mark.parametrize("as_keyword", [False, True])
def test_a_closure_is_evaluated_once_and_its_gradient_is_exchanged(as_keyword: bool) -> None:
    model, sync = line(), Remembers()
    optimizer, _, _ = hooked(model, sync)
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 1)) * 3).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
    assert loss is not None and float(loss) == 6.0
    assert calls == [1]
    assert sync.seen == [[torch.tensor([[3.0]])]]
    assert model.weight.item() == -1.0


def test_a_closure_stays_the_optimizers_own_where_only_parameters_are_exchanged() -> None:
    model = line()
    optimizer, _, _ = hooked(model, Remembers(needs_gradient=False), kind=torch.optim.LBFGS, max_iter=4)
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 1)) - 1).square().sum()
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)
    assert len(calls) > 10
    assert model.weight.item() == pytest.approx(1.0, abs=1e-3)


def test_an_optimizer_that_evaluates_many_times_is_refused_where_one_gradient_is_exchanged() -> None:
    with pytest.raises(BadOptimizer, match="LBFGS evaluates its closure many times.*local-sgd"):
        hooked(line(), Remembers(), kind=torch.optim.LBFGS)


def test_a_closure_whose_loss_is_not_one_number_is_refused() -> None:
    optimizer, _, _ = hooked(line(), Remembers())
    with pytest.raises(BadModel, match=r"the closure has shape \(2,\).*mean"):
        optimizer.step(lambda: torch.ones(2))


def test_skip_sends_zeros_so_that_nobody_waits_and_gives_the_gradient_back() -> None:
    model, sync = line(), Remembers()
    optimizer, _, _ = hooked(model, sync, "skip")
    backward(model, float("nan"))
    optimizer.step()
    assert sync.seen == [[torch.tensor([[0.0]])]]
    assert sync.calls == ["before", "after"]
    assert model.weight.item() == 2.0
    assert model.weight.grad is not None and model.weight.grad.isnan().all()


@pytest.mark.parametrize("sync", [None, Remembers(needs_gradient=False)])
def test_skip_does_not_step_at_all_where_no_gradient_is_exchanged(sync: Remembers | None) -> None:
    model = line()
    optimizer, _, steps = hooked(model, sync, "skip", kind=torch.optim.AdamW)
    backward(model)
    optimizer.step()
    before = model.weight.item()
    optimizer.zero_grad()
    backward(model, float("inf"))
    optimizer.step()
    assert model.weight.item() == before
    assert steps == [1, 1]


def test_stop_names_the_parameter() -> None:
    model = line()
    optimizer, _, _ = hooked(model, Remembers(), "stop")
    backward(model, float("nan"))
    with pytest.raises(NotFinite, match="the gradient of weight is not finite.*nan=skip"):
        optimizer.step()


def test_stop_also_sees_the_gradient_of_a_closure() -> None:
    model = line()
    optimizer, _, _ = hooked(model, None, "stop")

    def closure() -> Tensor:
        backward(model, float("nan"))
        return torch.tensor(0.0)

    with pytest.raises(NotFinite):
        optimizer.step(closure)


def test_warn_steps_and_says_so(caplog: pytest.LogCaptureFixture, heard: None) -> None:
    model = line()
    optimizer, _, _ = hooked(model, Remembers(), "warn")
    backward(model, float("nan"))
    optimizer.step()
    assert "the gradient of weight is not finite; the step is taken all the same" in caplog.text
    assert model.weight.isnan().all()


def test_a_step_without_any_gradient_is_told_of_once(caplog: pytest.LogCaptureFixture, heard: None) -> None:
    optimizer, _, _ = hooked(line(), Remembers())
    optimizer.step()
    optimizer.step()
    assert caplog.text.count("steps without a gradient") == 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled_by_user", [False, True])
def test_a_grad_scaler_gives_the_exchange_true_gradients(fused: bool, unscaled_by_user: bool) -> None:
    model, sync = line(), Remembers()
    optimizer, _, _ = hooked(model, sync, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale((model(torch.ones(1, 1)) * 3).sum()).backward()
    if unscaled_by_user:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert sync.seen == [[torch.tensor([[3.0]])]]
    assert model.weight.item() == -1.0
    assert scaler.get_scale() == 1024.0


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_overflow_under_a_grad_scaler_still_reaches_the_exchange(kind: Any, fused: bool) -> None:
    model, sync = line(), Remembers(steps_here=False)
    optimizer, _, _ = hooked(model, sync, kind=kind, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale((model(torch.ones(1, 1)) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert sync.seen == [[torch.tensor([[0.0]])]]
    assert model.weight.item() == 2.0
    assert scaler.get_scale() == 512.0


def test_without_a_strategy_a_grad_scaler_is_left_to_itself() -> None:
    optimizer, _, _ = hooked(line(), None)
    assert not getattr(optimizer, AMP_MARK, False)


def test_where_each_holds_a_part_they_skip_together() -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    finite = Finite("skip", lambda every: ["weight"], agree=lambda found: True)
    Hooks(optimizer, None, finite, lambda: None)
    backward(model)
    optimizer.step()
    assert model.weight.item() == 2.0 and finite.skipped == 1


def test_large_finite_and_sparse_gradients_are_told_from_infinite_ones() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    optimizer, _, _ = hooked(table, None, "stop")
    table.weight.grad = torch.sparse_coo_tensor([[1, 1]], torch.full((2, 2), 1e38), (4, 2))
    optimizer.step()
    table.weight.grad = torch.sparse_coo_tensor([[1]], torch.full((1, 2), float("nan")), (4, 2))
    with pytest.raises(NotFinite):
        optimizer.step()
