"""Who one is, as tensors: read when a function runs, so that it stays true when workers were lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.adapters.hvd import basics


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    return _read(basics.size)


def rank_op(name: str | None = None) -> Any:
    return _read(basics.rank)


def local_size_op(name: str | None = None) -> Any:
    return _read(basics.local_size)


def local_rank_op(name: str | None = None) -> Any:
    return _read(basics.local_rank)


def _read(number: Callable[[], int]) -> Any:
    found = tf.numpy_function(lambda: np.int32(number()), [], tf.int32, stateful=True)
    found.set_shape([])
    return found
