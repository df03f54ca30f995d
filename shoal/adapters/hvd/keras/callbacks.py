"""What Horovod's users put into `model.fit(callbacks=...)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.adapters.hvd import arrays, basics
from shoal.adapters.hvd.ask import AVERAGE
from shoal.adapters.hvd.sets import global_process_set
from shoal.adapters.hvd.tensorflow.functions import broadcast_variables
from shoal.adapters.hvd.tensorflow.optimizer import variables_of

_Callback: Any = tf.keras.callbacks.Callback  # Keras 3's, or the older one's where TF_USE_LEGACY_KERAS asks for it


class BroadcastGlobalVariablesCallback(_Callback):  # type: ignore[misc]
    """After the first batch, when all variables are there, everybody gets those of one."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank, self.broadcast_done = root_rank, False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self.broadcast_done:
            self.broadcast_done = True
            broadcast_variables(self.model.variables, self.root_rank)
            broadcast_variables(variables_of(self.model.optimizer), self.root_rank)


class MetricAverageCallback(_Callback):  # type: ignore[misc]
    """At the end of an epoch its metrics become those of all workers; put it before callbacks that read them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(logs or {})
        if names:
            values = np.array([float(logs[name]) for name in names])
            arrays.reduce([values], "metrics", AVERAGE, 1.0, 1.0, global_process_set)
            logs.update(zip(names, values.tolist(), strict=True))


class LearningRateScheduleCallback(_Callback):  # type: ignore[misc]
    """The initial rate times `multiplier(epoch)`, or a constant to the power of the epochs since the start; once an
    epoch (`staircase`), else with every batch. Keras 3 holds momentum as a constant, so it is not corrected."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.steps_per_epoch, self.current_epoch = staircase, steps_per_epoch, 0
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__} cannot tell the steps of an epoch; give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended or (self.staircase and batch):
            return
        part = 0.0 if self.staircase else batch / (self.steps_per_epoch or 1)
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(self.current_epoch + part)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = _rate(self.model)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From the rate of one worker up to the initial rate, which is that for all, over so many epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            reached = epoch + 1.0 / (self.steps_per_epoch or 1)  # round numbers at the end of each epoch
            return (reached * (basics.size() - 1) / warmup_epochs + 1) / basics.size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and basics.rank() == 0 and self.end_epoch is not None and epoch == self.end_epoch - 1:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {_rate(self.model):g}.")


class CommitStateCallback(_Callback):  # type: ignore[misc]
    """Commits an elastic state every so many batches, and at the end of an epoch."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(_Callback):  # type: ignore[misc]
    """Keeps `state.batch`, which is 0 again with each epoch."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(_Callback):  # type: ignore[misc]
    """Keeps `state.epoch`, also across runs of `fit`."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state, self.initial_epoch = state, state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


def _rate(model: Any) -> float:
    return float(np.array(model.optimizer.learning_rate))
