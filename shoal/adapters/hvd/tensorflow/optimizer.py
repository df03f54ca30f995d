"""`DistributedOptimizer` for optimizers of Keras and of TensorFlow 1: gradients are reduced before they are applied."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from shoal.adapters.hvd.ask import AVERAGE
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.tensorflow.compression import Compression
from shoal.adapters.hvd.tensorflow.gradients import Reduction


def DistributedOptimizer(  # noqa: N802, Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: str = AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    reduction = Reduction(compression, op, gradient_predivide_factor, sparse_as_dense, process_set)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step != 1:
            raise ValueError("backward_passes_per_step needs an optimizer of Keras, not of tf.compat.v1")
        return _of_v1(optimizer, reduction)
    return of_keras(optimizer, reduction, backward_passes_per_step, average_aggregated_gradients)


def of_keras(optimizer: Any, reduction: Reduction, passes: int = 1, average: bool = False) -> Any:
    """An optimizer of the same class and configuration. Several backward passes are added up by Keras itself, which
    averages them; unless that is wanted, they are weighed up before."""
    kind = type(optimizer)
    made: Any = type(kind.__name__, (Reducing, kind), {"__module__": kind.__module__})
    new = made.from_config(optimizer.get_config())
    new._reduction, new._weight = reduction, float(passes) if passes > 1 and not average else 1.0
    if passes > 1:
        if not hasattr(new, "gradient_accumulation_steps"):
            raise ValueError(f"backward_passes_per_step={passes} needs Keras 3; add the gradients up in the script")
        new.gradient_accumulation_steps = passes
    without_xla()
    return new


def variables_of(optimizer: Any) -> list[Any]:
    """A method in older Keras."""
    found = optimizer.variables
    return list(found() if callable(found) and not isinstance(found, list) else found)


class Reducing:
    """Mixed in before the optimizer's own class. Keras 3 applies by `apply`, older ones by `apply_gradients`."""

    _reduction: Reduction
    _weight: float

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        return super().apply(self._reduced(grads), trainable_variables)  # type: ignore[misc]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if not hasattr(super(), "apply"):
            grads = self._reduced([grad for grad, _ in pairs])
            pairs = [(grad, variable) for grad, (_, variable) in zip(grads, pairs, strict=True)]
        return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]

    def _reduced(self, grads: Any) -> list[Any]:
        found = self._reduction(list(grads))
        return found if self._weight == 1.0 else [None if one is None else one * self._weight for one in found]


def without_xla() -> None:
    """Keras compiles a training step with XLA where nobody says otherwise, and XLA cannot leave it for an exchange. A
    model with an optimizer of ours says otherwise."""
    try:
        from keras.src.trainers import trainer
    except ImportError:  # a Keras before 3, which asks nobody
        return
    asked = trainer.model_supports_jit
    if not getattr(asked, "knows_hvd", False):

        def supports(model: Any) -> bool:
            return not isinstance(getattr(model, "optimizer", None), Reducing) and bool(asked(model))

        supports.knows_hvd = True  # type: ignore[attr-defined]
        trainer.model_supports_jit = supports


def _of_v1(optimizer: Any, reduction: Reduction) -> Any:
    kind = type(optimizer)

    def compute_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = kind.compute_gradients(self, *args, **kwargs)
        grads = reduction([grad for grad, _ in pairs])
        return [(grad, variable) for grad, (_, variable) in zip(grads, pairs, strict=True)]

    made: Any = type(kind.__name__, (kind,), {"compute_gradients": compute_gradients})
    new = made.__new__(made)
    new.__dict__.update(vars(optimizer))
    return new
