"""The job file as flags: one table, a line per key, that gives run, submit, try, plan and clone their options.

A flag's text goes to the one model as it stands (a number as a number), so that a wrong value gets the model's own
message. Flags override the file; maps and tags are added to.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperCommand

from shoal.errors import BadSpec
from shoal.frameworks import FRAMEWORKS
from shoal.job.fields import Resources
from shoal.job.roles import RoleSpec
from shoal.job.spec import PRIORITIES, JobSpec

AFTER = "shoal.after"  # what stood behind `--`, in the context's meta
_HINTS = "shoal.hints"

Reader = Callable[[str], Any]


def _text(value: str) -> str:
    return value


def _number(value: str) -> int | float | str:
    """The number a job file would hold; other text stays text, for the model to refuse in its own words."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _words(value: str) -> list[str] | str:
    """A command line as a shell would cut it."""
    try:
        return shlex.split(value)
    except ValueError:
        return value


def _truth(value: str) -> bool | str:
    return {"true": True, "yes": True, "false": False, "no": False}.get(value.lower(), value)


@dataclass(frozen=True, slots=True)
class Flag:
    """One key of the job file on the command line. `many` is given several times; `pairs` holds NAME=VALUE."""

    key: str
    names: tuple[str, ...]
    metavar: str
    panel: str
    read: Reader = _text
    many: bool = False
    pairs: bool = False
    switch: bool = False
    choices: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        return "flag_" + self.key.replace(".", "_")

    @property
    def help(self) -> str:
        model, name = (Resources, self.key[10:]) if self.key.startswith("resources.") else (JobSpec, self.key)
        text = str(model.model_fields[name].description)
        bounds = _bounds(model.model_json_schema()["properties"][name])
        choices = f": {', '.join(self.choices)}" if self.choices else ""
        return f"{text[0].upper()}{text[1:]}{choices}{f' ({bounds})' if bounds else ''}."


def _bounds(schema: Mapping[str, Any]) -> str | None:
    return next((str(s["bounds"]) for s in (schema, *schema.get("anyOf", ())) if "bounds" in s), None)


WHAT, HOW_MANY, ASKS, NEEDS, TIME, ORDER = "What", "How many", "Resources", "Surroundings", "Time and retries", "Order"

FLAGS = (
    Flag("name", ("--name", "-n"), "NAME", WHAT),
    Flag("framework", ("--framework",), "NAME", WHAT, choices=tuple(FRAMEWORKS)),
    Flag("script", ("--script",), "FILE", WHAT),
    Flag("command", ("--command",), "TEXT", WHAT, read=_words),
    Flag("args", ("--args",), "TEXT", WHAT, read=_words),
    Flag("data", ("--data",), "FILE|ADDRESS", WHAT),
    Flag("label", ("--label",), "COLUMN", WHAT, many=True),
    Flag("valid", ("--valid",), "SHARE|FILE", WHAT, read=_number),
    Flag("params", ("--params",), "NAME=VALUE,…", WHAT, many=True),
    Flag("strategy", ("--strategy",), "NAME", WHAT),
    Flag("workers", ("--workers", "-w"), "COUNT", HOW_MANY),
    Flag("servers", ("--servers",), "COUNT", HOW_MANY),
    Flag("roles", ("--role",), "NAME:KEY=VALUE,…", HOW_MANY, many=True),
    Flag("resources.cpu", ("--cpu",), "CORES", ASKS, read=_number),
    Flag("resources.memory", ("--memory",), "SIZE", ASKS),
    Flag("resources.gpu", ("--gpu",), "COUNT", ASKS, read=_number),
    Flag("resources.gpu_type", ("--gpu-type",), "NAME", ASKS),
    Flag("resources.cpu_quota", ("--cpu-quota/--no-cpu-quota",), "", ASKS, switch=True),
    Flag("size", ("--size",), "NAME", ASKS),
    Flag("labels", ("--node-label",), "NAME=VALUE", ASKS, many=True, pairs=True),
    Flag("engine", ("--engine",), "NAME", ASKS),
    Flag("environment", ("--environment",), "NAME|PATH", NEEDS),
    Flag("env", ("--env", "-e"), "NAME=VALUE", NEEDS, many=True, pairs=True),
    Flag("inputs", ("--input",), "NAME=ADDRESS", NEEDS, many=True, pairs=True),
    Flag("outputs", ("--output", "--outputs"), "ADDRESS", NEEDS),
    Flag("in_place", ("--in-place/--no-in-place",), "", NEEDS, switch=True),
    Flag("log_limit", ("--log-limit",), "SIZE", NEEDS),
    Flag("estimate", ("--estimate",), "DURATION", TIME),
    Flag("on_overrun", ("--on-overrun",), "RULE", TIME, choices=("alert", "stop")),
    Flag("max_duration", ("--max-duration",), "DURATION", TIME),
    Flag("grace", ("--grace",), "DURATION", TIME),
    Flag("retries", ("--retries",), "COUNT", TIME, read=_number),
    Flag("retry_on", ("--retry-on",), "RULE", TIME, choices=("infrastructure", "any")),
    Flag("priority", ("--priority",), "NAME", ORDER, choices=tuple(PRIORITIES)),
    Flag("tags", ("--tag",), "WORD", ORDER, many=True),
    Flag("project", ("--project",), "NAME", ORDER),
    Flag("owner", ("--owner",), "NAME", ORDER),
    Flag("key", ("--key",), "TEXT", ORDER),
)

_ROLE_HELP = (
    "Another kind of process, or how this one differs: evaluator:count=1,cpu=2. "
    "Keys: count, command, on_lost, apart, cpu, memory, gpu, gpu_type, env.NAME, labels.NAME."
)


Script = Annotated[
    str | None,
    typer.Argument(metavar="SCRIPT|JOB.yaml", help="A Python script, or a job file.", show_default=False),
]
JobFile = Annotated[
    str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the job from this file; flags go before it.")
]
Folder = Annotated[
    str | None,
    typer.Option("--folder", metavar="FOLDER", help="Send this folder instead of the script's."),
]


def takes_job(function: Callable[..., None] | None = None, *, repeated: Sequence[str] = ()) -> Callable[..., Any]:
    """Gives a command every flag of the table; its own parameter `flags` receives {key: given value}.

    The keys in `repeated` may be given several times and arrive as lists.
    """
    if function is None:
        return partial(takes_job, repeated=repeated)
    own = inspect.signature(function, eval_str=True).parameters.values()

    def command(**given: Any) -> None:
        flags = {flag.key: given.pop(flag.parameter) for flag in FLAGS}
        function(flags={key: value for key, value in flags.items() if value not in (None, [])}, **given)

    keep = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own if one.name != "flags"]
    command.__signature__ = inspect.Signature(keep + [_parameter(flag, flag.key in repeated) for flag in FLAGS])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def _parameter(flag: Flag, repeated: bool = False) -> inspect.Parameter:
    option = typer.Option(
        *flag.names,
        metavar=flag.metavar or None,
        help=_ROLE_HELP if flag.key == "roles" else flag.help,
        rich_help_panel=flag.panel,
        show_default=False,
        autocompletion=(lambda: list(flag.choices)) if flag.choices else None,
    )
    kind = bool if flag.switch else (list[str] if flag.many or repeated else str)
    return inspect.Parameter(
        flag.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Optional[kind], option],  # noqa: UP045
    )


class JobCommand(TyperCommand):
    """A command line cut at `--`: Shoal's own flags before it, the job's command or the script's arguments behind."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[AFTER] = args[cut + 1 :] if cut < len(args) else None
        ctx.meta[_HINTS] = ["hint: what belongs to the script goes behind '--': shoal run train.py -- --epochs 5"]
        rest: list[str] = super().parse_args(ctx, args[:cut])
        ctx.meta[_HINTS] = []
        return rest


def override(job: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The job file's data with the flags laid over it."""
    raw = dict(job)
    for flag in FLAGS:
        if flag.key in flags:
            _lay(raw, flag, flags[flag.key])
    _settle(raw, flags)
    return raw


def _lay(raw: dict[str, Any], flag: Flag, given: Any) -> None:
    if flag.key == "roles":
        raw["roles"] = _roles(_map(raw.get("roles")), given)
    elif flag.key == "params":
        raw["params"] = {**_map(raw.get("params")), **dict(_param(part) for text in given for part in _parts(text))}
    elif flag.key == "label":
        _lay_label(raw, given)
    elif flag.pairs:
        raw[flag.key] = {**_map(raw.get(flag.key)), **dict(_pair(flag, item) for item in given)}
    elif flag.many:
        present = raw.get(flag.key) or []
        raw[flag.key] = [*(present if isinstance(present, (list, tuple)) else [present]), *given]
    elif flag.key.startswith("resources."):
        value = given if flag.switch else flag.read(given)
        raw["resources"] = {**_map(raw.get("resources")), flag.key[10:]: value}
    else:
        raw[flag.key] = given if flag.switch else flag.read(given)


def _lay_label(raw: dict[str, Any], given: Sequence[str]) -> None:
    """A column; NAME=VALUE is a label of nodes, which the flag was for at first."""
    columns = [text for text in given if "=" not in text]
    if len(columns) > 1:
        raise BadSpec(f"--label: two columns, {columns[0]} and {columns[1]}; give one of them")
    if columns:
        raw["label"] = _number(columns[0])
    nodes = dict(text.split("=", 1) for text in given if "=" in text)
    if nodes:
        raw["labels"] = {**_map(raw.get("labels")), **nodes}


def _parts(text: str) -> list[str]:
    """`a=1,b=[2,3]` cut at the commas that stand in no bracket."""
    return [part for part in re.findall(r"(?:\[[^\]]*\]|\([^)]*\)|[^,\[(])+", text) if part.strip()]


def _param(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadSpec(f"--params: {text!r} has no '='; write NAME=VALUE,NAME=VALUE, such as max_depth=4,eta=0.1")
    return name.strip(), _plain(value.strip())


def _plain(text: str) -> Any:
    """The value a job file would hold: a number, true or false, a list in brackets, or text."""
    if text.startswith("[") and text.endswith("]"):
        return [_plain(part.strip().strip("'\"")) for part in text[1:-1].split(",") if part.strip()]
    return {"true": True, "false": False}.get(text.lower(), _number(text))


def _map(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadSpec(f"the job file has {value!r} where a map of names to values belongs")
    return dict(value)


def _pair(flag: Flag, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadSpec(f"{flag.names[0]}: {text!r} has no '='; write {flag.metavar}")
    return name, value


def _settle(raw: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """A flag that replaces the other way of saying the same thing in the file, instead of contradicting it."""
    if "size" in flags and not any(key.startswith("resources.") for key in flags):
        raw.pop("resources", None)
    elif any(key.startswith("resources.") for key in flags) and "size" not in flags:
        raw.pop("size", None)
    for short, role in (("workers", "worker"), ("servers", "server")):
        roles = raw.get("roles")
        if short in flags and isinstance(roles, Mapping) and role in roles:
            raw["roles"] = {**roles, role: {**_map(roles[role]), "count": raw.pop(short)}}
    if "script" in flags and "command" not in flags:
        raw.pop("command", None)
    elif "command" in flags and "script" not in flags:
        raw.pop("script", None)
        raw.pop("args", None)


def _roles(roles: dict[str, Any], given: list[str]) -> dict[str, Any]:
    for text in given:
        name, _, rest = text.partition(":")
        role = _map(roles.get(name))
        for part in filter(None, rest.split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                raise BadSpec(f"--role: {part!r} in {text!r} has no '='; write NAME:KEY=VALUE,KEY=VALUE")
            _lay_role(role, key.strip(), value)
        roles[name] = role
    return roles


_ROLE_READERS: dict[str, Reader] = {
    "command": _words,
    "apart": _truth,
    "cpu": _number,
    "gpu": _number,
    "cpu_quota": _truth,
}


def _lay_role(role: dict[str, Any], key: str, value: str) -> None:
    """`cpu=2` goes under resources, `env.NAME=x` into the map, everything else where it is named."""
    read = _ROLE_READERS.get(key, _text)
    section, dot, name = key.partition(".")
    if dot and section in RoleSpec.model_fields:
        role[section] = {**_map(role.get(section)), name: _ROLE_READERS.get(name, _text)(value)}
    elif key in Resources.model_fields:
        role["resources"] = {**_map(role.get("resources")), key: read(value)}
    else:
        role[key] = read(value)
