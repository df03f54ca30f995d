"""Making all workers begin alike: variables and objects, from one of them to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from shoal.adapters.hvd import arrays, objects
from shoal.adapters.hvd.objects import allgather_object
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.tensorflow.ops import run

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Of TensorFlow or of Keras, also inside a function. What holds no numbers (the state of a dataset) stays."""
    every = [(one, tf.convert_to_tensor(one)) for one in variables]
    numbers = [(one, values) for one, values in every if values.dtype.is_numeric or values.dtype.is_bool]
    found = run(lambda *given: arrays.broadcast(given, root_rank, None, process_set), [values for _, values in numbers])
    for (variable, _), values in zip(numbers, found, strict=True):
        variable.assign(values)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that broadcasts what it is given."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)
