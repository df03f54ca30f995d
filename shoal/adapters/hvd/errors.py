"""What Horovod raises, by its names: scripts catch them."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective operation failed: somebody is gone, or the workers asked for different things. Elastic training
    restores its last commit on it."""


class HostsUpdatedInterrupt(RuntimeError):
    """Workers come or go: elastic training begins anew with all that are there. Nothing was lost."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the workers of this job have changed")
        self.skip_sync = skip_sync


class NotStarted(ValueError):
    """A question that only an initialised Horovod can answer."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")
