"""What people ask for: submit, plan, stop, remove, show, why. One set of checks for every door."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from shoal import environments
from shoal._lib import clock
from shoal._lib.ids import short_id
from shoal.control import goods
from shoal.control.describe import describe_job, waits_for
from shoal.control.parts import Parts, wake_queue
from shoal.control.people import User
from shoal.errors import BadSpec, Conflict, NotAllowed
from shoal.job.life import JobRecord, StopAsked
from shoal.job.plan import Plan, make_plan
from shoal.job.spec import parse
from shoal.job.states import State
from shoal.schedule import Waiting, check_possible, decide
from shoal.schedule.fit import rooms

QUEUE_LOOK = 500  # how far `why` looks along the queue


class Desk:
    """One per server. Methods may be called from any thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store = parts.store

    def plan(self, user: User, raw: Any) -> dict[str, Any]:
        """What would be started, and whether it could start now; refuses what could never run here."""
        plan = self._plan(raw)
        goods.check_addresses(self._parts, plan.spec, plan.spec.owner or user.name)
        engine = plan.spec.engine
        nodes = self._parts.nodes_of(engine)
        decision = decide([Waiting("this", plan.slots)], nodes, self._held(engine))
        fits = bool(decision.starts)
        return {
            **plan.to_dict(),
            "spec": plan.spec.model_dump(mode="json", exclude_defaults=True),
            "engine": engine or self._parts.default_engine,
            "fits_now": fits,
            "placement": [{"slot": f"{b.slot.role}-{b.slot.index}", "node": b.node, "gpus": list(b.gpus)}
                          for start in decision.starts for b in start.placement],
            "why": "it can start at once" if fits else decision.why["this"].message,
            "nodes": [node.to_dict() for node in nodes],
        }  # fmt: skip

    def submit(self, user: User, raw: Any, manifest: str | None, in_place: str | None) -> tuple[JobRecord, bool]:
        """Stores the job as queued in one transaction; the same idempotency key gives the same job."""
        plan = self._plan(raw)
        spec = plan.spec
        owner = spec.owner or user.name
        if owner != user.name and not user.admin:
            raise NotAllowed(f"only an administrator submits for others; leave owner out, or write {user.name!r}")
        if owner != user.name:
            self._store.user(owner)  # NotFound for a name that is nobody's
        if spec.in_place != (in_place is not None):
            raise BadSpec("in_place needs the absolute folder to run in; the command line and the SDK send it")
        if in_place is not None:
            self._check_folder(user, in_place, spec.engine)
        self._check_script(spec.script, owner, manifest, in_place)
        self._check_environment(spec.environment, owner, manifest, in_place)
        goods.check_addresses(self._parts, spec, owner)
        record = JobRecord(
            id=short_id(),
            owner=owner,
            spec=spec,
            created_at=clock.now(),
            manifest=manifest,
            in_place=in_place,
        )
        stored, created = self._store.submit(record, spec.key)
        wake_queue(self._parts)
        return stored, created

    def find(self, user: User, ref: str) -> JobRecord:
        return self._store.find(ref, user.scope)

    def show(self, user: User, ref: str) -> dict[str, Any]:
        return describe_job(self._store, self.find(user, ref))

    def stop(self, user: User, ref: str, grace: float | None = None, message: str = "") -> JobRecord:
        """Asks a job to stop; an ended one stays as it is."""
        record = self.find(user, ref)
        changed = self._store.advance(record.id, StopAsked(user.name, message, grace), clock.now())
        wake_queue(self._parts)
        self._parts.bell.ring(f"job:{record.id}")
        return changed

    def delete(self, user: User, ref: str) -> None:
        """Removes an ended job with its logs, its private copy and its history."""
        record = self.find(user, ref)
        if not record.state.ended:
            what = "it ends soon" if record.state is State.STOPPING else f"stop it first with 'shoal stop {record.id}'"
            raise Conflict(f"job {record.id} is {record.state}; {what}, then remove it")
        # The row goes last: should we die before, the job is still listed and can be removed again.
        self._parts.logs.drop(record.id)
        work = self._parts.home.work
        shutil.rmtree(work / record.id, ignore_errors=True)
        (work / f".{record.id}.complete").unlink(missing_ok=True)  # the shepherds' note beside the folder
        self._store.delete_job(record.id)
        self._parts.bell.ring(f"job:{record.id}")

    def why(self, user: User, ref: str) -> dict[str, Any]:
        """Why the job is where it is: for a waiting one the rule that holds it back, from the scheduler's own code."""
        record = self.find(user, ref)
        ranks = self._store.ranks(record.key) if record.state is State.RUNNING else ()
        said = record.message or waits_for(record, ranks)
        answer: dict[str, Any] = {
            "id": record.id,
            "state": record.state.value,
            "rule": record.reason.code,
            "message": said or f"it {'has' if record.state is State.SUCCEEDED else 'is'} {record.state}",
            "advice": record.reason.advice,
            "position": None,
            "before": [],
        }
        if record.state is State.QUEUED:
            answer.update(self._why_queued(record))
        return answer

    def nodes(self) -> list[dict[str, Any]]:
        """Every node with what it has and what is given away."""
        found = []
        for name, engine in self._parts.engines.items():
            nodes = engine.nodes()
            for room in rooms(nodes, self._held(name)).values():
                free = {"cpu": room.cpu / 1000, "memory": room.memory, "gpus": room.gpus, "shares": room.shares}
                found.append({**room.node.to_dict(), "free": free, "processes": room.berths})
        return found

    def engines(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "default": name == self._parts.default_engine,
                "nodes": len(engine.nodes()),
                "can": {k: getattr(engine.can, k) for k in engine.can.__dataclass_fields__},
            }
            for name, engine in self._parts.engines.items()
        ]

    def _plan(self, raw: Any) -> Plan:
        plan = make_plan(parse(raw), self._parts.served)
        check_possible(plan.slots, self._parts.nodes_of(plan.spec.engine))
        return plan

    def _held(self, engine: str | None) -> list[Any]:
        wanted = engine or self._parts.default_engine
        held = []
        for attempt in self._store.open_attempts():
            record = self._store.job(attempt.job_id)
            if (record.spec.engine or self._parts.default_engine) == wanted:
                held.append(attempt.placement)
        return held

    def _check_folder(self, user: User, folder: str, engine: str | None) -> None:
        """The server reads that folder with its own rights and shows it to the job's owner, whatever the job may."""
        if not user.admin and self._parts.isolation().mode != "none":
            raise NotAllowed(
                f"in_place: only an administrator runs in place ({folder!r}) where jobs of different users are kept "
                "apart; leave it out, and the folder is uploaded"
            )
        if not self._parts.engine_of(engine).can.shared_folder:
            raise BadSpec(
                "in_place needs an engine whose nodes see this folder; leave it out, and the folder is uploaded"
            )
        if not Path(folder).is_absolute() or not Path(folder).is_dir():
            raise BadSpec(
                f"in_place: {folder!r} is not a folder on the server's machine; give an absolute path that exists"
            )
        if Path(folder).resolve().is_relative_to(self._parts.home.root.resolve()):
            raise BadSpec(f"in_place: {folder!r} lies in SHOAL_HOME, which is the server's own; run somewhere else")

    def _check_script(self, script: str | None, owner: str, manifest: str | None, in_place: str | None) -> None:
        """A script that is not there is said before the job is stored, not by a rank that dies."""
        if manifest is not None:
            paths = {entry.path for entry in goods.load_manifest(self._parts, owner, manifest).entries}
            if script is not None and not Path(script).is_absolute() and os.path.normpath(script) not in paths:
                raise BadSpec(f"script: {script!r} is not in the uploaded folder; give its path relative to the folder")
        elif script is not None and in_place is not None:
            if not (Path(in_place) / script).is_file():
                raise BadSpec(f"script: {script!r} is not a file in {in_place}")
        elif script is not None and not Path(script).is_absolute():
            raise BadSpec("script: nothing was uploaded; send the script's folder as a manifest, or use in_place")

    def _check_environment(
        self, environment: str | None, owner: str, manifest: str | None, in_place: str | None
    ) -> None:
        """A requirements file that is not there is said before the job is stored, not by a node that cannot build."""
        if environment is None or not environments.is_file(environment):
            return
        path = environments.read(environment).path
        if manifest is not None:
            found = any(entry.path == path for entry in goods.load_manifest(self._parts, owner, manifest).entries)
        else:
            found = in_place is not None and (Path(in_place) / path).is_file()
        if not found:
            where = f"in {in_place}" if in_place else "in the uploaded folder" if manifest else "here: nothing was sent"
            raise BadSpec(f"environment: there is no file {path!r} {where}; send the folder that holds it")

    def _why_queued(self, record: JobRecord) -> dict[str, Any]:
        now = clock.now()
        position, before = self._store.queue_position(record.id)
        if record.not_before is not None and record.not_before > now:
            left = record.not_before - now
            return {"rule": "backoff", "message": f"{record.message}; starts in {left:.0f} s", "position": position}
        engine = record.spec.engine
        queue = [
            Waiting(other.id, make_plan(other.spec, self._parts.served).slots)
            for other in self._store.queue(now, QUEUE_LOOK)
            if other.spec.engine == engine
        ]
        decision = decide(queue, self._parts.nodes_of(engine), self._held(engine))
        found = decision.why.get(record.id)
        message = found.message if found else "it starts at the next decision"
        return {
            "rule": found.rule if found else "next",
            "message": message,
            "position": position,
            "before": list(before),
            "blocked_by": found.behind if found else None,
        }
