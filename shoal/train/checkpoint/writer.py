"""One thing written at a time, beside training. What goes wrong is raised where the next one begins, or at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Writer:
    """A thread for each job; it is not a daemon, so a script that just ends leaves a whole checkpoint."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, job: Callable[[], None]) -> None:
        """Starts the job; waits for the one before it, and raises what that met."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), name=self._name)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written. Raises what the last job met, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
