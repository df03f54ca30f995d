"""Ending together: workers that take every step with each other stop when the first of them has nothing left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from shoal.train.group.api import Group
from shoal.train.seeing import Seeing

_END = object()
_log = logging.getLogger("shoal.train")


def together(batches: Iterator[Any], group: Group, seeing: Seeing, name: str) -> Iterator[Any]:
    """The batches, as long as every member has one. Before each, two numbers are summed over the members: who has a
    batch, and who is here. The batch is fetched before the vote, so that a slow reader is waited for here, by name."""
    while True:
        batch = next(batches, _END)
        told = torch.tensor([float(batch is not _END), 1.0])
        with seeing.waiting_for(f"a batch of {name} on every worker"):
            group.all_reduce(told)
        having, here = told.tolist()
        if having < here:
            if batch is not _END:
                _log.info("%s ended on %d of %d workers: a batch is left unread here", name, here - having, here)
            return
        yield batch


def shortest(length: int, group: Callable[[], Group]) -> int:
    """The number of steps that every member can do, agreed once."""
    return int(min(group().gather(length)))
