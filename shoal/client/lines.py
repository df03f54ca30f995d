"""A job's log as lines: what to ask for, and the stream that gives them, batch by batch, with the place to go on."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import UTC
from typing import Any, NamedTuple

from shoal._lib.clock import Deadline, now
from shoal._lib.quantities import parse_duration
from shoal.client.http import Api
from shoal.errors import BadSpec


class LogLine(NamedTuple):
    """One line: whose (`worker-0`), when (seconds since the epoch) and what, without its line end."""

    rank: str
    at: float
    text: str


class Lines(Iterator[LogLine]):
    """Lines as they come. `cursor` is the place behind the last whole batch; `outcome` what the end said."""

    def __init__(
        self, api: Api, path: str, asked: Mapping[str, Any], cursor: str | None, deadline: Deadline | None = None
    ) -> None:
        self.cursor = cursor
        self._deadline = deadline
        self.outcome: dict[str, Any] | None = None
        self._batches = self._read(api, path, asked)
        self._ready: Iterator[LogLine] = iter(())

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> LogLine:
        while True:
            for line in self._ready:
                return line
            self._ready = iter(next(self._batches))

    def batches(self) -> Iterator[list[LogLine]]:
        """The same lines in the portions they came in, for those who print or store many at once."""
        return self._batches

    def close(self) -> None:
        self._batches.close()

    def _read(self, api: Api, path: str, asked: Mapping[str, Any]) -> Generator[list[LogLine], None, None]:
        for event in api.stream(path, asked, cursor=self.cursor, deadline=self._deadline):
            if event.event == "end":
                self.outcome = event.data
                self.cursor = event.id or self.cursor
            else:
                yield [LogLine(rank, at / 1e6, text) for rank, at, text in event.data["lines"]]
                self.cursor = event.id or self.cursor


def rank_names(rank: str | int | Iterable[str | int] | None) -> str | None:
    """`0` and `[0, "server-1"]` as the API writes them: `worker-0`, `worker-0,server-1`."""
    if rank is None:
        return None
    if isinstance(rank, str | int):
        rank = str(rank).split(",")
    names = [str(one).strip() for one in rank]
    return ",".join(f"worker-{one}" if one.isdigit() else one for one in names)


def since_seconds(since: float | str | None) -> float | None:
    """Seconds since the epoch of a number, of how long ago (`10m`), or of a time in ISO form."""
    if since is None or not isinstance(since, str):
        return since
    from datetime import datetime

    try:
        return now() - parse_duration(since)
    except ValueError:
        pass  # then it must be a time
    try:
        moment = datetime.fromisoformat(since)
    except ValueError:
        raise BadSpec(f"since: {since!r} is neither how long ago (10m, 1h30m) nor a time (2025-01-31T12:00)") from None
    return (moment if moment.tzinfo else moment.astimezone()).astimezone(UTC).timestamp()
