"""A job seen from outside: submit it, watch it, read its lines, stop it, fetch what it left.

Listing jobs imports nothing heavy, so that `shoal jobs` is quick: the specification's model is only loaded to submit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote

from shoal._lib.clock import Deadline
from shoal.client.connect import current
from shoal.client.http import Api
from shoal.client.lines import Lines, LogLine, rank_names, since_seconds
from shoal.errors import NotFound, ShoalError

if TYPE_CHECKING:
    from shoal.client.draft import Source
    from shoal.client.upload import Progress

ENDED = frozenset({"succeeded", "failed", "stopped"})  # as in shoal.job.states, which would bring pydantic with it
PAGE = 500
RESULT = "result.json"  # where a remote function leaves what it returned, in the job's folder

__all__ = ["ENDED", "Job", "JobFailed", "LogLine", "find", "jobs", "submit"]


class JobFailed(ShoalError):
    """A job whose result was waited for and that did not succeed; carries the last lines of its log."""

    code = "job_failed"

    def __init__(self, job: Job, lines: Iterable[str]) -> None:
        self.job = job
        self.lines = list(lines)
        why = f"{job.reason}: {job.message}" if job.message else job.reason
        tail = "".join(f"\n  {line}" for line in self.lines)
        super().__init__(
            f"job {job.id} ({job.name}) {job.state}: {why}. {job.advice}{tail}",
            job=job.id,
            state=job.state,
            reason=job.reason,
            exit_code=job.exit_code,
            lines=self.lines,
        )


class Job:
    """One job. Its attributes are what the server last said; `data` holds all of it, `refresh()` asks again."""

    def __init__(self, api: Api, data: Mapping[str, Any]) -> None:
        self.api = api
        self.data: dict[str, Any] = dict(data)

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.name!r} {self.state}>"

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def name(self) -> str:
        return str(self.data.get("name") or "")

    @property
    def state(self) -> str:
        return str(self.data.get("state") or "")

    @property
    def reason(self) -> str:
        return str(self.data.get("reason") or "")

    @property
    def message(self) -> str:
        return str(self.data.get("message") or "")

    @property
    def advice(self) -> str:
        """What to do next, with the job's id where the server says JOB: ready to be typed."""
        return re.sub(r"\bJOB\b", self.id, str(self.data.get("advice") or ""))

    @property
    def owner(self) -> str:
        return str(self.data.get("owner") or "")

    @property
    def attempt(self) -> int:
        return int(self.data.get("attempt") or 0)

    @property
    def exit_code(self) -> int | None:
        return self.data.get("exit_code")

    @property
    def created_at(self) -> float | None:
        return self.data.get("created_at")

    @property
    def started_at(self) -> float | None:
        return self.data.get("started_at")

    @property
    def ended_at(self) -> float | None:
        return self.data.get("ended_at")

    @property
    def progress(self) -> float | None:
        return self.data.get("progress")

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def spec(self) -> dict[str, Any]:
        """The specification as plain data, keys at their default left out."""
        return dict(self._whole().get("spec") or {})

    @property
    def ranks(self) -> list[dict[str, Any]]:
        return list(self._whole().get("ranks") or [])

    @property
    def origin(self) -> dict[str, Any]:
        """Where it was sent from: host, user, command, and the git repository of its folder; empty when nobody said."""
        return dict(self._whole("origin").get("origin") or {})

    @property
    def record(self) -> dict[str, Any]:
        """What its last attempt ran in and read: nodes, interpreter, packages, frameworks, inputs, commands."""
        attempts = self.refresh().data.get("attempts") or [{}]
        return dict(attempts[-1].get("record") or {})

    def diff(self) -> str:
        """How its folder differed from its git commit when it was sent; NotFound where that is not known."""
        return str(self.api.request("GET", self._path("diff")) or "")

    def refresh(self) -> Job:
        self.data = dict(self.api.request("GET", self._path()))
        return self

    def watch(self, timeout: float | None = None) -> Iterator[Job]:
        """This job, each time something about it changed, until it has ended or the time is over."""
        deadline = None if timeout is None else Deadline(timeout)
        stream = self.api.stream(
            self._path("watch"), done=lambda event: event.data.get("state") in ENDED, deadline=deadline
        )
        for event in stream:
            if event.event == "message":
                self.data = dict(event.data)
                yield self

    def wait(self, timeout: float | None = None) -> Job:
        """Returns once the job has ended; TimeoutError when it has not after `timeout` seconds."""
        for _ in self.watch(timeout):
            if self.ended:
                return self
        if not self.refresh().ended:
            raise TimeoutError(f"job {self.id} is still {self.state} after {timeout:g} s; wait again, or stop it")
        return self

    def logs(
        self,
        rank: str | int | Iterable[str | int] | None = None,
        since: float | str | None = None,
        tail: int | None = None,
        grep: str | None = None,
        follow: bool = False,
        cursor: str | None = None,
        attempt: int | None = None,
        deadline: Deadline | None = None,
    ) -> Lines:
        """The lines in time order: an iterator of LogLine, whose `cursor` says where to go on later.

        `rank` is 0, "worker-0", "server-1" or several; `since` seconds since the epoch, or how long ago ("5m"). What is
        followed until a `deadline` ends there.
        """
        asked = {
            "rank": rank_names(rank),
            "since": since_seconds(since),
            "tail": tail,
            "grep": grep,
            "follow": int(follow),
            "attempt": attempt,
        }
        return Lines(self.api, self._path("logs"), asked, cursor, deadline)

    def follow(self, file: TextIO | None = None) -> Job:
        """Prints the lines of all ranks as they come, until the job has ended."""
        out = file or sys.stdout
        for batch in self.logs(follow=True).batches():
            out.writelines(f"{line.rank} | {line.text}\n" for line in batch)
            out.flush()
        return self.wait()

    def stop(self, grace: float | None = None, force: bool = False, message: str | None = None) -> Job:
        """Asks the job to stop: SIGTERM, `grace` seconds, SIGKILL; with `force` at once. Does not wait for it."""
        body = {"force": force or None, "grace": grace, "message": message}
        sent = {name: value for name, value in body.items() if value is not None}
        self.data = {**self.data, **self.api.request("POST", self._path("stop"), json=sent, again=True)}
        return self

    def events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """What happened to the job, oldest first: {seq, at, kind, reason, message, data}."""
        seen: int | None = after
        while seen is not None:
            page = self.api.request("GET", self._path("events"), params={"after": seen, "limit": PAGE})
            yield from page["events"]
            seen = page.get("next") if page["events"] else None

    def why(self) -> dict[str, Any]:
        """Why it is in its state: for a queued job what it waits for."""
        return dict(self.api.request("GET", self._path("why")))

    def stacks(self, rank: str | int | Iterable[str | int] | None = None, timeout: float = 60.0) -> dict[str, str]:
        """Rank → where its threads stand now, or why that cannot be told. Conflict for one that does not run."""
        from shoal.client.stacks import stacks_of

        return stacks_of(self, self._path("stacks"), rank, timeout)

    def samples(self, rank: str | int | None = None) -> list[dict[str, Any]]:
        """What its processes used, over time."""
        return list(self.api.request("GET", self._path("samples"), params={"rank": rank_names(rank)}) or [])

    def get(self, target: str | Path = ".", path: str = "") -> Path:
        """Fetches the job's folder (or `path` in it) into `target`; goes on where a broken fetch stopped."""
        from shoal.client import data

        return data.get(self.api, f"job://{self.id}/{path}", target)

    def remove(self) -> None:
        """Forgets an ended job with its logs and files."""
        self.api.request("DELETE", self._path())

    def clone(self, **changes: Any) -> Job:
        """Submits it again with the same code, some keys changed; None takes a key out."""
        from shoal.client.draft import clone_of

        return Job(self.api, clone_of(self.refresh().data, changes).post(self.api))

    def result(self, timeout: float | None = None) -> Any:
        """What the remote function returned, once the job has ended; JobFailed with the last lines otherwise."""
        from json import loads

        if self.wait(timeout).state != "succeeded":
            raise JobFailed(self, [f"{line.rank} | {line.text}" for line in self.logs(tail=20)])
        try:
            written = b"".join(self.api.get_bytes(self._path("file"), {"path": RESULT}))
        except NotFound:
            raise NotFound(
                f"job {self.id} left no {RESULT}: only @shoal.remote functions return a value; job.get() fetches files"
            ) from None
        return loads(written)

    def _path(self, part: str = "") -> str:
        return f"/jobs/{quote(self.id, safe='')}" + (f"/{part}" if part else "")

    def _whole(self, key: str = "spec") -> dict[str, Any]:
        """A job from a list knows only its line, a watched one not its origin; the rest is fetched when asked for."""
        if key not in self.data:
            self.refresh()
        return self.data


def submit(
    source: Source,
    *,
    folder: str | Path | None = None,
    base: str | Path | None = None,
    api: Api | None = None,
    progress: Progress | None = None,
    **keys: Any,
) -> Job:
    """Sends a job: a script, a job file, a specification, a dict, or one of the job classes, with keys laid over it.

    The script's folder goes along (`folder` names another); relative paths start at `base`, the current folder unless
    told otherwise. Everything is checked before anything is sent.
    """
    from shoal.client.draft import draft

    ready = draft(source, folder=folder, base=base, **keys)
    server = api or current()
    return Job(server, ready.send(server, progress))


def find(ref: str, api: Api | None = None) -> Job:
    """The job with that id, a unique beginning of one (4 characters or more), or the newest with that name."""
    server = api or current()
    return Job(server, server.request("GET", f"/jobs/{quote(ref, safe='')}"))


def jobs(
    *,
    state: str | Iterable[str] | None = None,
    owner: str | None = None,
    project: str | None = None,
    name: str | None = None,
    tag: str | None = None,
    framework: str | None = None,
    limit: int | None = None,
    api: Api | None = None,
) -> Iterator[Job]:
    """Jobs, newest first, fetched page by page as one goes; `limit` bounds how many."""
    server = api or current()
    states = state if state is None or isinstance(state, str) else ",".join(state)
    asked = {"state": states, "owner": owner, "project": project, "name": name, "tag": tag, "framework": framework}
    left, cursor = limit, None
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = server.request("GET", "/jobs", params={**asked, "limit": size, "cursor": cursor})
        yield from (Job(server, line) for line in page["jobs"])
        left = None if left is None else left - len(page["jobs"])
        cursor = page.get("next")
        if not cursor or not page["jobs"]:
            return
