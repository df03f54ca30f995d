"""Shared memory as a file of our own in a tmpfs folder: it outlives the process that made it, and any process of the
node that finds the file maps the same bytes.

Never `multiprocessing.shared_memory`: its resource tracker unlinks a segment when any process that attached to it ends
(cpython#82300). Publishing without locks leans on x86-64, where aligned stores become visible in program order; see
`usable`. Torch is imported only when a tensor is asked for.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.train.errors import NoRoom

if TYPE_CHECKING:
    import numpy as np
    import torch

PAGE = mmap.PAGESIZE


def usable() -> bool:
    """Whether memory can be shared here: Linux, and a processor that keeps stores in order."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


class Segment:
    """One mapped file. Tensors and arrays over it keep the mapping alive, also after `close`."""

    def __init__(self, path: Path, mapping: mmap.mmap, size: int) -> None:
        self.path = path
        self.size = size
        self._mapping: mmap.mmap | None = mapping

    @classmethod
    def create(cls, path: str | os.PathLike[str], size: int, touch: bool = False) -> Segment:
        """A fresh one full of zeros, in the place of any of that name (who has the old one mapped keeps it). Whole or
        not at all: nobody can open one that is still growing. `touch` maps every page now instead of at first use.
        NoRoom, with nothing left behind, where the folder cannot hold it."""
        path = Path(path)
        whole = _whole_pages(size)
        _check_room(path.parent, whole)
        growing = path.with_name(f".{path.name}.{os.getpid()}")
        file = os.open(growing, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _allocate(file, whole, path)
            mapping = _map(file, whole, touch)
            growing.replace(path)
        except BaseException:
            growing.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        return cls(path, mapping, whole)

    @classmethod
    def open(cls, path: str | os.PathLike[str], touch: bool = False) -> Segment:
        """The one of that name, with its size; FileNotFoundError where there is none."""
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            return cls(Path(path), _map(file, size, touch), size)
        finally:
            os.close(file)

    @property
    def buffer(self) -> mmap.mmap:
        if self._mapping is None:
            raise ValueError(f"segment {self.path} is closed; open it again")
        return self._mapping

    def view(self, offset: int = 0, size: int | None = None) -> memoryview:
        """Its bytes, writable: what a socket sends from or receives into."""
        return memoryview(self.buffer)[offset : self.size if size is None else offset + size]

    def tensor(self, dtype: torch.dtype, offset: int, count: int) -> torch.Tensor:
        """`count` elements from byte `offset` on, as a tensor over the shared bytes."""
        import torch

        self._check(offset, count * dtype.itemsize)
        if count == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.buffer, dtype=dtype, count=count, offset=offset)

    def array(self, dtype: Any, offset: int, count: int) -> np.ndarray[Any, np.dtype[Any]]:
        """The same as a numpy array: int64 ones serve as counters."""
        import numpy as np

        self._check(offset, count * np.dtype(dtype).itemsize)
        return np.frombuffer(self.buffer, dtype=dtype, count=count, offset=offset)

    def address(self, offset: int = 0) -> int:
        """Where that byte lies in this process. Only as long as the segment, or a view of it, is kept."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.buffer)) + offset

    def close(self) -> None:
        """Gives the mapping up; the pages go when the last tensor over them does. The file stays. Harmless twice."""
        # Never mmap.close(): torch.frombuffer keeps the object, not the buffer, so the pages would go under a tensor.
        self._mapping = None

    def unlink(self) -> None:
        """Removes the name. Who has it mapped keeps it. Harmless twice."""
        self.path.unlink(missing_ok=True)

    def _check(self, offset: int, size: int) -> None:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"segment {self.path} has {self.size} bytes, not {size} from {offset} on")


def reserve(path: Path, size: int) -> None:
    """Takes the memory of the first `size` bytes of a file that is longer than what it holds; NoRoom otherwise."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _allocate(file, size, path)
    finally:
        os.close(file)


def _whole_pages(size: int) -> int:
    return max(PAGE, -(-size // PAGE) * PAGE)


def _check_room(folder: Path, size: int) -> None:
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if size > free:
        raise _no_room(folder, size, free)


def _allocate(file: int, size: int, path: Path) -> None:
    """Takes the pages now: writing to a mapped page that tmpfs cannot provide would kill the process (SIGBUS)."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            raise _no_room(path.parent, size, None) from problem
        raise


def _map(file: int, size: int, touch: bool) -> mmap.mmap:
    flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if touch else 0)
    return mmap.mmap(file, size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _no_room(folder: Path, size: int, free: int | None) -> NoRoom:
    left = "less" if free is None else f"{free / 1e6:.1f} MB"
    return NoRoom(
        f"no room for {size / 1e6:.1f} MB of shared memory in {folder}: {left} is free; "
        "make the tmpfs larger (docker: --shm-size, Kubernetes: a Memory emptyDir), or let the workers use the network"
    )
