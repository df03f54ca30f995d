"""Handwritten digits (scikit-learn's, 8 by 8 pixels), 1,437 to learn from and 360 to test, and a small net for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

LEARN = 1437
HIDDEN = 64


@lru_cache
def data() -> tuple[Tensor, Tensor]:
    """Images in a fixed random order, flat and from 0 to 1, and what they show."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def loss(model: nn.Module, worker: int, step: int, size: int, seed: int = 0) -> Tensor:
    """Of the batch that this worker draws at this step: always the same one, whatever else happens."""
    chance = torch.Generator().manual_seed((seed * 1_009 + worker) * 1_000_003 + step)
    images, labels = data()
    chosen = torch.randint(0, LEARN, (size,), generator=chance)
    return cross_entropy(model(images[chosen]), labels[chosen])


@torch.no_grad()
def error(model: nn.Module) -> float:
    """The part of the test images read wrongly, in per cent. Parameters that are not numbers read all as 0."""
    images, labels = data()
    return 100.0 * float((model(images[LEARN:]).argmax(1) != labels[LEARN:]).float().mean())


@torch.no_grad()
def objective(model: nn.Module) -> float:
    """The mean loss over everything there is to learn from."""
    images, labels = data()
    return float(cross_entropy(model(images[:LEARN]), labels[:LEARN]))


def fill(model: nn.Module, vector: Tensor | Sequence[Tensor]) -> nn.Module:
    """The model with these parameters."""
    flat = vector if isinstance(vector, Tensor) else torch.cat([one.reshape(-1) for one in vector])
    vector_to_parameters(flat.clone(), model.parameters())
    return model
