"""What every engine offers: nodes to place gangs on, and shepherds started, seen and ended there by a submit key.

An engine knows nothing of frameworks, of jobs' lives or of the server: it is handed one task per node, starts one
shepherd for each, and can say which of them still live. All methods are synchronous and may be called from several
threads at once; what differs between engines is said by `can`, as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from shoal.contract import Task
from shoal.job.nodes import Node

Sight = Literal["alive", "gone", "unknown"]


@dataclass(frozen=True, slots=True)
class Can:
    """What an engine is able to do, for generic code to ask instead of the engine's name."""

    resize: bool = False  # nodes may come and go while a gang runs
    containers: bool = False  # a process can run in an image
    shared_folder: bool = False  # every node sees the server's home, so that a job can run in place
    pretend: bool = False  # nodes are pretended: they share one machine's cores, memory and addresses


@dataclass(frozen=True, slots=True)
class Gang:
    """All shepherds of one attempt, one task per node; `key` makes starting it idempotent.

    `owner` is whose it is: gangs of one owner need not be kept apart. `programs` are the absolute paths of what its
    ranks run: a sandbox must let them see it.
    """

    key: str
    tasks: tuple[Task, ...]
    owner: str = ""
    programs: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(task.node for task in self.tasks)


@dataclass(frozen=True, slots=True)
class Liveness:
    """Which shepherds of a gang still live, node by node. A shepherd that is only just starting counts as alive."""

    nodes: Mapping[str, Sight] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Nothing of the gang lives; also true of a gang nobody has heard of."""
        return all(sight == "gone" for sight in self.nodes.values())

    @property
    def gone(self) -> tuple[str, ...]:
        return tuple(node for node, sight in self.nodes.items() if sight == "gone")


class Engine(Protocol):
    """Where gangs run."""

    name: str
    can: Can

    def nodes(self) -> tuple[Node, ...]:
        """Every node with all it has, whether in use or not. Answers at once, from what was last seen; the names are
        stable for as long as the engine lives."""
        ...

    def start(self, gang: Gang) -> str:
        """Starts one shepherd per task and returns a handle, a short text to be stored with the attempt.

        Returns in milliseconds, once the shepherds are handed over; that they live is for `poll` to say and that they
        joined for the server. Twice with the same key starts nothing the second time and gives the same handle, also
        after the first caller died half way and also when the gang has ended since or was killed, until `clean`.
        Raises StartFailed when a shepherd cannot be started; then nothing of the gang is left running.
        """
        ...

    def poll(self, handles: Mapping[str, str]) -> Mapping[str, Liveness]:
        """One question for many gangs, key to handle; the answer has every key asked for.

        Never raises for one gang's sake: what cannot be told is "unknown", which is never a reason to act. A gang that
        was cleaned or never started is gone on all nodes its handle names (none, for an empty handle).
        """
        ...

    def kill(self, key: str, handle: str = "") -> bool:
        """Ends everything of the gang at once, without grace: shepherds, ranks and whatever they forked.

        Returns True when nothing is left. False when something did not die within a few seconds, or when what the
        shepherds had not sent of the logs is still being sent, which goes on in the background: ask again. Twice, or
        for a gang that is gone or was never started, is harmless; the handle may be empty when it was never stored.
        """
        ...

    def clean(self, key: str, handle: str = "") -> bool:
        """Forgets the gang and removes what the engine kept for it.

        Returns True when nothing of it is left, also the second time; False, with nothing removed, while a shepherd
        lives or its last logs are still being sent: ask again later.
        """
        ...

    def leftovers(self) -> tuple[str, ...]:
        """The keys of all gangs that were started and not yet cleaned, also by an earlier server; answers at once."""
        ...

    def close(self) -> None:
        """Lets go of the engine's own resources. Gangs keep running; twice is harmless."""
        ...
