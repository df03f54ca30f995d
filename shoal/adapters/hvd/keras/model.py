"""Optimizers, saved models and single values of Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.adapters.hvd.ask import AVERAGE
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.tensorflow import ops
from shoal.adapters.hvd.tensorflow.compression import Compression
from shoal.adapters.hvd.tensorflow.gradients import Reduction
from shoal.adapters.hvd.tensorflow.optimizer import of_keras, variables_of


def DistributedOptimizer(  # noqa: N802, Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer of the same class that reduces gradients among the workers before it applies them."""
    reduction = Reduction(compression, op, gradient_predivide_factor, sparse_as_dense, process_set)
    return of_keras(optimizer, reduction, backward_passes_per_step, average_aggregated_gradients)


def broadcast_global_variables(root_rank: int) -> None:
    """TensorFlow 2 has no list of all variables. RuntimeError that says what has taken its place."""
    raise RuntimeError(
        "hvd.broadcast_global_variables() needs the graphs of TensorFlow 1; in TensorFlow 2 use "
        "hvd.callbacks.BroadcastGlobalVariablesCallback, or hvd.broadcast_variables(model.variables, root_rank)"
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: str | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Of a plain value or array; the result is one of numpy."""
    facts = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor, "compression": compression}
    return _plain(ops.allreduce(_tensor(value), average, op=op, name=name, **facts))


def allgather(value: Any, name: str | None = None) -> Any:
    return _plain(ops.allgather(_tensor(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    return _plain(ops.broadcast(_tensor(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: str = AVERAGE) -> Any:
    return _plain(ops.reducescatter(_tensor(value), op=op, name=name))


def load_model(
    filepath: str,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model, compiled with its optimizer made a distributed one, state included."""
    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known)
    old = model.optimizer
    new = of_keras(old, Reduction(compression))
    new.build(model.trainable_variables)
    for mine, theirs in zip(variables_of(new), variables_of(old), strict=True):
        mine.assign(theirs)
    model.optimizer = new
    return model


def _tensor(value: Any) -> Any:
    return value if tf.is_tensor(value) else tf.constant(np.asarray(value))


def _plain(tensor: Any) -> Any:
    return tensor.numpy()
