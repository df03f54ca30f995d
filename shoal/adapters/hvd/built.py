"""What this Horovod was built with, as scripts ask: everything travels by shared memory and gloo, never by MPI."""

from __future__ import annotations


def gloo_built(verbose: bool = False) -> bool:
    return True


def gloo_enabled() -> bool:
    return True


def mpi_built(verbose: bool = False) -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    return False


def nccl_built(verbose: bool = False) -> int:
    return 0


def ddl_built(verbose: bool = False) -> bool:
    return False


def ccl_built(verbose: bool = False) -> bool:
    return False


def cuda_built(verbose: bool = False) -> bool:
    return False


def rocm_built(verbose: bool = False) -> bool:
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Horovod's timeline is not written here; what a job spends its time on is in `shoal show`."""


def stop_timeline() -> None:
    """See `start_timeline`."""
