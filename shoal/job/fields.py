"""The field types of a job file: how each is read from YAML, a flag, the SDK or JSON, and its bound with the reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    model_validator,
)

from shoal._lib.quantities import parse_duration, parse_size
from shoal.job import bounds
from shoal.job.bounds import Bound

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEY_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# The context for reading back what was accepted once: rules between keys that came later do not make it unreadable.
STORED: dict[str, Any] = {"stored": True}


def is_stored(info: ValidationInfo) -> bool:
    return bool(info.context and info.context.get("stored"))


class Frozen(BaseModel):
    """A value: frozen, comparable, and strict about keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    return value


def _within(bound: Bound, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        number = read(value)
        bound.check(number)
        return number

    return check


def _reads(bound: Bound, read: Callable[[Any], Any] = _number) -> tuple[Any, Any]:
    """The reader that checks the bound, and the note that shows it in the schema."""
    note: dict[str, Any] = {"bounds": bound.text(), "why": bound.why}
    return BeforeValidator(_within(bound, read)), Field(json_schema_extra=note)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a size; write a number and a unit, such as 2GiB")
    return int(value)


def _duration(value: Any) -> float:
    if isinstance(value, str):
        if value.strip().startswith("-"):
            raise ValueError(f"{value!r} is negative; a duration is at least a second, for example 20m")
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a duration; write for example 45s, 20m, 1h30m or 2d")
    return float(value)


def check_name(value: Any) -> str:
    """Names of jobs, projects, roles, users: letters, digits, dot, dash, underscore."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a name; write text")
    if not bounds.NAME_LENGTH.low <= len(value) <= bounds.NAME_LENGTH.high:
        raise ValueError(
            f"has {len(value)} characters, allowed are {bounds.NAME_LENGTH.text()}: {bounds.NAME_LENGTH.why}"
        )
    wrong = sorted({c for c in value if not (c.isascii() and (c.isalnum() or c in "._-"))})
    if wrong:
        shown = " ".join(repr(c) for c in wrong[:5])
        raise ValueError(f"has characters that are not allowed ({shown}); use letters, digits, '.', '-' and '_'")
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError("must begin with a letter or a digit")
    return value


def _argument(value: Any) -> str:
    """One command-line argument; numbers as YAML reads them become their text, booleans are ambiguous."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not text; put it in quotes")
    text = str(value)
    if len(text) > bounds.ARGUMENT_LENGTH.high:
        raise ValueError(
            f"has {len(text)} characters, at most {bounds.ARGUMENT_LENGTH.high:g}: {bounds.ARGUMENT_LENGTH.why}"
        )
    if "\0" in text:
        raise ValueError("holds a NUL character, which no command line can carry")
    return text


def _arguments(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f'{value!r} is not a list; write for example [--epochs, "5"]')
    if len(value) > bounds.ARGUMENTS.high:
        raise ValueError(f"has {len(value)} entries, at most {bounds.ARGUMENTS.high:g}: {bounds.ARGUMENTS.why}")
    return tuple(_argument(item) for item in value)


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a map of variable to value")
    if len(value) > bounds.ENVIRONMENT_SIZE.high:
        raise ValueError(
            f"has {len(value)} variables, at most {bounds.ENVIRONMENT_SIZE.high:g}: {bounds.ENVIRONMENT_SIZE.why}"
        )
    for name in value:
        if not isinstance(name, str) or not _KEY_PATTERN.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a variable name; use letters, digits and '_', not beginning with a digit"
            )
        if name.startswith("SHOAL_"):
            raise ValueError(f"{name!r} is Shoal's own; choose a name that does not begin with SHOAL_")
    return {name: _argument(item) for name, item in value.items()}


def _labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is not a map of label to value")
    return {check_name(name): check_name(str(item)) for name, item in value.items()}


def _tags(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{value!r} is not a list of tags")
    if len(value) > bounds.TAGS.high:
        raise ValueError(f"has {len(value)} tags, at most {bounds.TAGS.high:g}: {bounds.TAGS.why}")
    return tuple(dict.fromkeys(check_name(tag) for tag in value))


Name = Annotated[str, BeforeValidator(check_name)]
Cpu = Annotated[float, *_reads(bounds.CPU)]
Memory = Annotated[int, *_reads(bounds.MEMORY, _size)]
Gpu = Annotated[StrictInt, *_reads(bounds.GPU)]
Duration = Annotated[float, *_reads(bounds.DURATION, _duration)]
Grace = Annotated[float, *_reads(bounds.GRACE, _duration)]
Retries = Annotated[StrictInt, *_reads(bounds.RETRIES)]
LogLimit = Annotated[int, *_reads(bounds.LOG_LIMIT, _size)]
Arguments = Annotated[tuple[str, ...], BeforeValidator(_arguments)]
Environment = Annotated[dict[str, str], BeforeValidator(_environment)]
Labels = Annotated[dict[str, str], BeforeValidator(_labels)]
Tags = Annotated[tuple[str, ...], BeforeValidator(_tags)]
Text = StrictStr


class Resources(Frozen):
    """What one worker (or server …) asks for. Unset CPU shares the node with others."""

    cpu: Cpu | None = Field(None, description="cores; a share under pressure, not a cap, unless cpu_quota")
    memory: Memory | None = Field(None, description="bytes, or 2GiB; a process above it is ended")
    gpu: Gpu = Field(0, description="whole GPUs")
    gpu_type: Name | None = Field(None, description="the kind of GPU, as 'shoal nodes' shows it")
    cpu_quota: StrictBool = Field(False, description="make cpu a hard cap")

    @model_validator(mode="after")
    def _agree(self, info: ValidationInfo) -> Resources:
        if is_stored(info):
            return self
        if self.gpu_type and not self.gpu:
            raise ValueError(f"gpu_type {self.gpu_type!r} needs GPUs: give gpu as well, for example gpu: 1")
        if self.cpu_quota and self.cpu is None:
            raise ValueError("cpu_quota makes cpu a hard cap: give cpu as well, for example cpu: 1")
        return self
