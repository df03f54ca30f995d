"""Where a run stands: epoch, step, samples. Counted here, by whoever sees them happen, and read by everyone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """Counts of this worker. `run.epochs` counts epochs, the first wrapped optimizer steps, `run.shard` the rest."""

    epoch: int = 0  # the one the script is in
    epochs: int | None = None  # how many there will be; None when nobody said
    step: int = 0  # steps of the first optimizer, also before a restart
    samples: int = 0  # this worker's, also before a restart
    batch: int | None = None  # samples in the newest batch
    batches: int = 0  # taken in this epoch
    length: int | None = None  # batches in an epoch of this worker; None when unknown
    samples_per_epoch: int | None = None  # of all workers together

    def took(self, samples: int | None) -> None:
        """One batch was handed to the script."""
        self.batches += 1
        if samples is not None:
            self.samples += samples
            self.batch = samples

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.batches = epoch, 0

    def done(self) -> tuple[float, int] | None:
        """How far it is, in epochs, of how many; None when that is not known."""
        if not self.epochs:
            return None
        part = min(1.0, self.batches / self.length) if self.length else 0.0
        return min(self.epoch + part, float(self.epochs)), self.epochs
