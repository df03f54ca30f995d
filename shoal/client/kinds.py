"""One class per framework, each with only the arguments that make sense for it; all become the one specification.

What a server does not serve yet is refused by it, by name, when the job is planned or submitted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from shoal.client.http import Api
    from shoal.client.jobs import Job
    from shoal.client.upload import Progress
    from shoal.job.spec import JobSpec

Count = int | str  # 4, or "2..8"
Amount = float | str  # seconds or bytes, or as people write them: "20m", "2GiB"

_NOT_KEYS = frozenset({"folder"})  # of the client, not of the job file


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What every job may say, whatever it runs. None means: left out."""

    framework: ClassVar[str]

    workers: Count = 1
    name: str | None = None
    cpu: float | None = None
    memory: Amount | None = None
    size: str | None = None
    env: Mapping[str, str] | None = None
    environment: str | None = None
    inputs: Mapping[str, str] | None = None
    outputs: str | None = None
    estimate: Amount | None = None
    on_overrun: str | None = None
    max_duration: Amount | None = None
    grace: Amount | None = None
    retries: int | None = None
    retry_on: str | None = None
    priority: str | None = None
    engine: str | None = None
    labels: Mapping[str, str] | None = None
    tags: Sequence[str] | None = None
    project: str | None = None
    key: str | None = None
    log_limit: Amount | None = None
    in_place: bool | None = None
    folder: str | Path | None = None

    def keys(self) -> dict[str, Any]:
        """The keys of the job file that were said."""
        said = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NOT_KEYS}
        return {"framework": self.framework, **{name: value for name, value in said.items() if value is not None}}

    def spec(self) -> JobSpec:
        """The checked specification; BadSpec lists all that is wrong with it."""
        from shoal.client.draft import draft

        return draft(self).spec

    def submit(self, api: Api | None = None, progress: Progress | None = None) -> Job:
        from shoal.client.jobs import submit

        return submit(self, api=api, progress=progress)

    def plan(self, api: Api | None = None) -> dict[str, Any]:
        """What would be started, without starting it."""
        from shoal.client.connect import current
        from shoal.client.draft import draft

        return draft(self).plan(api or current())

    def try_(self, progress: Progress | None = None) -> Job:
        """The identical job here, one process per role, a minute at most; returns once it has ended."""
        from shoal.client.trial import try_job

        return try_job(self, progress=progress).wait()


@dataclass(frozen=True)
class _ScriptJob(Kind):
    script: str | Path
    args: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class _Gpus(Kind):
    gpu: int = 0
    gpu_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class TorchJob(_Gpus, _ScriptJob):
    """A PyTorch script: everything torchrun sets is set, so that Lightning, Accelerate, DeepSpeed … run unchanged."""

    framework: ClassVar[str] = "pytorch"

    servers: Count | None = None
    strategy: str | None = None


@dataclass(frozen=True, kw_only=True)
class TensorFlowJob(_Gpus, _ScriptJob):
    """A TensorFlow script: TF_CONFIG names its peers; a chief and evaluators where the strategy has them."""

    framework: ClassVar[str] = "tensorflow"

    servers: Count | None = None
    strategy: str | None = None
    chief: bool = False
    evaluators: int = 0

    def keys(self) -> dict[str, Any]:
        said = super().keys()
        roles = {"chief": int(said.pop("chief")), "evaluator": said.pop("evaluators")}
        wanted = {role: {"count": count} for role, count in roles.items() if count}
        return {**said, "roles": wanted} if wanted else said


@dataclass(frozen=True)
class _RowsJob(Kind):
    """A script, or training without one from the rows of a file."""

    script: str | Path | None = None
    args: Sequence[str] | None = None
    _: KW_ONLY
    data: str | Path | None = None
    label: str | int | None = None
    valid: float | str | Path | None = None
    params: Mapping[str, Any] | None = None

    def keys(self) -> dict[str, Any]:
        said = super().keys()
        return {name: str(value) if isinstance(value, Path) else value for name, value in said.items()}


@dataclass(frozen=True, kw_only=True)
class XGBoostJob(_Gpus, _RowsJob):
    """An XGBoost script whose workers find each other through the tracker, or without one training from `data`."""

    framework: ClassVar[str] = "xgboost"


@dataclass(frozen=True, kw_only=True)
class LightGBMJob(_RowsJob):
    """A LightGBM script whose workers find each other by a list of machines, or without one training from `data`."""

    framework: ClassVar[str] = "lightgbm"


@dataclass(frozen=True, kw_only=True)
class MXNetJob(_Gpus, _ScriptJob):
    """An MXNet script with a key-value store on parameter servers."""

    framework: ClassVar[str] = "mxnet"

    servers: Count | None = None


@dataclass(frozen=True, kw_only=True)
class PaddleJob(_Gpus, _ScriptJob):
    """A Paddle script, collective or with parameter servers."""

    framework: ClassVar[str] = "paddle"

    servers: Count | None = None


@dataclass(frozen=True, kw_only=True)
class JaxJob(_Gpus, _ScriptJob):
    """A JAX script; jax.distributed.initialize() needs no arguments in it."""

    framework: ClassVar[str] = "jax"


@dataclass(frozen=True, kw_only=True)
class HorovodJob(_Gpus, _ScriptJob):
    """A Horovod script; hvd.init() finds the others."""

    framework: ClassVar[str] = "horovod"


@dataclass(frozen=True, kw_only=True)
class MPIJob(_Gpus, _ScriptJob):
    """A Python script that uses MPI; any other MPI program is a job file with `framework: mpi` and a `command`."""

    framework: ClassVar[str] = "mpi"


@dataclass(frozen=True, kw_only=True)
class SklearnJob(_ScriptJob):
    """A scikit-learn script whose `n_jobs=-1` spreads over the workers."""

    framework: ClassVar[str] = "sklearn"


@dataclass(frozen=True)
class CommandJob(_Gpus):
    """Any program. A string is split as a shell would; nothing is sent along unless `folder` says so."""

    framework: ClassVar[str] = "command"

    command: str | Sequence[str]

    def keys(self) -> dict[str, Any]:
        command = shlex.split(self.command) if isinstance(self.command, str) else list(self.command)
        return {**super().keys(), "command": command}
