"""What shepherds say and hear: joins, rosters, launches, ends of ranks, logs, goodbyes.

Everything that matters is a row; what is held in memory here only saves questions (is this secret right, is there a
directive I have not shown yet) and can be lost at any moment.
"""

from __future__ import annotations

import gzip
import hmac
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from shoal._lib import clock
from shoal._lib.backoff import delay
from shoal.contract import Member, Roster, gang_secret
from shoal.control import goods
from shoal.control.known import Known
from shoal.control.log_batch import read_batch
from shoal.control.parts import BEAT_SECONDS, Parts, wake_queue
from shoal.control.seating import environment_of, launcher_of, roster_of
from shoal.errors import BadSpec, DiskFull, GangOver, NotFound, NotSignedIn, OffsetGap, ShoalError, StoreError
from shoal.job.gang import RankEnd, RankLife, Verdict, aborted_after_end, can_spare, explain, judge
from shoal.job.life import Finished, Gone, JobRecord, Joined
from shoal.job.reasons import Reason
from shoal.job.record import NodeRecord, hidden_words
from shoal.job.states import State
from shoal.launch.api import Place
from shoal.store import RankRow

LATE_LOGS = 3600.0  # seconds after its end in which a gang's last lines are still taken
SETTLE_TRIES = 10

log = logging.getLogger("shoal.control")


class Gangs:
    """One per server. Methods may be called from any thread.

    `later` runs what may take minutes (copying outputs) where nobody waits for it; at once when left out.
    """

    def __init__(self, parts: Parts, later: Callable[[Callable[[], None]], object] | None = None) -> None:
        self._parts = parts
        self._later = later
        self._store = parts.store
        self._known: dict[str, Known] = {}
        self._seen: dict[tuple[str, str], None] = {}
        self._heard = 0  # seq of the newest directive of any server
        self._lock = threading.Lock()

    def check(self, key: str, secret: str, late: bool = False) -> None:
        """NotSignedIn for a wrong secret, GangOver for a gang that has ended (`late`: last logs are still taken)."""
        expected = gang_secret(self._store.server_secret(), key)
        if not hmac.compare_digest(expected.encode(), secret.encode()):
            raise NotSignedIn("this is not the gang's secret; only the shepherds of the attempt may speak here")
        over = self._look_up(key).over_at
        if over is not None and not (late and clock.now() - over < LATE_LOGS):
            raise GangOver(f"gang {key} is over; end your processes and leave", key=key)

    def knows(self, key: str) -> bool:
        """Whether the gang is in memory, so that checking it asks no database."""
        return key in self._known

    def seen(self, key: str, node: str) -> None:
        """Notes a sign of life; the loop writes them down together."""
        self._seen[key, node] = None

    def take_seen(self) -> list[tuple[str, str]]:
        taken, self._seen = self._seen, {}
        return list(taken)

    def join(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """A shepherd announces its address and ports. The last one to come completes the gang."""
        known = self._look_up(key)
        node = str(body["node"])
        all_in = self._store.join(
            key, node, body["address"], body.get("host", ""), body.get("ports", {}), body.get("pid"), clock.now()
        )
        self.seen(key, node)
        if all_in:
            self._complete(known)
        return {"beat": BEAT_SECONDS, "roster": known.attempt.roster_version}

    def directives(self, key: str, node: str, after: int) -> list[dict[str, Any]]:
        """What this node has not been told yet; asks the database only when there is something new."""
        known = self._look_up(key)
        newest = known.newest
        if node in newest and max(newest[node], newest.get("", 0)) <= after:
            return []
        found = self._store.directives(key, node, after)
        known.note(node, int(found[-1]["seq"]) if found else after)
        return found

    def direct(self, key: str, kind: str, data: dict[str, Any], node: str | None = None) -> None:
        """Tells one node, or all, what to do: a row first, then a ring of the bell."""
        seq = self._store.direct(key, kind, data, node=node, now=clock.now())
        self._look_up(key).note(node or "", seq)
        self._parts.bell.ring(f"gang:{key}")

    def hear_others(self) -> None:
        """Servers that share the database give directives too: notes them for the shepherds that speak to this one."""
        while heard := self._store.directives_since(self._heard):
            self._heard = heard[-1][0]
            for seq, key, node in heard:
                known = self._known.get(key)
                if known is not None:
                    known.note(node or "", seq)
                    self._parts.bell.ring(f"gang:{key}")

    def progress(self, key: str, ranks: dict[str, dict[str, Any]]) -> None:
        if ranks:
            self._store.set_progress(key, ranks, clock.now())
            self._ring_job(self._look_up(key))

    def launch(self, key: str, node: str) -> dict[str, Any]:
        """The commands and environments of the ranks on one node."""
        known = self._look_up(key)
        roster, _ = self._roster(known)
        record = known.record
        launcher = launcher_of(record)
        roles = {role.name: role for role in record.spec.expand()}
        processes = [
            launcher.process(record.spec, roles[member.role], roster, member, self._place(known, member)).to_dict()
            for member in known.members.get(node, ())
        ]
        return {
            "processes": processes,
            "roster": roster.version,
            "code": record.manifest is not None,
            "environment": environment_of(self._parts, record.spec),
            "inputs": list(record.spec.brought),
            "grace": record.spec.grace,
        }

    def roster(self, key: str) -> bytes:
        """The roster as gzipped JSON, packed once for all who ask."""
        return self._roster(self._look_up(key))[1]

    def code(self, key: str) -> Iterator[bytes]:
        return goods.code_of(self._parts, self._look_up(key).record)

    def input(self, key: str, name: str) -> Iterator[bytes]:
        known = self._look_up(key)

        def tell(given: goods.Given) -> None:
            if known.inputs.get(name) != given:  # thousands of nodes are given the same, and it is written once
                self._store.put_input(key, name, given.digest, given.files, given.bytes)
                known.inputs[name] = given

        return goods.input_of(self._parts, known.record, name, tell)

    def record(self, key: str, node: str, raw: Any) -> None:
        """What a node says of itself, of the interpreter of its ranks and of how they were started."""
        known = self._look_up(key)
        if known.hidden is None:
            spec, origin = known.record.spec, self._store.origin(known.record.id) or {}
            known.hidden = hidden_words(spec.args or spec.command or (), origin.get("hidden") or {})
        said = NodeRecord.read(raw).without(known.hidden)
        twin = known.installed.setdefault(said.installed(), node) if said.packages else node
        self._store.put_record(key, node, (said if twin == node else said.as_on(twin)).to_dict())
        self.seen(key, node)

    def ranks(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """Starts and ends of ranks; twice is the same as once. The answer may already carry what to do next."""
        known = self._look_up(key)
        node, events = str(body["node"]), list(body["events"])
        self.seen(key, node)
        with known.lock:
            if self._store.rank_events(key, node, events, clock.now()):
                self._note_waits(known, events)
                self._ring_job(known)
            # Judged also when told again: a server may have died between taking the event down and judging it.
            if any(event["event"] not in ("started", "preparing") for event in events):
                self._judge(known)
        acked = max((int(event["n"]) for event in events), default=0)
        return {"acked": acked, "directives": self.directives(key, node, int(body.get("seen", 0)))}

    def logs(self, key: str, body: bytes) -> dict[str, Any]:
        """Pieces of logs; the answer says where each stream continues."""
        known = self._look_up(key)
        ends: dict[str, int] = {}
        for stream, offset, frames in read_batch(body):
            if stream not in known.streams:
                raise BadSpec(f"the gang has no rank that writes a log {stream[:100]!r}")
            try:
                ends[stream] = self._parts.logs.append(
                    known.record.id, known.attempt.number, stream, offset, frames, known.record.spec.log_limit
                )
            except OffsetGap as gap:
                ends[stream] = gap.expected
        self._parts.bell.ring(f"log:{known.record.id}")
        return {"offsets": ends}

    def done(self, key: str, node: str) -> None:
        """A shepherd leaves: all its processes are gone, all its logs are here. The last one ends the attempt."""
        if self._store.done(key, node, clock.now()):
            self.settle(key)

    def settle(self, key: str) -> None:
        """Nothing is left of the gang: outputs are put away, the attempt is closed, the place is free.

        Once: who comes while it is being done, or after, has nothing to wait for.
        """
        known = self._look_up(key)
        if known.over_at is not None or not known.settling.acquire(blocking=False):
            return
        if self._later is None or known.record.spec.outputs is None:
            self._settle(known)
        else:
            self._later(partial(self._settle_patiently, known))

    def _settle_patiently(self, known: Known) -> None:
        """A database that is away for a moment is waited for; after that the control loop comes back to it."""
        for tries in range(SETTLE_TRIES):
            try:
                self._settle(known)
                return
            except Exception:
                log.exception("gang %s could not be closed", known.attempt.key)
            time.sleep(delay(tries, 1.0, 30.0))
            if not known.settling.acquire(blocking=False):
                return

    def _settle(self, known: Known) -> None:
        try:
            if known.over_at is not None:
                return
            self._put_outputs_away(known.record)
            self._store.advance(known.record.id, Gone(), clock.now(), attempt=known.attempt.number)
            known.over_at = clock.now()
        finally:
            known.settling.release()
        self._ring_job(known)
        self._parts.bell.ring(f"gang:{known.attempt.key}")
        self._parts.bell.ring(f"log:{known.record.id}")
        wake_queue(self._parts)

    def end(self, record: JobRecord) -> None:
        """Tells a stopping gang to stop and leave; again only when the grace became shorter."""
        known = self._look_up(record.key)
        grace = record.spec.grace if record.stop_grace is None else record.stop_grace
        if known.ending is not None and grace >= known.ending:
            return
        first = known.ending is None
        known.ending = grace
        self.direct(record.key, "stop" if grace > 0 else "kill", {"grace": grace})
        if first:
            self.direct(record.key, "leave", {})

    def fail(self, record: JobRecord, reason: Reason, message: str) -> JobRecord:
        """The attempt cannot go on: records why and tells whoever is left to stop."""
        event = Finished(reason, message)
        changed = self._store.advance(record.id, event, clock.now(), attempt=record.attempt)
        if changed.state is State.STOPPING and changed.attempt == record.attempt:
            self.end(changed)
        self._ring_job(self._look_up(record.key))
        return changed

    def lose(self, record: JobRecord, nodes: list[str]) -> None:
        """Shepherds vanished. Roles that may go on without a rank do; otherwise the attempt has failed."""
        known = self._look_up(record.key)
        with known.lock:
            ranks = self._store.ranks(record.key)
            lost = [rank for rank in ranks if rank.node in nodes and rank.state not in ("ended", "gone")]
            lives = [rank.life() for rank in ranks]
            if record.state is State.RUNNING and can_spare(record.spec.expand(), lives, {rank.name for rank in lost}):
                self._drop(known, [rank.name for rank in lost])
                for node in nodes:
                    self._store.done(record.key, node, clock.now())
                self._judge(known)
                return
            for rank in lost:
                self._store.set_rank(record.key, rank.name, state="gone")
        names = ", ".join(rank.name for rank in lost[:5]) or "no rank"
        message = f"the shepherd on {', '.join(nodes)} vanished, with {names}"
        self.fail(record, Reason.SHEPHERD_LOST, message)

    def forget(self, live: set[str]) -> None:
        """Drops what is remembered of gangs that ended long ago, or that another server has closed."""
        now = clock.now()
        for key, known in list(self._known.items()):
            if key not in live and (known.over_at is None or now - known.over_at > LATE_LOGS):
                self._known.pop(key, None)
                self._parts.bell.drop(f"gang:{key}")

    def _look_up(self, key: str) -> Known:
        known = self._known.get(key)
        if known is None:
            try:
                attempt = self._store.attempt(key)
                record = self._store.job(attempt.job_id)
            except NotFound:
                raise GangOver(f"there is no gang {key}; end your processes and leave", key=key) from None
            secret = gang_secret(self._store.server_secret(), key)
            with self._lock:
                known = self._known.setdefault(key, Known(attempt, record, secret, over_at=attempt.ended_at))
        return known

    def _complete(self, known: Known) -> None:
        key = known.attempt.key
        with known.lock:
            if known.attempt.complete_at is None:
                self._store.complete(key, clock.now())
                known.attempt = self._store.attempt(key)
                for told in self._store.directives(key, "", 0):
                    known.note("", int(told["seq"]))
        self._store.advance(known.record.id, Joined(), clock.now(), attempt=known.attempt.number)
        self._parts.bell.ring(f"gang:{key}")
        self._ring_job(known)

    def _roster(self, known: Known) -> tuple[Roster, bytes]:
        with known.lock:
            if known.roster is None or known.roster[0].version != known.attempt.roster_version:
                key = known.attempt.key
                if known.attempt.complete_at is None:
                    known.attempt = self._store.attempt(key)
                roster = roster_of(known.attempt, self._store.ranks(key), self._store.shepherds(key))
                known.roster = roster, gzip.compress(roster.to_json().encode(), 6)
                known.members = defaultdict(list)
                for member in roster.members:
                    known.members[member.node].append(member)
            return known.roster

    def _place(self, known: Known, member: Member) -> Place:
        """Where a member sits, and the secret it shows its peers (not the one its shepherd shows the server)."""
        return Place(
            job=known.record.id,
            attempt=known.attempt.number,
            node=member.node,
            gpus=known.gpus[member.role, member.slot],
            node_gpus=known.node_gpus[member.role, member.node],
            secret=gang_secret(known.secret, "peers"),
        )

    def _judge(self, known: Known) -> None:
        """Applies the rules of the roles to the gang as it stands. The caller holds the gang's lock."""
        key = known.attempt.key
        record = self._store.job(known.record.id)
        if record.attempt != known.attempt.number or record.state not in (State.STARTING, State.RUNNING):
            return  # the outcome is known: who ends now was told to
        verdict = judge(known.record.spec.expand(), [_life(record, rank) for rank in self._store.ranks(key)])
        self._drop(known, list(verdict.drop))
        self._restart(known, list(verdict.restart))
        if verdict.done or verdict.failed:
            self._finish(known, verdict)

    def _finish(self, known: Known, verdict: Verdict) -> None:
        event = Finished(verdict.failed or Reason.COMPLETED, verdict.message, verdict.exit_code)
        record = self._store.advance(known.record.id, event, clock.now(), attempt=known.attempt.number)
        if record.state is State.STOPPING and record.attempt == known.attempt.number:
            self.end(record)

    def _drop(self, known: Known, names: list[str]) -> None:
        ranks = {rank.name: rank for rank in self._store.ranks(known.attempt.key)} if names else {}
        for name in names:
            life = ranks[name].life()
            why = explain(life)[1] if life.end else f"{name} is gone with its node"
            self._store.set_rank(known.attempt.key, name, state="gone")
            self._note(known, "rank_gone", f"{why}; its role goes on without it")
        if names:
            self._new_roster(known)
            self.direct(known.attempt.key, "roster", {"version": known.attempt.roster_version})

    def _restart(self, known: Known, names: list[str]) -> None:
        ranks = {rank.name: rank for rank in self._store.ranks(known.attempt.key)}
        for name in names:
            rank = ranks[name]
            self._store.set_rank(known.attempt.key, name, state="waiting", incarnation=rank.incarnation + 1)
            self._new_roster(known)
            data = {"member": name, "roster": known.attempt.roster_version, "incarnation": rank.incarnation + 1}
            self.direct(known.attempt.key, "restart", data, node=rank.node)
            self._note(known, "rank_restarted", f"{name} ended and is started again ({rank.incarnation + 1})")
        if names:
            self.direct(known.attempt.key, "roster", {"version": known.attempt.roster_version})

    def _new_roster(self, known: Known) -> None:
        self._store.bump_roster(known.attempt.key)
        known.attempt = self._store.attempt(known.attempt.key)
        known.roster = None

    def _note(self, known: Known, kind: str, message: str) -> None:
        self._store.add_event(known.record.id, kind, Reason.RUNNING.code, message, {}, clock.now())

    def _note_waits(self, known: Known, events: list[dict[str, Any]]) -> None:
        """What ranks wait for before they start goes into the job's history, once and not for every rank."""
        for message in dict.fromkeys(str(one["message"]) for one in events if one["event"] == "preparing"):
            self._note(known, "preparing", message)

    def _put_outputs_away(self, record: JobRecord) -> None:
        try:
            count = goods.collect_outputs(self._parts, record)
        except StoreError:
            raise
        except (OSError, ShoalError, ValueError) as failed:
            cause = Reason.DISK_FULL if isinstance(failed, (OSError, DiskFull)) else record.reason
            self._store.add_event(
                record.id, "outputs_failed", cause.code,
                f"the outputs could not be copied to {record.spec.outputs}: {failed}; they are still at job://{record.id}/",
                {}, clock.now(),
            )  # fmt: skip
            return
        if count:
            message = f"{count} files copied to {record.spec.outputs}"
            self._store.add_event(record.id, "outputs", Reason.COMPLETED.code, message, {"files": count}, clock.now())

    def _ring_job(self, known: Known) -> None:
        self._parts.bell.ring(f"job:{known.record.id}")


def _life(record: JobRecord, rank: RankRow) -> RankLife:
    """How a rank stands; a script whose interpreter aborted after it had ended has ended well."""
    life = rank.life()
    if record.spec.script is not None and life.end is not None and aborted_after_end(life.end):
        return replace(life, end=RankEnd(exit_code=0, message="the interpreter aborted after the script had ended"))
    return life
