"""What the ends of ranks mean for their gang, by the roles' rules: go on, restart one, do without it, done, failed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from shoal.job.reasons import Reason
from shoal.job.roles import Role

MOST_RESTARTS = 10  # of one rank within one attempt; more is a fault that a restart does not mend
_CRASH_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
_SIGABRT = 6
_EXIT_ABORT = "terminate called without an active exception"
_PORT_MARKS = ("EADDRINUSE", "Address already in use", "address already in use")
_UNREADY = {"input": Reason.INPUT_MISSING, "environment": Reason.ENVIRONMENT_FAILED}  # how a shepherd's words begin
_DISK_MARKS = ("No space left on device", "ENOSPC")
_TAKES_ALONG = (Reason.KILLED, Reason.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one process ended, as its shepherd saw it."""

    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    failed_start: bool = False
    message: str = ""
    tail: str = ""

    @property
    def clean(self) -> bool:
        return self.exit_code == 0 and not self.failed_start


def aborted_after_end(end: RankEnd) -> bool:
    """Whether a Python script had ended well and the interpreter aborted on its way out.

    gloo does that in a few runs of a hundred (torch 2.13): "terminate called …" from a thread of its own. Had the
    script still run, the fault handler would have shown its frames behind that line.
    """
    _, found, after = end.tail.rpartition(_EXIT_ABORT)
    return end.signal == _SIGABRT and bool(found) and 'File "' not in after


@dataclass(frozen=True, slots=True)
class RankLife:
    """One process of the gang: `waiting`, `running`, `ended`, or `gone` (its role goes on without it)."""

    name: str
    role: str
    node: str
    state: str = "waiting"
    incarnation: int = 0
    end: RankEnd | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do now. At most one of `done` and `failed` is set; restart and drop name members. With who is dropped the
    gang may be done: the others had ended before."""

    done: bool = False
    failed: Reason | None = None
    message: str = ""
    exit_code: int | None = None
    restart: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    blamed: tuple[str, ...] = field(default=())


def judge(roles: Iterable[Role], ranks: Iterable[RankLife]) -> Verdict:
    """Judges the gang as it stands; calling it again with the same ranks gives the same verdict."""
    by_name = {role.name: role for role in roles}
    all_ranks = list(ranks)
    restart, drop, fatal = [], [], []
    for rank in all_ranks:
        if rank.state != "ended" or rank.end is None or rank.end.clean:
            continue
        role = by_name[rank.role]
        if role.on_lost == "restart" and rank.incarnation < MOST_RESTARTS and not rank.end.failed_start:
            restart.append(rank.name)
        elif role.on_lost == "continue" and _enough_without(role, all_ranks):
            drop.append(rank.name)
        else:
            fatal.append(rank)
    if fatal:
        return _failed(_first_cause(fatal))
    left = [replace(rank, state="gone") if rank.name in drop else rank for rank in all_ranks]
    done = not restart and _all_led(by_name, left)
    return Verdict(done, exit_code=0 if done else None, restart=tuple(restart), drop=tuple(drop))


def _first_cause(fatal: list[RankLife]) -> RankLife:
    """Who is to blame when several ends became known at once: one that was killed has taken along who waited for it."""
    return next((rank for rank in fatal if rank.end and explain(rank)[0] in _TAKES_ALONG), fatal[0])


def _failed(rank: RankLife) -> Verdict:
    assert rank.end is not None
    reason, message = explain(rank)
    return Verdict(failed=reason, message=message, exit_code=_code(rank.end, reason), blamed=(rank.name,))


def _code(end: RankEnd, reason: Reason) -> int:
    """What a shell would give: the code itself, 128 and the signal's number, 127 for a program that is not there."""
    if end.failed_start:
        return 127 if reason is Reason.COMMAND_MISSING else 1
    return end.exit_code or (1 if end.signal is None else 128 + end.signal)


def can_spare(roles: Iterable[Role], ranks: Iterable[RankLife], lost: Collection[str]) -> bool:
    """Whether the gang goes on without these members: their roles say `continue` and keep their least number."""
    by_name = {role.name: role for role in roles}
    every = list(ranks)
    left = [rank for rank in every if rank.name not in lost]
    hit = [by_name[name] for name in {rank.role for rank in every if rank.name in lost}]
    return all(role.on_lost == "continue" and _enough_without(role, left) for role in hit)


def _enough_without(role: Role, ranks: list[RankLife]) -> bool:
    """`continue` holds while at least the role's minimum (one, for a fixed count) has not failed; a role that can be
    spared needs none."""
    least = 0 if role.spare else role.low if role.low < role.high else min(1, role.low)
    sound = [r for r in ranks if r.role == role.name and r.state != "gone" and (r.end is None or r.end.clean)]
    return len(sound) >= least


def _all_led(roles: Mapping[str, Role], ranks: list[RankLife]) -> bool:
    """Those who lead decide; a job that has none is done when everybody is."""
    leading = [rank for rank in ranks if _leads(roles[rank.role], rank)] or ranks
    return all(rank.state in ("ended", "gone") for rank in leading)


def _leads(role: Role, rank: RankLife) -> bool:
    return role.leads == "all" or (role.leads == "first" and rank.name == f"{role.name}-0")


def explain(rank: RankLife) -> tuple[Reason, str]:
    """The reason and one line for the user, from how the process ended and what it said last."""
    end = rank.end
    assert end is not None
    who = f"{rank.name} on {rank.node}"
    last = _last_line(end.tail)
    if end.failed_start:
        reason = next((why for word, why in _UNREADY.items() if end.message.startswith(word)), Reason.COMMAND_MISSING)
        if any(mark in end.message for mark in _DISK_MARKS):
            reason = Reason.DISK_FULL
        return reason, f"{who} could not be started: {end.message}"
    if end.oom:
        return (
            Reason.OUT_OF_MEMORY,
            f"{who} went over its memory limit{f' ({end.message})' if end.message else ''}",
        )
    if end.signal is not None:
        return _explain_signal(who, end.signal)
    if any(mark in end.tail for mark in _PORT_MARKS):
        return Reason.PORT_CLASH, f"{who}: {last}"
    if any(mark in end.tail for mark in _DISK_MARKS):
        return Reason.DISK_FULL, f"{who}: {last}"
    if end.exit_code in (126, 127):
        return Reason.COMMAND_MISSING, f"{who} exited with {end.exit_code}: {last}"
    if "Traceback (most recent call last)" in end.tail:
        return Reason.PYTHON_ERROR, f"{who}: {last}"
    return Reason.EXIT_CODE, f"{who} exited with {end.exit_code}" + (f": {last}" if last else "")


def _explain_signal(who: str, signal: int) -> tuple[Reason, str]:
    if signal in _CRASH_SIGNALS:
        return Reason.CRASHED, f"{who} crashed with {_CRASH_SIGNALS[signal]}"
    return Reason.KILLED, f"{who} was killed by signal {signal}, not by Shoal"


def _last_line(tail: str) -> str:
    lines = [line for line in tail.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else ""
