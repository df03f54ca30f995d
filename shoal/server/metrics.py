"""What /metrics tells Prometheus: requests, jobs by state, gangs, logs, the control loop and the process itself."""

from __future__ import annotations

import os
import resource
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATM = Path("/proc/self/statm")


class Metrics:
    """Counters of this process. Only the event loop writes, so a plain dictionary is enough."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._seconds: dict[str, float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)
        self.joins = 0
        self.log_bytes = 0
        self.followers = 0

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests[method, route, status] += 1
        self._seconds[route] += seconds
        self._counts[route] += 1

    def render(self, jobs: Mapping[str, int], round_seconds: float) -> str:
        lines = [
            *_family("shoal_jobs", "gauge", "Jobs by state.", _by("state", jobs)),
            *_family("shoal_requests_total", "counter", "Requests answered.", self._request_rows()),
            *_family("shoal_request_seconds_sum", "counter", "Seconds spent on them.", _by("route", self._seconds)),
            *_family("shoal_request_seconds_count", "counter", "How many of them.", _by("route", self._counts)),
            *_one("shoal_gang_joins_total", "counter", "Shepherds that joined through this server.", self.joins),
            *_one("shoal_log_received_bytes_total", "counter", "Packed bytes of logs received.", self.log_bytes),
            *_one("shoal_followers", "gauge", "Open live streams.", self.followers),
            *_one("shoal_loop_round_seconds", "gauge", "The last round of the control loop.", round_seconds),
            *_one("process_resident_memory_bytes", "gauge", "Resident size.", resident_bytes()),
            *_one("process_cpu_seconds_total", "counter", "CPU time used.", cpu_seconds()),
        ]
        return "\n".join([*lines, ""])

    def _request_rows(self) -> Iterable[tuple[str, float]]:
        for (method, route, status), count in self._requests.items():
            yield f'{{method="{_escape(method)}",route="{_escape(route)}",status="{status}"}}', count


def resident_bytes() -> int:
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc here: the largest it ever was is the best answer left
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system


def _one(name: str, kind: str, text: str, value: float) -> Iterable[str]:
    return _family(name, kind, text, [("", value)])


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in rows:
        yield f"{name}{labels} {value:.10g}"


def _by(label: str, values: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    return [(f'{{{label}="{_escape(key)}"}}', value) for key, value in values.items()]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
