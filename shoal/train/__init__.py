"""The training library: one script, every strategy by name.

    from shoal import train

    with train.start() as run:
        model, optimizer = run.wrap(model, optimizer)
        for epoch in run.epochs(5):
            for x, y in run.shard(loader):
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.report(loss=loss)
            run.save(epoch)

Without Shoal it is a world of one, and the script does what it does without these lines. Torch is imported when a run
starts, not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shoal.train.errors import (
    BadCheckpoint,
    BadModel,
    BadOptimizer,
    Disagreement,
    NoRoom,
    NotFinite,
    PeerLost,
    TrainError,
    WaitedTooLong,
)

if TYPE_CHECKING:
    from shoal.train.checkpoint import published, weights
    from shoal.train.embedding import Embedding
    from shoal.train.run import Run

__all__ = [
    "BadCheckpoint",
    "BadModel",
    "BadOptimizer",
    "Disagreement",
    "Embedding",
    "NoRoom",
    "NotFinite",
    "PeerLost",
    "Run",
    "TrainError",
    "WaitedTooLong",
    "published",
    "start",
    "weights",
]

# Public name → where it lives. These need torch.
_HOMES = {
    "Embedding": "shoal.train.embedding",
    "Run": "shoal.train.run",
    "published": "shoal.train.checkpoint",
    "weights": "shoal.train.checkpoint",
}


def start(
    strategy: str | None = None,
    *,
    servers: int = 1,
    device: str | None = None,
    resume: bool | None = None,
) -> Run:
    """Begins training: finds the other workers and the strategy. Use it as `with train.start() as run:`.

    `strategy` is what the script wants when nobody said otherwise: a job's own comes first. `servers` are started only
    under torchrun, for strategies that need them; a job brings its own. `device` is `cpu`, `cuda`, `cuda:1` …, where
    nothing is said this worker's GPU if there is one. `resume` goes on from the newest checkpoint in the outputs; where
    nothing is said, it does in a job and after a restart.
    """
    from shoal.train.run import begin

    return begin(strategy, servers=servers, device=device, resume=resume)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal.train' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
