"""Which samples a worker reads, when workers may be lost in the middle of an epoch: what was read is not read again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import Sampler

from shoal.adapters.hvd import basics


class ElasticSampler(Sampler[int]):
    """An epoch in one order for all; each worker takes every size-th of what is left. `record_batch` after each batch,
    `set_epoch` at the end of each epoch, and the sampler in the state that is committed."""

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """The older way to say it."""
        self.processed_num += len(indices) * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides what is left among the workers there are now."""
        self.rank, self.num_replicas = basics.rank(), basics.size()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        padded = [left[place % len(left)] for place in range(self.total_size)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
