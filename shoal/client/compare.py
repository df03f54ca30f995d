"""One script under several strategies, one after another under the same budget; and what a few profiled steps suggest.

Every run is an ordinary job: it is queued, placed and logged as any other. What each learned is read from the reports
that the training library leaves in `outputs/metrics/`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal import strategy as strategies
from shoal.client.draft import Draft, draft
from shoal.client.http import Api
from shoal.client.jobs import Job
from shoal.errors import BadSpec, NotFound, ShoalError
from shoal.home import Home, write_private
from shoal.job.compared import Comparison, Course, compare, course_of
from shoal.job.suggest import Machines, Profile, Suggestion, suggest

STRATEGIES = ("allreduce", "ps-async", "local-sgd:every=16", "gossip")
PROFILE_VARIABLE = "TRAIN_PROFILE"
PROFILE_FILE = "outputs/profile.json"
PROFILE_STEPS = 20
PROFILE_LIMIT = 300.0  # seconds
COPY = 64 << 20  # bytes copied to measure what moving memory costs here
HISTORY = "compare.jsonl"

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A job as it was named: plain data, the folder to send, and where relative paths start."""

    raw: Raw
    folder: Path | None = None
    base: Path | None = None

    def under(self, text: str | None, **keys: Any) -> Draft:
        """The job under a strategy; servers are left to those that have them."""
        raw = {name: value for name, value in self.raw.items() if name != "strategy"}
        if text is None or not strategies.parse(text).kind.servers:
            raw.pop("servers", None)
        if text is not None:
            raw["strategy"] = text
        return draft({**raw, **keys}, folder=self.folder, base=self.base)


def run_all(
    api: Api,
    source: Source,
    chosen: Sequence[str],
    *,
    budget: float | None = None,
    metric: str | None = None,
    goal: float | None = None,
    told: Callable[[Job, str], None] = lambda job, strategy: None,
) -> Comparison:
    """Runs the job under each strategy in turn and judges the runs. BadSpec before anything is sent."""
    if len(set(chosen)) < len(chosen):
        raise BadSpec(f"a strategy is named twice in {', '.join(chosen)}; name each once")
    limit = {} if budget is None else {"max_duration": budget}
    drafts = [(text, source.under(text, **limit)) for text in chosen]
    courses = []
    for text, ready in drafts:
        job = Job(api, ready.send(api))
        told(job, text)
        courses.append(read_course(job.wait(), text))
    return compare(courses, metric, goal)


def read_course(job: Job, strategy: str) -> Course:
    """What the workers of an ended job reported."""
    workers = [rank["name"] for rank in job.ranks if rank["role"] == "worker"]
    reports = {worker: _reports(job, worker) for worker in workers}
    return course_of(strategy, {name: lines for name, lines in reports.items() if lines}, job.state, job.id)


def _reports(job: Job, worker: str) -> list[dict[str, Any]]:
    text = _file(job, f"outputs/metrics/{worker}.jsonl")
    lines = []
    for line in (text or "").splitlines():
        with suppress(ValueError):  # the last line of a rank that was killed while it wrote
            lines.append(json.loads(line))
    return lines


def _file(job: Job, path: str) -> str | None:
    try:
        return b"".join(job.api.get_bytes(f"/jobs/{job.id}/file", {"path": path})).decode()
    except NotFound:
        return None


def advise(api: Api, source: Source) -> Suggestion:
    """Profiles a few steps in one process, measures what moving memory costs here, and suggests."""
    asked = source.under(None).spec
    env = {**asked.env, PROFILE_VARIABLE: f"{PROFILE_FILE}:{PROFILE_STEPS}"}
    alone = source.under(None, workers=1, env=env, max_duration=PROFILE_LIMIT, retries=0)
    job = Job(api, alone.send(api)).wait()
    text = _file(job, PROFILE_FILE)
    if text is None:
        raise ShoalError(
            f"the profiled run {job.id} left no profile ({job.reason}: {job.message}); a script is profiled through "
            "shoal.train: does it call train.start() and run.wrap()? Read 'shoal logs " + job.id + "'"
        )
    workers = next((role.high for role in asked.expand() if role.name == "worker"), 1)
    servers = asked.servers.high if asked.servers else 1
    machines = Machines(workers, bandwidth(), servers, memory=asked.resources.memory or 0)
    return suggest(read_profile(json.loads(text)), machines)


def read_profile(raw: Raw) -> Profile:
    return Profile(
        compute=float(raw["compute_seconds"]),
        parameter_bytes=int(raw["parameter_bytes"]),
        slow=float(raw.get("slow_seconds") or 0.0),
        touched=float(raw.get("touched", 1.0)),
        batch=int(raw.get("batch") or 0),
    )


def bandwidth() -> float:
    """Bytes a second that memory is copied with here: what workers of one machine exchange by."""
    source, target = bytearray(COPY), bytearray(COPY)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - begin)
    return COPY / best


def remember(home: Home, script: str, comparison: Comparison) -> tuple[int, int]:
    """Notes the outcome; how often the suggestion was right, of how many comparisons that had one."""
    file = home.root / HISTORY
    known = _history(file)
    if comparison.suggested is not None and comparison.winner is not None:
        known.append({"at": time.time(), "script": script, **_outcome(comparison)})
        write_private(file, "".join(f"{json.dumps(one)}\n" for one in known))
    right = sum(one["suggested"] == one["winner"] for one in known)
    return right, len(known)


def _outcome(comparison: Comparison) -> dict[str, Any]:
    names = [course.strategy for course in comparison.courses]
    return {"strategies": names, "suggested": comparison.suggested, "winner": comparison.winner}


def _history(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]


def with_suggestion(comparison: Comparison, suggestion: Suggestion) -> Comparison:
    """The comparison with the best-ranked strategy among those that were run."""
    names = {_family(course.strategy): course.strategy for course in comparison.courses}
    ranked = [names[_family(one.strategy)] for one in suggestion.ranking if _family(one.strategy) in names]
    return replace(comparison, suggested=ranked[0] if ranked else None, notes=suggestion.reasons)


def _family(text: str) -> str:
    return text.partition(":")[0]
