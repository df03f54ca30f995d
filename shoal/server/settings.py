"""What an administrator may set: config.toml under SHOAL_HOME, and the server's flags, which go before it.

A database's address may hold a password, which every user of the machine would see in a command line: between flags and
file the variable SHOAL_DATABASE counts.

[server]
host = "127.0.0.1"
nodes = 2

[sizes.small]
cpu = 1
memory = "2GiB"

[isolation]
mode = "auto"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from shoal._lib.quantities import parse_size
from shoal._lib.venvs import ROOM
from shoal.catalogue import nearest
from shoal.engine.isolation import FIRST_UID, LAST_UID, LEAST_PERSON, Asked, Rules
from shoal.errors import BadConfig
from shoal.home import DATABASE_VARIABLE, Home
from shoal.job.fields import Frozen, Labels, Name, Resources

DEFAULT_HOST = "127.0.0.1"
SIZES = {
    "small": Resources(cpu=1, memory=2 << 30),
    "medium": Resources(cpu=2, memory=4 << 30),
    "large": Resources(cpu=4, memory=16 << 30),
}


def _bytes(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _pairs(value: Any) -> Any:
    """A table, or as a flag writes it: rack=r1,disk=ssd."""
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",") if pair]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError(f"{value!r} is not a list of labels; write for example rack=r1,disk=ssd")
    return {name: item for name, _, item in pairs}


def _range(value: Any) -> Any:
    """First and last number, or as one writes it: 70000-79999."""
    if not isinstance(value, str):
        return value
    first, dash, last = value.partition("-")
    if not (dash and first.strip().isdigit() and last.strip().isdigit()):
        raise ValueError(f"{value!r} is not a range of numbers; write for example {FIRST_UID}-{LAST_UID}")
    return int(first), int(last)


def _grows(value: tuple[int, int]) -> tuple[int, int]:
    if value[0] > value[1]:
        raise ValueError(f"{value[0]}-{value[1]} ends before it begins; write the smaller number first")
    return value


Uid = Annotated[int, Field(ge=LEAST_PERSON, lt=2**32 - 1)]


class ServerSettings(Frozen):
    """The table [server]; each key is also a flag of `python -m shoal.server`."""

    host: str = Field(DEFAULT_HOST, min_length=1)
    port: int | None = Field(None, ge=0, le=65535, description="kept from the last start when left out")
    nodes: int = Field(1, ge=1, le=10_000, description="present this machine as several nodes")
    cpus: float | None = Field(None, gt=0, description="per node; counted when left out")
    memory: Annotated[int, BeforeValidator(_bytes), Field(gt=0)] | None = Field(None, description="per node")
    gpus: int | None = Field(None, ge=0, le=64, description="per node; counted when left out")
    shares: int | None = Field(None, ge=1, description="processes that ask for no CPU, per node")
    labels: Annotated[Labels, BeforeValidator(_pairs)] = Field(
        {}, description="of every node, for jobs that ask for them"
    )
    environments: Annotated[int, BeforeValidator(_bytes), Field(ge=0)] = Field(
        ROOM, description="bytes that built environments may take on each node; what was not used longest goes first"
    )
    engine: Name = Field("local", description="where jobs run that name no engine")
    database: str | None = Field(None, description="URL; SQLite under SHOAL_HOME when left out")
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False


class IsolationSettings(Frozen):
    """The table [isolation]: how jobs of different users are kept apart on this machine."""

    mode: Asked = Field("auto", description="one of auto, user, bubblewrap and none")
    users: dict[Name, str | Uid] = Field({}, description="table: a user of Shoal's = a user of the system's, or a uid")
    same_name: bool = Field(False, description="a user of the system's with the same name stands for him")
    uids: Annotated[tuple[Uid, Uid], BeforeValidator(_range), AfterValidator(_grows)] = Field(
        (FIRST_UID, LAST_UID), description="numbers handed out to those whom neither names"
    )
    visible: tuple[Path, ...] = Field(
        (), description="what bubblewrap shows, to read, though it lies in a hidden folder"
    )

    def rules(self) -> Rules:
        return Rules(self.mode, dict(self.users), self.same_name, self.uids, tuple(map(str, self.visible)))


class Settings(Frozen):
    server: ServerSettings = Field(default_factory=ServerSettings)
    isolation: IsolationSettings = Field(default_factory=IsolationSettings)
    sizes: dict[Name, Resources] = Field(default_factory=lambda: dict(SIZES))


def read_settings(home: Home, flags: Mapping[str, Any]) -> Settings:
    """config.toml with the flags that were given on top; BadConfig names the key and the nearest known one."""
    raw = _read_file(home.config_file)
    given = {key: value for key, value in flags.items() if value is not None}
    if os.environ.get(DATABASE_VARIABLE):
        given.setdefault("database", os.environ[DATABASE_VARIABLE])
    table = raw.get("server", {})
    if not isinstance(table, dict):
        raise BadConfig(f"{home.config_file}: 'server' is {table!r}; write it as a table: [server]")
    try:
        settings = Settings.model_validate({**raw, "server": {**table, **given}})
    except ValidationError as invalid:
        raise BadConfig(f"{home.config_file} or a flag: {_explain(invalid)}") from None
    if bool(settings.server.tls_cert) != bool(settings.server.tls_key):
        raise BadConfig("tls_cert and tls_key belong together: give both, or neither for a self-signed certificate")
    return settings


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadConfig(f"{path} cannot be read: {wrong}; make it a readable text file or remove it") from None
    except tomllib.TOMLDecodeError as wrong:
        raise BadConfig(f"{path} is not TOML: {wrong}; correct that line") from None


def _explain(invalid: ValidationError) -> str:
    return "; ".join(_fault(error) for error in invalid.errors(include_url=False))


def _fault(error: Any) -> str:
    *parents, key = [str(part) for part in error["loc"]]
    where = ".".join([*parents, key])
    if error["type"] == "extra_forbidden":
        known = _known_keys(parents)
        near = nearest(key, known)
        return f"{where}: no such key; " + (f"did you mean {near!r}?" if near else f"known: {', '.join(known)}")
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{where}: {message} (got {error.get('input')!r})"


def _known_keys(parents: list[str]) -> list[str]:
    if not parents:
        return list(Settings.model_fields)
    models: dict[str, type[Frozen]] = {"server": ServerSettings, "isolation": IsolationSettings}
    return list(models.get(parents[0], Resources).model_fields)
