"""Local SGD under a virtual clock: times that follow from the schedule, bytes that fall with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from shoal.train.simulate.local import Learner, simulate
from shoal.train.simulate.pace import slowed, steady


def learner(rank: int) -> Learner:
    """Every worker is drawn to a point of its own; together they find the mean."""
    model = nn.Linear(4, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    goal = torch.full((1, 4), float(rank))

    def gradients(step: int) -> float:
        optimizer.zero_grad()
        loss = (model.weight - goal).square().sum()
        loss.backward()
        return float(loss.detach())

    return model, optimizer, gradients


def test_a_round_begins_when_the_last_has_come_and_then_takes_its_time() -> None:
    trace = simulate("local-sgd:every=4", learner, 2, 8, compute=slowed(2.0, [1]), exchange=1.0)
    assert trace.times[0] == [1, 2, 3, 9, 10, 11, 12, 18] and trace.times[1] == [2, 4, 6, 9, 11, 13, 15, 18]
    assert trace.idle == [10.0, 2.0] and trace.rounds == 2


def test_a_delay_hides_the_exchange() -> None:
    shown = simulate("local-sgd:every=4", learner, 2, 12, compute=steady(), exchange=1.0)
    hidden = simulate("local-sgd:every=4,delay=1", learner, 2, 12, compute=steady(), exchange=1.0)
    assert shown.seconds == 15.0 and hidden.seconds == 12.0 and hidden.idle == [0.0, 0.0]


def test_bytes_fall_with_the_number_of_steps_between_rounds() -> None:
    sent = [simulate(f"local-sgd:every={every}", learner, 2, 16).sent[0] for every in (1, 2, 4, 16)]
    assert sent == [16 * 16, 8 * 16, 4 * 16, 16]


@pytest.mark.parametrize(
    "strategy", ["local-sgd:every=4", "local-sgd:every=8,outer=nesterov", "local-sgd:every=4,slowmo=0.5"]
)
def test_the_workers_find_the_mean_of_their_goals(strategy: str) -> None:
    trace = simulate(strategy, learner, 3, 160)
    at_mean = sum(4 * (rank - 1.0) ** 2 for rank in range(3))  # the loss of all when everyone stands at 1
    firsts = sum(losses[-4 if "every=4" in strategy else -8] for losses in trace.losses)  # right after a round
    assert firsts == pytest.approx(at_mean, rel=0.05)


def test_before_its_epoch_every_step_is_a_round() -> None:
    trace = simulate("local-sgd:every=4,from_epoch=1", learner, 2, 8, exchange=1.0, epoch=lambda step: step // 4)
    assert trace.times[0] == [2, 4, 6, 8, 9, 10, 11, 13]


def test_what_a_worker_raises_is_raised() -> None:
    def broken(rank: int) -> Learner:
        if rank:
            raise ValueError("no model")
        return learner(rank)

    with pytest.raises(ValueError, match="no model"):
        simulate("local-sgd", broken, 2, 4)
