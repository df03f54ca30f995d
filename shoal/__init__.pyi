"""The types of the public names, which __init__.py loads when they are asked for."""

from shoal.client.aio import AsyncJob as AsyncJob
from shoal.client.aio import ajob as ajob
from shoal.client.aio import ajobs as ajobs
from shoal.client.aio import asubmit as asubmit
from shoal.client.connect import connect as connect
from shoal.client.jobs import Job as Job
from shoal.client.jobs import JobFailed as JobFailed
from shoal.client.jobs import job as job
from shoal.client.jobs import jobs as jobs
from shoal.client.jobs import submit as submit
from shoal.client.kinds import CommandJob as CommandJob
from shoal.client.kinds import HorovodJob as HorovodJob
from shoal.client.kinds import JaxJob as JaxJob
from shoal.client.kinds import LightGBMJob as LightGBMJob
from shoal.client.kinds import MXNetJob as MXNetJob
from shoal.client.kinds import PaddleJob as PaddleJob
from shoal.client.kinds import TensorFlowJob as TensorFlowJob
from shoal.client.kinds import TorchJob as TorchJob
from shoal.client.kinds import XGBoostJob as XGBoostJob
from shoal.client.lines import LogLine as LogLine
from shoal.client.remote import remote as remote
from shoal.errors import ShoalError as ShoalError
from shoal.job.spec import JobSpec as JobSpec

__version__: str

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
