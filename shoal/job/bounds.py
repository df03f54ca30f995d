"""Every bound of a job file, with its reason, so that each door can show the bound before the mistake."""

from __future__ import annotations

from dataclasses import dataclass

from shoal._lib.quantities import format_duration, format_size


@dataclass(frozen=True, slots=True)
class Bound:
    low: float
    high: float
    why: str
    unit: str = ""

    def text(self) -> str:
        return f"{self._show(self.low)} to {self._show(self.high)}"

    def _show(self, value: float) -> str:
        if self.unit == "bytes":
            return format_size(value)
        return format_duration(value) if self.unit == "s" else f"{value:g}"

    def check(self, value: float) -> None:
        if not self.low <= value <= self.high:
            raise ValueError(f"must be {self.text()}, not {self._show(value)}: {self.why}")


WORKERS = Bound(1, 10_000, "a job without a worker does nothing, and rosters are kept and tested up to ten thousand")
COUNT = Bound(0, 10_000, "rosters are kept and tested up to ten thousand processes")
CPU = Bound(0.01, 4096, "a hundredth of a core is the finest share the system's scheduler keeps", "")
MEMORY = Bound(1 << 20, 1 << 46, "a process needs at least a mebibyte, and no node has 64 TiB", "bytes")
GPU = Bound(0, 64, "no node has more than 64")
DURATION = Bound(1, 366 * 86400, "below a second nothing can be measured, above a year nothing is planned", "s")
GRACE = Bound(0, 3600, "longer than an hour would hold the place hostage", "s")
RETRIES = Bound(0, 100, "a job that failed a hundred times will not succeed by itself")
LOG_LIMIT = Bound(1 << 16, 1 << 36, "a rank needs room for at least one screenful, and disks are finite", "bytes")
NAME_LENGTH = Bound(1, 63, "names become parts of paths and host names")
ARGUMENTS = Bound(0, 1_000, "the system refuses longer command lines")
ARGUMENT_LENGTH = Bound(0, 32_768, "the system refuses longer arguments; pass a file instead")
ENVIRONMENT_SIZE = Bound(0, 500, "the system limits the size of the environment")
TAGS = Bound(0, 50, "more tags than that find nothing any more")
ROLES = Bound(1, 16, "more kinds of process than that is another job")
INPUTS = Bound(0, 100, "each input is a folder to be brought to every node")
PATH_LENGTH = Bound(1, 4_096, "the system knows no longer paths")
VALID = Bound(0.001, 0.9, "a share of the rows: less says nothing, more leaves too little to train on")
PARAMS = Bound(0, 500, "no trainer has more parameters")
