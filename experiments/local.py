"""Workers that meet only every H steps learn almost as well, for one H-th of the bytes, until H is too large.

Stich: Local SGD Converges Fast and Communicates Little (ICLR 2019); Douillard et al.: DiLoCo (arXiv 2311.08105), where
eight workers that met every 500 steps came as far as with an exchange at every step, for 1/500 of the bytes, and every
1,000 instead of every 50 cost 3 % of perplexity.

Here: a character-level GPT on generated text, four workers (threads) with texts of their own, the real strategy and its
real arithmetic; only the times are virtual. As in the second paper all begin with a model that was trained for a while,
the inner optimizer is AdamW with a rate that falls along a cosine, the outer one Nesterov with 0.7 and 0.9. Two
controls: one worker alone with its small batch, and one with the batch of all four, which is what an exchange of
gradients at every step would compute.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import torch
from letters import GPT, batch, entropy, text
from results import Cell, Result, Table, leave, options
from torch import Tensor
from torch.optim import AdamW

from shoal._lib.chart import Panel
from shoal.train.simulate.local import Learner, simulate

WORKERS, BATCH, RATE = 4, 8, 3e-3
LENGTH = 60_000  # letters in each worker's text
TESTS = 256  # pieces of another text
EXCHANGE = 1.0  # virtual seconds; a step takes one
OUTERS = AVERAGE, DILOCO = "averaging", "DiLoCo"
State = dict[str, Tensor]
STRATEGIES = {AVERAGE: "local-sgd:every={}", DILOCO: "local-sgd:every={},outer=nesterov"}


@dataclass(frozen=True)
class Outcome:
    """One training."""

    loss: float  # on unseen text, at the end
    sent: int  # bytes of one worker
    rounds: int
    seconds: float


def train(strategy: str, steps: int, warm: State, workers: int = WORKERS, size: int = BATCH) -> Outcome:
    models = [GPT() for _ in range(workers)]

    def learner(rank: int) -> Learner:
        model, source = models[rank], text(100 + rank, LENGTH)
        model.load_state_dict(warm)
        optimizer = AdamW(model.parameters(), lr=RATE)

        def gradients(step: int) -> float:
            optimizer.param_groups[0]["lr"] = RATE * (0.55 + 0.45 * math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            loss = model.loss(*batch(source, size, seed=rank * 1_000_003 + step))
            loss.backward()
            return float(loss.detach())

        return model, optimizer, gradients

    trace = simulate(strategy, learner, workers, steps, exchange=EXCHANGE)
    return Outcome(judge(models[0]), trace.sent[0], trace.rounds, trace.seconds)


def warmed(steps: int) -> State:
    """Where all begin: a model that was trained alone for a while, as in the paper."""
    model, source = GPT(), text(99, LENGTH)
    optimizer = AdamW(model.parameters(), lr=RATE)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(*batch(source, BATCH * WORKERS, seed=step)).backward()
        optimizer.step()
    return model.state_dict()


@torch.no_grad()
def judge(model: GPT) -> float:
    return float(model.loss(*batch(text(1, 20_000), TESTS, seed=0)))


def run(given: argparse.Namespace) -> Result:
    everies, steps, before = ((1, 5, 20), 20, 5) if given.quick else ((1, 5, 20, 50, 100, 250), 500, 200)
    warm = warmed(before)
    outcomes = {
        (outer, every): train(STRATEGIES[outer].format(every), steps, warm) for outer in OUTERS for every in everies
    }
    alone = f"local-sgd:every={steps}"
    controls = {f"alone, batches of {size}": train(alone, steps, warm, 1, size) for size in (BATCH, BATCH * WORKERS)}
    return Result(
        "local",
        f"{WORKERS} workers that meet every H steps, a GPT on generated text, {steps} steps",
        [table(everies, outcomes, controls)],
        panels(everies, outcomes, controls),
        {"workers": WORKERS, "batch": BATCH, "rate": RATE, "steps": steps, "warm": before, "exchange": EXCHANGE,
         "entropy": entropy(), "parameters": sum(one.numel() for one in GPT().parameters())},
        {f"{outer}, H={every}": vars(one) for (outer, every), one in outcomes.items()}
        | {name: vars(one) for name, one in controls.items()},
    )  # fmt: skip


def table(everies: tuple[int, ...], outcomes: dict[tuple[str, int], Outcome], controls: dict[str, Outcome]) -> Table:
    whole = outcomes[AVERAGE, 1].sent
    rows: list[list[Cell]] = []
    for every in everies:
        one = outcomes[AVERAGE, every]
        losses = [f"{outcomes[outer, every].loss:.3f}" for outer in OUTERS]
        rows.append([every, one.rounds, one.sent, f"1/{whole / one.sent:g}", round(one.seconds), *losses])
    for name, one in controls.items():
        rows.append([f"{name} (control)", "—", 0, "—", "—", f"{one.loss:.3f}", "—"])
    head = ["H", "rounds", "bytes sent by a worker", "of H = 1", "virtual seconds", *(f"loss, {one}" for one in OUTERS)]
    return Table(f"Loss on unseen text, in nats per letter; no model can get below {entropy():.3f}", head, rows)


def panels(
    everies: tuple[int, ...], outcomes: dict[tuple[str, int], Outcome], controls: dict[str, Outcome]
) -> list[Panel]:
    ends = (float(everies[0]), float(everies[-1]))
    drawn = {key: one for key, one in outcomes.items() if key != (DILOCO, 1)}  # so bad that nothing else would be seen
    losses = {
        outer: [(float(every), one.loss) for (of, every), one in drawn.items() if of == outer] for outer in OUTERS
    }
    losses |= {name: [(end, one.loss) for end in ends] for name, one in controls.items()}
    sent = {outer: [(float(every), outcomes[outer, every].sent / 1e6) for every in everies] for outer in OUTERS}
    times = {outer: [(one.seconds, one.loss) for (of, _), one in drawn.items() if of == outer] for outer in OUTERS}
    return [
        Panel("loss at the end", "H", "nats per letter", losses),
        Panel("bytes", "H", "MB sent by a worker", sent, log_up=True),
        Panel("loss against time", "virtual seconds for all steps", "nats per letter", times),
    ]


if __name__ == "__main__":
    given = options(__doc__)
    leave(given, run(given))
