"""Gradients of all workers made one: in one operation for all dense ones, so that no two can be waited for in different
orders, and one for each that has slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import AVERAGE
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.tensorflow import ops
from shoal.adapters.hvd.tensorflow.compression import Compression


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced: the arguments of a tape or an optimizer."""

    compression: Any = Compression.none
    op: str = AVERAGE
    predivide: float = 1.0
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set

    def __post_init__(self) -> None:
        if self.predivide != 1.0 and self.op != AVERAGE:
            raise ValueError("gradient_predivide_factor not supported with op != Average")

    def __call__(self, grads: Sequence[Any]) -> list[Any]:
        """In their order; None stays None, on every worker."""
        if basics.size() == 1 or not self.process_set.included():
            return list(grads)
        known = [self._dense(one) for one in grads]
        whole = [one for one in known if one is not None and not isinstance(one, tf.IndexedSlices)]
        before, after = (1.0 / self.predivide, self.predivide) if self.op == AVERAGE else (1.0, 1.0)
        reduced = iter(ops.grouped(whole, None, self.compression, self.op, before, after, self.process_set))
        return [self._one(one, reduced) for one in known]

    def _one(self, one: Any, reduced: Any) -> Any:
        if one is None:
            return None
        if isinstance(one, tf.IndexedSlices):
            return ops.allreduce(one, op=self.op, process_set=self.process_set)
        return next(reduced)

    def _dense(self, one: Any) -> Any:
        return tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) and self.sparse_as_dense else one


def DistributedGradientTape(  # noqa: N802, Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: str = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The tape, whose `gradient` gives what all workers' gradients give together."""
    tape = _Tape.__new__(_Tape)
    tape.__dict__.update(vars(gradtape))
    tape._reduction = Reduction(compression, op, gradient_predivide_factor, sparse_as_dense, process_set)
    return tape


class _Tape(tf.GradientTape):  # type: ignore[misc]
    _reduction: Reduction

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **kwargs: Any) -> Any:
        grads = super().gradient(target, sources, output_gradients, **kwargs)
        flat = tf.nest.flatten(grads, expand_composites=False)
        return tf.nest.pack_sequence_as(grads, self._reduction(flat))
