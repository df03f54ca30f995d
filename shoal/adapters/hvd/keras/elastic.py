"""Elastic training of Keras models."""

from __future__ import annotations

from shoal.adapters.hvd.keras.callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from shoal.adapters.hvd.tensorflow.elastic import KerasState, run

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
