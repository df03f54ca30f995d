"""Shoal: a training script as one distributed job, on this machine at once, on a cluster when the team outgrows it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.client.aio import AsyncJob, afind, ajobs, asubmit
    from shoal.client.connect import connect
    from shoal.client.jobs import Job, JobFailed, find, jobs, submit
    from shoal.client.kinds import (
        CommandJob,
        HorovodJob,
        JaxJob,
        LightGBMJob,
        MPIJob,
        MXNetJob,
        PaddleJob,
        SklearnJob,
        TensorFlowJob,
        TorchJob,
        XGBoostJob,
    )
    from shoal.client.lines import LogLine
    from shoal.client.remote import remote
    from shoal.errors import ShoalError
    from shoal.job.spec import JobSpec

__version__ = "0.1.0"

# Public name → where it lives. Loaded when asked for, so that `import shoal` costs next to nothing.
_HOMES = {
    "AsyncJob": "shoal.client.aio",
    "CommandJob": "shoal.client.kinds",
    "HorovodJob": "shoal.client.kinds",
    "JaxJob": "shoal.client.kinds",
    "Job": "shoal.client.jobs",
    "JobFailed": "shoal.client.jobs",
    "JobSpec": "shoal.job.spec",
    "LightGBMJob": "shoal.client.kinds",
    "LogLine": "shoal.client.lines",
    "MPIJob": "shoal.client.kinds",
    "MXNetJob": "shoal.client.kinds",
    "PaddleJob": "shoal.client.kinds",
    "ShoalError": "shoal.errors",
    "SklearnJob": "shoal.client.kinds",
    "TensorFlowJob": "shoal.client.kinds",
    "TorchJob": "shoal.client.kinds",
    "XGBoostJob": "shoal.client.kinds",
    "afind": "shoal.client.aio",
    "ajobs": "shoal.client.aio",
    "asubmit": "shoal.client.aio",
    "connect": "shoal.client.connect",
    "find": "shoal.client.jobs",
    "jobs": "shoal.client.jobs",
    "remote": "shoal.client.remote",
    "submit": "shoal.client.jobs",
}

__all__ = [
    "AsyncJob",
    "CommandJob",
    "HorovodJob",
    "JaxJob",
    "Job",
    "JobFailed",
    "JobSpec",
    "LightGBMJob",
    "LogLine",
    "MPIJob",
    "MXNetJob",
    "PaddleJob",
    "ShoalError",
    "SklearnJob",
    "TensorFlowJob",
    "TorchJob",
    "XGBoostJob",
    "__version__",
    "afind",
    "ajobs",
    "asubmit",
    "connect",
    "find",
    "jobs",
    "remote",
    "submit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
