"""The seven states of a job, and what each one knows about itself."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"  # waits for a place, or for the pause before a retry
    STARTING = "starting"  # a place is reserved; shepherds start and join
    RUNNING = "running"  # every rank has been started
    STOPPING = "stopping"  # the outcome is known; processes are being ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self in ENDED

    @property
    def holds_place(self) -> bool:
        """Whether nodes are reserved for it."""
        return self in HOLDING


ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED})
HOLDING = frozenset({State.STARTING, State.RUNNING, State.STOPPING})
