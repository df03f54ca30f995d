"""What comes and goes over HTTP, as OpenAPI shows it. Requests are checked against these, answers described."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shoal.job.fields import Name
from shoal.job.origin import Origin


class Asked(BaseModel):
    """A request's body: a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid")


class Submission(Asked):
    spec: dict[str, Any] = Field(description="the job file; see /api/v1/schema")
    manifest: str | None = Field(None, description="the uploaded folder, as POST /manifests named it")
    in_place: str | None = Field(
        None, max_length=4096, description="run in this folder of the server's machine instead"
    )
    key: str | None = Field(None, min_length=1, max_length=200, description="the same key twice is one job")
    origin: Origin | None = Field(None, description="where it comes from; kept with the job, no part of what it is")


class PlanRequest(Asked):
    spec: dict[str, Any]


class StopRequest(Asked):
    force: bool = Field(False, description="end it at once, without grace")
    grace: float | None = Field(None, ge=0, le=3600, description="seconds between SIGTERM and SIGKILL")
    message: str = Field("", max_length=1000)


class StacksRequest(Asked):
    ranks: str = Field("", max_length=100_000, description="worker-0,server-1; all that run when left out")


class Digests(Asked):
    digests: Annotated[list[str], Field(max_length=500_000)]


class ManifestRequest(Asked):
    entries: list[dict[str, Any]]


class PoolCommit(Asked):
    prefix: str = Field("", max_length=4096, description="folder of the pool that the paths are relative to")
    entries: list[dict[str, Any]]


class NewUser(Asked):
    name: Name
    password: str | None = None
    admin: bool = False


class TokenRequest(Asked):
    """With a token: a new one for the caller (an administrator may name another user). Without: name and password."""

    user: str | None = Field(None, max_length=63)
    password: str | None = Field(None, max_length=1024)
    label: str = Field("", max_length=200)
    expires_in: float | None = Field(None, gt=0, le=10 * 366 * 86400, description="seconds; never when left out")


class WebhookRequest(Asked):
    url: str = Field(max_length=2048, description="http or https")
    secret: str | None = Field(None, min_length=16, max_length=200, description="made by the server when left out")
    kinds: list[Literal["overrun", "failure", "success"]] = ["overrun", "failure", "success"]


class Told(BaseModel):
    """An answer. More keys may come with later versions; readers ignore what they do not know."""

    model_config = ConfigDict(extra="allow")


class JobSummary(Told):
    id: str
    name: str
    state: Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "stopped"]
    reason: str
    message: str
    owner: str
    project: str
    framework: str
    strategy: str | None
    workers: int
    attempt: int
    exit_code: int | None
    created_at: float = Field(description="seconds since the epoch, like all times")
    started_at: float | None
    ended_at: float | None
    progress: float | None = None
    tags: list[str] = []


class RankShape(Told):
    name: str
    role: str
    node: str
    state: Literal["waiting", "running", "ended", "gone"]
    pid: int | None
    exit_code: int | None
    incarnation: int
    progress: dict[str, Any]
    started_at: float | None
    ended_at: float | None


class JobShape(JobSummary):
    advice: str
    retries_used: int
    not_before: float | None
    spec: dict[str, Any]
    ranks: list[RankShape]
    attempts: list[dict[str, Any]]
    origin: dict[str, Any] | None = Field(None, description="where it came from, as its submitter said")


class StacksAsked(Told):
    ranks: list[str]
    mark: str = Field(description="the last line of each answer, in the rank's log, is 'end of MARK'")


class JobPage(Told):
    jobs: list[JobSummary]
    next: str | None


class EventShape(Told):
    seq: int
    at: float
    kind: str
    reason: str
    message: str
    data: dict[str, Any] | None


class EventPage(Told):
    events: list[EventShape]
    next: int | None


class FileShape(Told):
    path: str
    size: int
    mtime: float = 0.0
    dir: bool = False


class FilePage(Told):
    files: list[FileShape]
    next: str | None


class CodeFile(Told):
    path: str
    size: int
    digest: str = Field(description="of the content alone")
    link: str | None = None


class CodeList(Told):
    files: list[CodeFile]


class UserShape(Told):
    name: str
    admin: bool
    created_at: float | None = None


class TokenShape(Told):
    id: str
    user: str
    label: str
    created_at: float
    expires_at: float | None


class MintedShape(TokenShape):
    token: str = Field(description="shown this once")


class WebhookShape(Told):
    url: str
    kinds: list[str]
    created_at: float | None = None
    secret: str | None = Field(None, description="only in the answer to PUT")


class DeliveryShape(Told):
    id: int
    kind: str
    created_at: float
    tries: int
    status: int | None
    error: str | None
    next_at: float | None
    delivered_at: float | None


class DeliveryPage(Told):
    deliveries: list[DeliveryShape]
    next: str | None


class Problem(Told):
    """RFC 9457, with a stable code and the facts beside it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str


class Preset(BaseModel):
    name: str
    framework: str
    flavour: str = Field(description="cpu or cuda")
    requirements: list[str]
    pythons: list[str] = Field(description="versions that have wheels of it")
    until: str = Field(description="the date it is kept until")
    about: str


class BuiltEnvironment(BaseModel):
    key: str = Field(description="stands for all that went into it")
    name: str
    python: str
    requirements: list[str]
    size: int = Field(description="bytes")
    built_at: float
    seconds: float = Field(description="that the build took")
    used_at: float
    users: int = Field(description="shepherds whose jobs run in it")


class Environments(BaseModel):
    presets: list[Preset]
    built: list[BuiltEnvironment]
    folder: str
    room: int = Field(description="bytes that they may take together")
