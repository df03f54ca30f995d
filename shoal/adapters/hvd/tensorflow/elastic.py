"""Elastic training with TensorFlow: what a state keeps of a Keras model, or of variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from shoal.adapters.hvd import elastic
from shoal.adapters.hvd.elastic import ObjectState, State
from shoal.adapters.hvd.errors import HorovodInternalError
from shoal.adapters.hvd.tensorflow.functions import broadcast_variables
from shoal.adapters.hvd.tensorflow.optimizer import variables_of

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]

T = TypeVar("T")


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Decorates the training function, whose first argument is the state."""

    @functools.wraps(func)
    def telling(state: State, *args: Any, **kwargs: Any) -> T:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as failed:  # what Python raises inside a function comes out as TensorFlow's error
            if HorovodInternalError.__name__ in str(failed):
                raise HorovodInternalError(str(failed)) from failed
            raise

    return elastic.run(telling)


class TensorFlowState(ObjectState):
    """Variables, and any objects by name."""

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self._variables = list(variables or ())
        self._values = self._read()
        super().__init__(**kwargs)

    def save(self) -> None:
        self._values = self._read()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._of(), self._values, strict=False):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._of(), root_rank=0)
        super().sync()
        self.save()

    def _of(self) -> list[Any]:
        return self._variables

    def _read(self) -> list[Any]:
        return [np.array(one.numpy()) for one in self._of()]


class TensorFlowKerasState(TensorFlowState):
    """A model and its optimizer, and any objects by name."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model, self.optimizer = model, optimizer or getattr(model, "optimizer", None)
        super().__init__(**kwargs)

    def _of(self) -> list[Any]:
        """Asked each time: variables are made when a model is first called, and an optimizer first steps."""
        return [*self.model.variables, *(variables_of(self.optimizer) if self.optimizer is not None else ())]


class KerasState(TensorFlowKerasState):
    """By its name in `horovod.keras.elastic`."""
