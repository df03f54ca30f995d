"""The job file: one frozen model for YAML, flags, SDK, HTTP and the store. Faults become one BadSpec that lists all."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, ValidationError, ValidationInfo, model_validator

from shoal import environments
from shoal import strategy as strategies
from shoal.catalogue import nearest
from shoal.errors import BadSpec
from shoal.job import bounds
from shoal.job.fields import (
    Arguments,
    Duration,
    Environment,
    Frozen,
    Grace,
    Labels,
    LogLimit,
    Name,
    Resources,
    Retries,
    Tags,
    Text,
    is_stored,
)
from shoal.job.roles import Count, CountField, OnLost, Role, RoleSpec, parse_count

FRAMEWORKS = ("pytorch", "tensorflow", "xgboost", "lightgbm", "mxnet", "paddle", "jax", "horovod", "command")
PRIORITIES = {"low": -10, "normal": 0, "high": 10, "urgent": 20}
LOG_LIMIT = 256 << 20
GRACE = 10.0
RETRIES = 2

_INPUT = re.compile(r"(pool|job|dataset)://[^\s]+")

Framework = Literal["pytorch", "tensorflow", "xgboost", "lightgbm", "mxnet", "paddle", "jax", "horovod", "command"]


def _workers(value: Any) -> Any:
    return parse_count(value, bounds.WORKERS)


def _inputs(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a map; write for example {{digits: pool://me/digits}}")
    if len(value) > bounds.INPUTS.high:
        raise ValueError(f"has {len(value)} inputs, at most {bounds.INPUTS.high:g}: {bounds.INPUTS.why}")
    return {name: _address(item) for name, item in value.items()}


def _address(value: Any) -> str:
    if not isinstance(value, str) or not _INPUT.fullmatch(value):
        raise ValueError(
            f"{value!r} is not an address; write pool://me/FOLDER, job://ID/FOLDER or dataset://NAME@VERSION"
        )
    if ".." in PurePosixPath(value).parts:
        raise ValueError(f"{value!r} climbs out of its pool with '..'")
    return value


def _strategy(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and not is_stored(info):
        try:
            strategies.parse(value)
        except BadSpec as wrong:
            raise ValueError(wrong.message) from None
    return value


def _runs_in(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str) and not is_stored(info):
        try:
            environments.read(value)
        except BadSpec as wrong:
            raise ValueError(wrong.message) from None
    return value


Inputs = Annotated[dict[Name, str], BeforeValidator(_inputs)]
Address = Annotated[str, BeforeValidator(_address)]
Workers = Annotated[
    CountField,
    BeforeValidator(_workers),
    Field(json_schema_extra={"bounds": bounds.WORKERS.text(), "why": bounds.WORKERS.why}),
]


class JobSpec(Frozen):
    """What a user asked to run."""

    name: Name | None = Field(None, description="shown in lists; taken from the script when left out")
    framework: Framework | None = Field(
        None, description="how processes find each other; pytorch for a script, command for a command"
    )
    script: Text | None = Field(None, description="the Python script, relative to the uploaded folder", max_length=4096)
    command: Arguments | None = Field(None, description="any program with its arguments, instead of a script")
    args: Arguments = Field((), description="arguments of the script")
    strategy: Annotated[Text, BeforeValidator(_strategy)] | None = Field(
        None, description="how replicas agree: name[:key=value[,key=value]]", max_length=500
    )
    workers: Workers | None = Field(None, description="number of workers, or min..max")
    servers: CountField | None = Field(None, description="number of parameter servers")
    roles: dict[Name, RoleSpec] = Field(
        default_factory=dict, description="the long form: each kind of process by itself"
    )
    resources: Resources = Field(default_factory=Resources, description="what each process asks for")
    size: Name | None = Field(None, description="a named size set by the administrator, instead of resources")
    environment: Annotated[Text, BeforeValidator(_runs_in)] | None = Field(
        None,
        description="what it runs in: a preset, requirements.txt, pyproject.toml, an interpreter or prefix, image://…",
        max_length=4096,
    )
    env: Environment = Field(default_factory=dict, description="environment variables of every process")
    inputs: Inputs = Field(default_factory=dict, description="name: address; each appears as a folder in the job")
    outputs: Address | None = Field(None, description="where the outputs folder goes when the job ends")
    estimate: Duration | None = Field(None, description="how long it should take; an alarm is raised when it runs over")
    on_overrun: Literal["alert", "stop"] = Field("alert", description="what happens when it runs over its estimate")
    max_duration: Duration | None = Field(None, description="it is stopped, with grace, after this long")
    grace: Grace = Field(GRACE, description="time between SIGTERM and SIGKILL")
    retries: Retries = Field(RETRIES, description="how often it is tried again")
    retry_on: Literal["infrastructure", "any"] = Field("infrastructure", description="which failures are tried again")
    priority: Literal["low", "normal", "high", "urgent"] = Field("normal", description="who goes first")
    engine: Name | None = Field(None, description="where gangs run; the server's default when left out")
    labels: Labels = Field(default_factory=dict, description="labels a node must have")
    tags: Tags = Field((), description="words to find it by")
    project: Name = Field("default", description="the team's space it belongs to")
    owner: Name | None = Field(None, description="set by the server; an administrator may submit for others")
    key: Annotated[Text, Field(min_length=1, max_length=200)] | None = Field(
        None, description="the same key twice is one job"
    )
    in_place: StrictBool = Field(False, description="run where one stands instead of in a private copy (local engine)")
    log_limit: LogLimit = Field(LOG_LIMIT, description="bytes of log kept per rank: the head and the tail")

    @model_validator(mode="after")
    def _agree(self, info: ValidationInfo) -> JobSpec:
        if is_stored(info):
            return self
        own_commands = self.roles and all(role.command for role in self.roles.values())
        if self.script and self.command:
            raise ValueError("script and command contradict each other: give one of them")
        if not self.script and not self.command and not own_commands:
            raise ValueError("nothing to run: give a script, a command, or a command for each role")
        if self.args and self.command:
            raise ValueError("args belong to a script; put the arguments of a command into command itself")
        for short, role in (("workers", "worker"), ("servers", "server")):
            if getattr(self, short) is not None and role in self.roles:
                raise ValueError(f"{short} and roles.{role} contradict each other: give one of them")
        if len(self.roles) > bounds.ROLES.high:
            raise ValueError(f"roles has {len(self.roles)} entries, at most {bounds.ROLES.high:g}: {bounds.ROLES.why}")
        self._check_servers()
        if not any(role.low for role in self.expand()):
            raise ValueError("roles start no process: give at least one of them a count of 1 or more")
        if self.size and self.resources != Resources():
            raise ValueError("size and resources contradict each other: give one of them")
        if self.estimate and self.max_duration and self.estimate > self.max_duration:
            raise ValueError("estimate is longer than max_duration: it would be stopped before it can be done")
        return self

    def _check_servers(self) -> None:
        chosen = self.chosen
        asked = self.roles["server"].count if "server" in self.roles else self.servers
        if chosen is None or chosen.family == "none":
            return
        asked = Count(1, 1) if asked is None and chosen.servers else asked or Count(0, 0)
        if chosen.servers and asked.low == 0:
            raise ValueError(
                f"strategy {chosen.name} keeps the parameters in servers, so servers must be at least 1 (got {asked}); "
                "leave the key out for one"
            )
        if chosen.servers and asked.high < 2 and strategies.parse(self.strategy or "").options["replicas"]:
            raise ValueError("replicas=1 keeps each server's state on the next one: give at least 2 servers")
        if not chosen.servers and asked.high > 0:
            raise ValueError(
                f"strategy {chosen.name} has no servers (got servers={asked}): leave the key out, or take a strategy "
                "that has them, such as ps-async"
            )

    @property
    def chosen(self) -> strategies.Kind | None:
        """What is known of the strategy; None without one."""
        return strategies.parse(self.strategy).kind if self.strategy else None

    @property
    def kind(self) -> str:
        return self.framework or ("pytorch" if self.script else "command")

    @property
    def title(self) -> str:
        """The name shown in lists."""
        if self.name:
            return self.name
        source = self.script or (self.command or ("job",))[0]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(source).stem).strip("-._")
        return plain[: int(bounds.NAME_LENGTH.high)] or "job"

    @property
    def weight(self) -> int:
        return PRIORITIES[self.priority]

    def expand(self) -> tuple[Role, ...]:
        """The short form as roles; workers default to one unless the long form says who else runs the script."""
        long = dict(self.roles)
        if "worker" not in long and (self.workers is not None or not self._has_runner()):
            long["worker"] = RoleSpec(count=self.workers if self.workers is not None else 1)
        if self.servers is not None:
            long["server"] = RoleSpec(count=self.servers)
        elif "server" not in long and self.chosen is not None and self.chosen.servers:
            long["server"] = RoleSpec()
        return tuple(self._fill(name, role) for name, role in long.items() if role.count.high > 0)

    def _has_runner(self) -> bool:
        """Whether the long form runs what the job runs: its script, its command, or else each role's own."""
        own = [name != "server" and not role.command for name, role in self.roles.items()]
        return any(own) if self.script or self.command else bool(own)

    def _fill(self, name: str, role: RoleSpec) -> Role:
        return Role(
            name=name,
            low=role.count.low,
            high=role.count.high,
            resources=role.resources or self.resources,
            command=role.command,
            env={**self.env, **role.env},
            on_lost=role.on_lost or self._on_lost(name),
            apart=role.apart,
            labels={**self.labels, **role.labels},
        )

    def _on_lost(self, role: str) -> OnLost:
        """What a lost rank means where the job does not say: as the strategy bears it."""
        chosen = self.chosen
        if chosen is not None and chosen.servers and role == "server":
            return "restart"
        if chosen is not None and chosen.spares_workers and role == "worker":
            return "continue"
        return "fail"


def parse(raw: Any) -> JobSpec:
    """A specification from plain data; BadSpec lists every fault with its value, the bound and the nearest key."""
    if not isinstance(raw, dict):
        raise BadSpec(
            f"a job is a map of keys to values, not {type(raw).__name__}; see 'shoal run --help' for the keys"
        )
    try:
        return JobSpec.model_validate(raw)
    except ValidationError as invalid:
        problems = [_problem(error) for error in invalid.errors(include_url=False)]
        lines = "; ".join(f"{p['field']}: {p['message']}" if p["field"] else p["message"] for p in problems)
        raise BadSpec(lines, problems) from None


def _problem(error: Any) -> dict[str, Any]:
    location = [str(part) for part in error["loc"] if not str(part).startswith(("function-", "constrained-"))]
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = _unknown_key(location)
    if error["type"] == "literal_error":
        near = nearest(str(error.get("input")), re.findall(r"'([^']*)'", message))
        message += f"; did you mean {near!r}?" if near else ""
    shown = repr(error.get("input"))
    if error["type"] not in {"extra_forbidden", "missing", "value_error"} and len(shown) < 200:
        message = f"{message} (got {shown})"
    return {"field": ".".join(location), "value": shown[:200], "message": message}


def _unknown_key(location: list[str]) -> str:
    *parents, key = location
    model: type[Frozen] = JobSpec
    if parents and parents[-1] == "resources":
        model = Resources
    elif parents and parents[0] == "roles":
        model = RoleSpec
    near = nearest(key, model.model_fields)
    hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(model.model_fields)}"
    return f"no such key; {hint}"
