"""The kinds of input, each cut its own way. A source opens one pass: this worker's batches from a given point on.

| kind | what is dealt | length |
|---|---|---|
| Indexed | samples of a map-style loader (batches, where the batch sampler is the user's own) | known |
| Listed | batches of a list | known |
| Streamed | items of an IterableDataset, in each of the loader's workers | unknown |
| Drawn | batches of a sampler that has no length | unknown |
| Poured | batches of any iterable | unknown |
| Ready | nothing: each worker's own already (DistributedSampler, `sharded=True`) | its own |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from shoal.train.data import loaders
from shoal.train.data.flows import Drawn, Poured, Ready, Streamed
from shoal.train.data.passes import Source
from shoal.train.data.sized import Indexed, Listed


def of(loader: Any, sharded: bool) -> Source:
    """The source behind what the user handed over."""
    if sharded:
        return Ready(loader)
    if isinstance(loader, DataLoader):
        if loaders.is_dealt(loader):
            return Ready(loader)
        if loaders.is_iterable(loader):
            return Streamed(loader)
        return Drawn(loader) if loaders.count(loaders.unit(loader)[0]) is None else Indexed(loader)
    if hasattr(loader, "__getitem__") and hasattr(loader, "__len__") and not isinstance(loader, Mapping):
        return Listed(loader)
    return Poured(loader)
