"""The job file: one frozen model for YAML, flags, SDK, HTTP and the store. Faults become one BadSpec that lists all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, ValidationError, ValidationInfo, model_validator

from shoal import environments
from shoal import strategy as strategies
from shoal.catalogue import nearest
from shoal.errors import BadSpec
from shoal.frameworks import FRAMEWORKS, NATIVE, Framework, OnLost, Pair, framework, leads_by_name
from shoal.job import bounds, rows
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
from shoal.job.roles import CountField, Role, RoleSpec, parse_count
from shoal.job.starters import starter

PRIORITIES = {"low": -10, "normal": 0, "high": 10, "urgent": 20}
TRAINED = "pytorch"  # the framework of the training library
LOG_LIMIT = 256 << 20
GRACE = 10.0
RETRIES = 2

_INPUT = re.compile(r"(pool|job|dataset)://[^\s]+")
_OTHER_WORDS = {"ps": "server", "pserver": "server", "master": "chief", "trainer": "worker", "coordinator": "chief"}


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


def _read_by(read: Callable[[str], object]) -> BeforeValidator:
    """The text stays as it is, once `read` has found no fault with it; what is stored was checked before."""

    def checked(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and not is_stored(info):
            try:
                read(value)
            except BadSpec as wrong:
                raise ValueError(wrong.message) from None
        return value

    return BeforeValidator(checked)


FrameworkName = Annotated[Text, _read_by(framework), Field(json_schema_extra={"enum": list(FRAMEWORKS)}, max_length=64)]
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
    framework: FrameworkName | None = Field(
        None, description="how processes find each other; pytorch for a script and for torchrun, else command"
    )
    script: Text | None = Field(None, description="the Python script, relative to the uploaded folder", max_length=4096)
    command: Arguments | None = Field(None, description="any program with its arguments, instead of a script")
    args: Arguments = Field((), description="arguments of the script")
    data: rows.Data | None = Field(
        None, description="the file to train from without a script, or its address (xgboost, lightgbm)"
    )
    label: rows.Label | None = Field(None, description="the column of data to predict: its name, or its number from 0")
    valid: rows.Valid | None = Field(None, description="a share of data to evaluate on, or another file")
    params: rows.Params = Field(default_factory=dict, description="parameters of the training from data")
    strategy: Annotated[Text, _read_by(strategies.parse)] | None = Field(
        None, description="how replicas agree: name[:key=value[,key=value]]", max_length=500
    )
    workers: Workers | None = Field(None, description="number of workers, or min..max")
    servers: CountField | None = Field(None, description="number of parameter servers")
    roles: dict[Name, RoleSpec] = Field(
        default_factory=dict, description="the long form: each kind of process by itself"
    )
    resources: Resources = Field(default_factory=Resources, description="what each process asks for")
    size: Name | None = Field(None, description="a named size set by the administrator, instead of resources")
    environment: Annotated[Text, _read_by(environments.read)] | None = Field(
        None,
        description="what it runs in: a preset, requirements.txt, pyproject.toml, an interpreter or prefix, image://…",
        max_length=4096,
    )
    env: Environment = Field(
        default_factory=dict, description="environment variables of every process; {rank} and the like are filled in"
    )
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
        if not self.script and not self.command and not self.data and not own_commands:
            raise ValueError("nothing to run: give a script, a command, or a command for each role")
        if self.args and self.command:
            raise ValueError("args belong to a script; put the arguments of a command into command itself")
        for short, role in (("workers", "worker"), ("servers", "server")):
            if getattr(self, short) is not None and role in self.roles:
                raise ValueError(f"{short} and roles.{role} contradict each other: give one of them")
        if len(self.roles) > bounds.ROLES.high:
            raise ValueError(f"roles has {len(self.roles)} entries, at most {bounds.ROLES.high:g}: {bounds.ROLES.why}")
        rows.check(self.row, self._said(), self.inputs)
        self._check_pair()
        if not any(role.low for role in self.expand()):
            raise ValueError("roles start no process: give at least one of them a count of 1 or more")
        if self.size and self.resources != Resources():
            raise ValueError("size and resources contradict each other: give one of them")
        if self.estimate and self.max_duration and self.estimate > self.max_duration:
            raise ValueError("estimate is longer than max_duration: it would be stopped before it can be done")
        return self

    def _said(self) -> dict[str, Any]:
        """The keys that are not left out."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) not in (None, (), {})}

    def _check_pair(self) -> None:
        """The strategy is one of the framework's, its roles are there, and no others."""
        try:
            pair = self.pair
        except BadSpec as wrong:
            raise ValueError(wrong.message) from None
        self._check_options(pair)
        for name, role in self.roles.items():
            if pair.part(name) is None and not role.command and not self.row.any_role:
                raise ValueError(f"roles.{name}: {_no_role(pair, name)}")
        _check_losses(pair, self.roles)
        self._check_counts(pair)

    def _check_options(self, pair: Pair) -> None:
        given = strategies.parse(self.strategy).given if self.strategy else ()
        if given and pair.framework != TRAINED:
            raise ValueError(
                f"strategy {self.strategy!r}: {given[0]} is an option of the training library, which is for {TRAINED}; "
                f"under {pair.framework} write {pair.strategy} alone"
            )

    def _check_counts(self, pair: Pair) -> None:
        asked = {role.name: role for role in self.expand()}
        servers = asked.get("server")
        if servers and pair.part("server") is None and not (pair.strategy == NATIVE and self.row.any_role):
            raise ValueError(
                f"strategy {pair.strategy} has no servers (got servers={servers.count}): leave the key out, or take a "
                "strategy that has them, such as ps-async"
            )
        for part in pair.parts:
            role = asked.get(part.role)
            low, high = (role.low, role.high) if role else (0, 0)
            if low < part.least and part.role == "server":
                raise ValueError(
                    f"strategy {pair.strategy} keeps the parameters in servers, so servers must be at least "
                    f"{part.least} (got {low}); leave the key out for one"
                )
            if (low < part.least and pair.strategy != NATIVE) or high > part.most:
                bound = f"exactly {part.most}" if part.least == part.most else f"{part.least} to {part.most}"
                raise ValueError(f"roles.{part.role}: {pair.framework} under {pair.strategy} has {bound} (got {high})")
        if servers and servers.high < 2 and self._copies_servers():
            raise ValueError("replicas=1 keeps each server's state on the next one: give at least 2 servers")

    def _copies_servers(self) -> bool:
        chosen = self.chosen
        return chosen is not None and chosen.servers and bool(strategies.parse(str(self.strategy)).options["replicas"])

    @property
    def chosen(self) -> strategies.Kind | None:
        """What is known of the strategy; None without one."""
        return strategies.parse(self.strategy).kind if self.strategy else None

    @property
    def kind(self) -> str:
        return self.framework or (TRAINED if self.script or starter(self.command) else "command")

    @property
    def row(self) -> Framework:
        """What is known of the framework."""
        return framework(self.kind)

    @property
    def pair(self) -> Pair:
        """The framework under the strategy; BadSpec when it has none of that name."""
        return self.row.pair(self.strategy)

    @property
    def title(self) -> str:
        """The name shown in lists."""
        if self.name:
            return self.name
        source = self.script or self.data or (self.command or ("job",))[0]
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(source).stem).strip("-._")
        return plain[: int(bounds.NAME_LENGTH.high)] or "job"

    @property
    def brought(self) -> dict[str, str]:
        """All that is brought into the job: its inputs, and data that is given by its address."""
        told = {key: getattr(self, key) for key in rows.INPUTS}
        return {**self.inputs, **{key: value for key, value in told.items() if rows.is_address(value)}}

    @property
    def weight(self) -> int:
        return PRIORITIES[self.priority]

    def expand(self) -> tuple[Role, ...]:
        """The short form as roles, and those that the framework needs under the strategy. Workers default to one unless
        the long form says who else runs the script."""
        pair, wanted = self.pair, dict(self.roles)
        if self.workers is not None:
            wanted["worker"] = RoleSpec(count=self.workers)
        if self.servers is not None:
            wanted["server"] = RoleSpec(count=self.servers)
        for part in pair.parts:
            unneeded = part.role == "worker" and pair.strategy == NATIVE and self._has_runner()
            if part.role not in wanted and part.count and not unneeded:
                wanted[part.role] = RoleSpec(count=part.count)
        return tuple(self._fill(pair, name, role) for name, role in wanted.items() if role.count.high > 0)

    def _has_runner(self) -> bool:
        """Whether the long form runs what the job runs: its script, its command, or else each role's own."""
        own = [name != "server" and not role.command for name, role in self.roles.items()]
        return any(own) if self.script or self.command else bool(own)

    def _fill(self, pair: Pair, name: str, role: RoleSpec) -> Role:
        part = pair.part(name)
        on_lost: OnLost = part.on_lost if part else "fail"
        return Role(
            name=name,
            low=role.count.low,
            high=role.count.high,
            resources=role.resources or (Resources() if part and part.light else self.resources),
            command=role.command or (None if part and part.ours else self.command),
            env={**self.env, **role.env},
            on_lost=role.on_lost or on_lost,
            apart=role.apart,
            labels={**self.labels, **role.labels},
            leads=part.leads if part else leads_by_name(name),
            spare=part is not None and part.spare,
            ours=part is not None and part.ours,
        )


def _check_losses(pair: Pair, roles: Mapping[str, RoleSpec]) -> None:
    for part in pair.parts:
        if part.stays_lost and part.role in roles and roles[part.role].on_lost == "restart":
            raise ValueError(
                f"roles.{part.role}.on_lost: framework {pair.framework} cannot do 'restart': {part.stays_lost}; take "
                "fail, which tries the whole attempt again, or continue for a script that goes on without the lost one"
            )


def _no_role(pair: Pair, name: str) -> str:
    near = _OTHER_WORDS.get(name) if _OTHER_WORDS.get(name) in pair.roles else nearest(name, pair.roles)
    hint = f"did you mean {near!r}?" if near else f"it has {', '.join(pair.roles)}"
    return f"framework {pair.framework} has no such role under {pair.strategy}; {hint} A role with a command is free"


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
