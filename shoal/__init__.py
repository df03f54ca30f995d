"""Shoal: a training script as one distributed job, on this machine at once, on a cluster when the team outgrows it."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

__version__ = "0.1.0"

# Public name → where it lives. Loaded when asked for, so that `import shoal` costs next to nothing; the types are in
# __init__.pyi, so that this root of all packages imports none of them.
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
    "MXNetJob": "shoal.client.kinds",
    "PaddleJob": "shoal.client.kinds",
    "ShoalError": "shoal.errors",
    "TensorFlowJob": "shoal.client.kinds",
    "TorchJob": "shoal.client.kinds",
    "XGBoostJob": "shoal.client.kinds",
    "ajob": "shoal.client.aio",
    "ajobs": "shoal.client.aio",
    "asubmit": "shoal.client.aio",
    "connect": "shoal.client.connect",
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
    "MXNetJob",
    "PaddleJob",
    "ShoalError",
    "TensorFlowJob",
    "TorchJob",
    "XGBoostJob",
    "__version__",
    "ajob",
    "ajobs",
    "asubmit",
    "connect",
    "job",
    "jobs",
    "remote",
    "submit",
]


def __getattr__(name: str) -> Any:
    if name == "job":
        return importlib.import_module("shoal.job")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _JobPackage(types.ModuleType):
    """`shoal.job` is a package and, called with a reference, the function that finds a job."""

    def __call__(self, ref: str, api: Any = None) -> Any:
        return importlib.import_module("shoal.client.jobs").job(ref, api)


class _Shoal(types.ModuleType):
    """Importing the package `shoal.job` sets it as an attribute here; that is when it learns to be called."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "job" and isinstance(value, types.ModuleType):
            value.__class__ = _JobPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Shoal
