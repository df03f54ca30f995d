"""What each rank's process tree uses, every few seconds; and the watch over memory where no cgroup holds it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from shoal._lib import process
from shoal._lib.quantities import format_size
from shoal.contract import MEMBER
from shoal.shepherd import gpus
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.ship import Shipper
from shoal.shepherd.spool import Spool

FIRST_AFTER = 1.0  # seconds
EVERY = 5.0
WATCH_EVERY = 0.5
_GPUS_EVERY = 15.0  # nvidia-smi takes up to a second


class Subject(NamedTuple):
    """A running rank. `limit` (bytes) is set when its memory must be watched."""

    member: str
    incarnation: int
    pid: int
    limit: Optional[int]


class Meter:
    """A sum over processes that come and go, which never falls: what the ended ones had counted stays in it."""

    def __init__(self) -> None:
        self._last: Dict[Any, float] = {}
        self._total = 0.0

    def add(self, counts: Dict[Any, float]) -> float:
        for name, count in counts.items():
            self._total += max(0.0, count - self._last.get(name, 0.0))
        self._last = dict(counts)
        return self._total


class Account:
    """The meters of one incarnation of a rank."""

    def __init__(self) -> None:
        self._cpu, self._read, self._written = Meter(), Meter(), Meter()
        self._cpu_before = 0.0
        self._at = time.monotonic()

    def sample(self, pids: List[int]) -> Dict[str, Any]:
        stats = [found for found in map(process.stat, pids) if found is not None]
        disk = {(found.pid, found.born): process.disk_bytes(found.pid) for found in stats}
        cpu = self._cpu.add({(found.pid, found.born): found.cpu for found in stats})
        return {
            "cpu_seconds": round(cpu, 2),
            "cpu_percent": self._percent(cpu),
            "rss": sum(found.rss for found in stats),
            "read_bytes": int(self._read.add({key: counts["read_bytes"] for key, counts in disk.items()})),
            "write_bytes": int(self._written.add({key: counts["write_bytes"] for key, counts in disk.items()})),
            "processes": len(stats),
        }

    def _percent(self, cpu: float) -> float:
        now = time.monotonic()
        percent = 100 * (cpu - self._cpu_before) / max(0.001, now - self._at)
        self._cpu_before, self._at = cpu, now
        return round(percent, 1)


class Sampler:
    """Runs in a thread of its own. A rank above its watched limit is reported by an `over_limit` letter."""

    def __init__(self, spool: Spool, shipper: Shipper, mailbox: Mailbox) -> None:
        self._spool = spool
        self._shipper = shipper
        self._mailbox = mailbox
        self._subjects: Tuple[Subject, ...] = ()
        self._accounts: Dict[Tuple[str, int], Account] = {}
        self._changed = threading.Event()
        self._gpus: List[Dict[str, float]] = []
        self._gpus_at = -_GPUS_EVERY
        self._has_gpus = gpus.available()

    def follow(self, subjects: Tuple[Subject, ...]) -> None:
        """These ranks run now."""
        if subjects != self._subjects:
            self._subjects = subjects
            self._changed.set()

    def run(self) -> None:
        next_at: Optional[float] = None
        while True:
            subjects = self._subjects
            now = time.monotonic()
            next_at = (next_at or now + FIRST_AFTER) if subjects else None
            if next_at is not None and now >= next_at:
                self._sample(subjects)
                next_at = now + EVERY
            self._watch(subjects)
            self._changed.wait(_pause(subjects, next_at))
            self._changed.clear()

    def _sample(self, subjects: Tuple[Subject, ...]) -> None:
        received, sent = network_bytes()
        about_node = {"net_received": received, "net_sent": sent, **self._about_gpus()}
        kept = {}
        for subject in subjects:
            key = (subject.member, subject.incarnation)
            kept[key] = self._accounts.get(key) or Account()
            facts = kept[key].sample(tree(subject, subjects))
            self._spool.samples(subject.member).write_json({"at": time.time(), **facts, **about_node})
        self._accounts = kept
        self._shipper.lines_came()

    def _about_gpus(self) -> Dict[str, Any]:
        if not self._has_gpus:
            return {}
        if time.monotonic() - self._gpus_at >= _GPUS_EVERY:
            self._gpus, self._gpus_at = gpus.read(), time.monotonic()
        return {"gpus": self._gpus}

    def _watch(self, subjects: Tuple[Subject, ...]) -> None:
        for subject in subjects:
            used = memory_above(tree(subject, subjects), subject.limit) if subject.limit else None
            if used is not None and subject.limit is not None:
                why = f"it used {format_size(used)} of memory, above its limit of {format_size(subject.limit)}"
                self._mailbox.put("over_limit", member=subject.member, incarnation=subject.incarnation, why=why)


def memory_above(pids: List[int], limit: int) -> Optional[int]:
    """Bytes used, when above `limit`. Shared pages count once; that costs more to find out, so only when it matters."""
    resident = sum(found.rss for found in map(process.stat, pids) if found is not None)
    if resident <= limit:
        return None
    used = sum(map(process.unique_memory, pids))
    return used if used > limit else None


def tree(subject: Subject, subjects: Tuple[Subject, ...]) -> List[int]:
    """The rank's process, all below it, and what it has left to us to adopt."""
    mains = {each.pid for each in subjects}
    found = [subject.pid, *process.descendants(subject.pid)]
    for child in process.children(os.getpid()):
        if child not in mains and process.mark(child, MEMBER) == subject.member:
            found += [child, *process.descendants(child)]
    return found


def network_bytes() -> Tuple[int, int]:
    """(received, sent) by the node since it started, without what it says to itself."""
    received = sent = 0
    try:
        with open("/proc/net/dev") as file:
            lines = file.readlines()[2:]
    except OSError:
        return 0, 0
    for line in lines:
        name, _, counts = line.partition(":")
        if name.strip() != "lo":
            words = counts.split()
            received, sent = received + int(words[0]), sent + int(words[8])
    return received, sent


def _pause(subjects: Tuple[Subject, ...], next_at: Optional[float]) -> Optional[float]:
    if next_at is None:
        return None
    left = max(0.0, next_at - time.monotonic())
    return min(left, WATCH_EVERY) if any(subject.limit for subject in subjects) else left
