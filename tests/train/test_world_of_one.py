"""Without Shoal, a wrapped script is the plain script: the same bits, the same random numbers, no file, no line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoal import train
from shoal.train.run import Run

Loop = Callable[[Any], list[Tensor]]


class Plain:
    """What a run is to a script that has none."""

    def wrap(self, model: Any, *optimizers: Any) -> tuple[Any, ...]:
        return model, *optimizers

    def epochs(self, count: int) -> Iterator[int]:
        return iter(range(count))

    def shard(self, loader: Any) -> Any:
        return loader

    def report(self, **values: Any) -> None:
        pass

    def should_stop(self) -> bool:
        return False


def loader(shuffle: bool = True) -> DataLoader[Any]:
    x = torch.arange(88, dtype=torch.float32).reshape(44, 2) / 44
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=shuffle)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))


def everything(model: nn.Module, *more: Any) -> list[Tensor]:
    """All that training changes: parameters, buffers, optimizer state, the generator."""
    states = [
        value
        for optimizer in more
        for state in optimizer.state_dict()["state"].values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return [*(value.clone() for value in model.state_dict().values()), *states, torch.get_rng_state(), torch.rand(3)]


def plain_sgd(run: Any) -> list[Tensor]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer = run.wrap(model, optimizer)
    losses = []
    for _ in run.epochs(3):
        for x, y in run.shard(loader()):
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            run.report(loss=loss)
            losses.append(loss.detach())
            if run.should_stop():
                break
        scheduler.step()
    return [*losses, *everything(model, optimizer)]


def scaled_adam_with_accumulation(run: Any) -> list[Tensor]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = run.wrap(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    for _ in run.epochs(2):
        for number, (x, y) in enumerate(run.shard(loader())):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.mse_loss(model(x), y) / 2
            if number == 3:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if number % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return [*everything(model, optimizer), torch.tensor(scaler.get_scale())]


def two_optimizers_and_closures(run: Any) -> list[Tensor]:
    first, second = network(), network()
    one = torch.optim.Adam(first.parameters(), lr=0.01)
    two = torch.optim.LBFGS(second.parameters(), lr=0.1, max_iter=3)
    first, one = run.wrap(first, one)
    second, two = run.wrap(second, two)
    for x, y in run.shard(loader(shuffle=False)):
        for model, optimizer in ((first, one), (second, two)):

            def closure(model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)
    return [*everything(first, one), *everything(second)]


@pytest.mark.parametrize(
    "strategy", [None, "allreduce", "ps-async:scale=inverse", "local-sgd:every=4,nan=skip", "fsdp"]
)
@pytest.mark.parametrize("loop", [plain_sgd, scaled_adam_with_accumulation, two_optimizers_and_closures])
def test_every_bit_is_that_of_the_plain_script(
    loop: Loop,
    strategy: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    plain = loop(Plain())
    torch.manual_seed(1)
    with train.start(strategy) as run:
        wrapped = loop(run)
    assert len(plain) == len(wrapped)
    assert all(torch.equal(one, other) for one, other in zip(plain, wrapped, strict=True))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_the_same_objects_come_back_and_are_left_as_they_were() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = sorted(vars(optimizer))
    with train.start() as run:
        given = run.wrap(model, optimizer)
        assert given[0] is model and given[1] is optimizer
    assert sorted(vars(optimizer)) == before
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_run_step_is_forward_backward_and_step() -> None:
    def trained(run: Run | None) -> list[Tensor]:
        torch.manual_seed(2)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if run:
            model, optimizer = run.wrap(model, optimizer)
        for x, y in loader():
            if run:
                loss = run.step(model, nn.functional.mse_loss, x, y)
                assert not loss.requires_grad
            else:
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return everything(model)

    plain = trained(None)
    with train.start() as run:
        assert all(torch.equal(one, other) for one, other in zip(plain, trained(run), strict=True))


def test_a_script_without_with_ends_cleanly() -> None:
    with nullcontext(train.start()) as run:
        assert (run.rank, run.size) == (0, 1)
    run.close()
    run.close()
