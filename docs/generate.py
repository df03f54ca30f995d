"""Writes the parts of the documentation that the code already knows: keys, flags, commands, routes, reasons, settings.

    python docs/generate.py            brings the files up to date
    python docs/generate.py --check    says which are not, and leaves with 1

A file keeps its own words; only what stands between `<!-- generated: NAME -->` and `<!-- end -->` is written here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from shoal import __version__
from shoal._lib.quantities import format_duration, format_size
from shoal.job import bounds
from shoal.job.bounds import Bound
from shoal.job.fields import Frozen, Resources
from shoal.job.reasons import Reason
from shoal.job.roles import RoleSpec
from shoal.job.spec import JobSpec
from shoal.job.states import State

DOCS = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What a value looks like when the schema's word for it says too little.
_TAKES = {
    "workers": "count",
    "servers": "count",
    "count": "count",
    "memory": "size",
    "log_limit": "size",
    "estimate": "duration",
    "max_duration": "duration",
    "grace": "duration",
    "roles": "map of role to the keys below",
    "resources": "map of the keys below",
    "env": "map of variable to text",
    "inputs": "map of name to address",
    "labels": "map of label to value",
    "outputs": "address",
    "data": "file or address",
    "label": "text or whole number",
    "valid": "number, file or address",
    "params": "map of parameter to value",
}
# Bounds that the model checks as a whole and that its schema cannot carry on one value.
_WHOLE: dict[str, tuple[str, Bound]] = {
    "name": ("characters", bounds.NAME_LENGTH),
    "args": ("entries", bounds.ARGUMENTS),
    "command": ("entries", bounds.ARGUMENTS),
    "env": ("variables", bounds.ENVIRONMENT_SIZE),
    "tags": ("tags", bounds.TAGS),
    "roles": ("roles", bounds.ROLES),
    "inputs": ("inputs", bounds.INPUTS),
}
_ROLE_WORDS = {
    "count": "how many, or min..max",
    "resources": "what each process of the role asks for, instead of the job's",
    "command": "what it runs, instead of the job's script or command",
    "env": "variables besides the job's",
}
_SETTING_WORDS = {
    "host": "the address to listen at; anything but loopback needs TLS or behind_proxy",
    "tls_cert": "PEM file; self-signed when left out",
    "tls_key": "PEM file of its key",
    "behind_proxy": "another server in front speaks TLS for this one",
}


def table(head: tuple[str, ...], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    yield _row(head)
    yield _row("---" for _ in head)
    yield from map(_row, rows)


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


# Keys of the job file.


def job_keys() -> Iterator[str]:
    return _keys(JobSpec, {}, _flags())


def role_keys() -> Iterator[str]:
    return _keys(RoleSpec, _ROLE_WORDS)


def resource_keys() -> Iterator[str]:
    return _keys(Resources, {}, {key[10:]: flag for key, flag in _flags().items() if key.startswith("resources.")})


def _keys(model: Any, words: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Iterator[str]:
    head = ("key", "takes", "default", "meaning") + (("flag",) if flags else ())
    rows = []
    for name, schema in model.model_json_schema()["properties"].items():
        meaning = words.get(name) or schema.get("description", "")
        row = [
            f"`{name}`",
            _takes(name, schema),
            _default(name, schema),
            f"{_sentence(meaning)} {_bound(name, schema)}",
        ]
        rows.append([*row, flags.get(name, "")] if flags else row)
    return table(head, ([cell.strip() for cell in row] for row in rows))


def _flags() -> dict[str, str]:
    from shoal.cli.flags import FLAGS

    return {flag.key: " ".join(f"`{name}`" for name in flag.names) for flag in FLAGS}


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _takes(name: str, schema: Mapping[str, Any]) -> str:
    if name in _TAKES:
        return _TAKES[name]
    plain = _plain(schema)
    if "enum" in plain:
        return ", ".join(f"`{word}`" for word in plain["enum"])
    kinds = {
        "string": "text",
        "array": "list of text",
        "number": "number",
        "integer": "whole number",
        "boolean": "`true`, `false`",
    }
    return kinds.get(plain.get("type", ""), "text")


def _plain(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The branch of `anyOf` that is not null."""
    return next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)


def _default(name: str, schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    if value in (None, [], {}):
        return ""
    if isinstance(value, dict):
        return "`1`"
    if name == "log_limit":
        return f"`{format_size(value).replace('.0 ', '')}`"
    if name == "grace":
        return f"`{format_duration(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bound(name: str, schema: Mapping[str, Any]) -> str:
    plain = _plain(schema)
    found = next((one for one in (schema, plain) if "bounds" in one), None)
    if found:
        return f"Allowed: {found['bounds'].replace('0ms', '0').replace('.0 ', ' ')}; {found['why']}."
    if name in _WHOLE:
        what, bound = _WHOLE[name]
        return f"Allowed: {bound.text()} {what}; {bound.why}."
    if "maxLength" in plain:
        return f"At most {plain['maxLength']} characters."
    return ""


# States and reasons.


def states() -> Iterator[str]:
    words = {
        State.QUEUED: "waits for a place, or for the pause before a retry",
        State.STARTING: "a place is reserved; shepherds start and join",
        State.RUNNING: "every rank has been started",
        State.STOPPING: "the outcome is known; processes are being ended",
        State.SUCCEEDED: "every rank that leads ended with 0",
        State.FAILED: "the last attempt failed",
        State.STOPPED: "a person or a limit ended it",
    }
    return table(("state", "meaning", "final"), ((f"`{s}`", words[s], "yes" if s.ended else "") for s in State))


def reasons() -> Iterator[str]:
    rows = ((f"`{r.code}`", r.fault.value, "yes" if r.retryable else "", r.advice) for r in Reason)
    return table(("reason", "whose fault", "retried", "what Shoal tells"), rows)


# Commands.


def commands() -> Iterator[str]:
    import typer

    from shoal.cli.app import app

    root: Any = typer.main.get_command(app)
    context: Any = typer.Context(root, info_name="shoal")
    for name in root.list_commands(context):
        yield from _command(f"shoal {name}", root.get_command(context, name))


def _command(name: str, command: Any) -> Iterator[str]:
    own = [one for one in command.params if not one.name.startswith("flag_")]
    yield from ("", f"### {name}", "", *_help(command.help or ""))
    if len(own) < len(command.params):
        yield from (
            "",
            "Also takes every [flag of the job file](job-file.md#keys), and what belongs to the job behind `--`.",
        )
    rows = [row for row in map(_parameter, own) if row]
    if rows:
        yield from ("", *table(("", "takes", "meaning"), rows))
    for below in getattr(command, "commands", {}).values():
        yield from _command(f"{name} {below.name}", below)


def _help(text: str) -> Iterator[str]:
    """The help as Markdown: its examples become a block."""
    words, mark, examples = text.partition("Example")
    yield words.strip().replace("\b", "")
    if mark:
        lines = [line.strip() for line in examples.partition(":")[2].splitlines()]
        yield from ("", "```sh", *filter(None, lines), "```")


def _parameter(one: Any) -> tuple[str, str, str] | None:
    if getattr(one, "hidden", False) or one.name == "help":
        return None
    if one.param_type_name == "argument":
        metavar = (one.metavar or one.name.upper()).strip("[]").replace("]…", "…")
        needed = one.required and "…" not in metavar
        return f"`{metavar}`", "", (one.help or "") + ("" if needed else " May be left out.")
    names = " ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    takes = "" if one.is_flag else f"`{one.metavar or 'TEXT'}`"
    more = " May be given several times." if one.multiple else ""
    return names, takes, f"{one.help or ''}{more}{_from_environment(one)}"


def _from_environment(one: Any) -> str:
    return f" Also from `{one.envvar}`." if isinstance(one.envvar, str) else ""


# The HTTP API.


def routes() -> Iterator[str]:
    for tag, found in _by_tag(_openapi()).items():
        yield from ("", f"### {tag.capitalize()}", "")
        yield from table(("request", "meaning", "parameters", "body", "answer"), found)


def shapes() -> Iterator[str]:
    """The bodies that the routes take, key by key."""
    schemas = _openapi()["components"]["schemas"]
    for name in ("Submission", "StopRequest", "PoolCommit", "NewUser", "TokenRequest", "WebhookRequest"):
        schema = schemas[name]
        needed = schema.get("required", [])
        rows = [
            (f"`{key}`", _kind(one), "yes" if key in needed else "", _sentence(one.get("description", "")))
            for key, one in schema["properties"].items()
        ]
        yield from ("", f"### {name}", "", *table(("key", "takes", "needed", "meaning"), rows))


def errors() -> Iterator[str]:
    from shoal.errors import ShoalError

    found = sorted(_tree(ShoalError), key=lambda kind: (kind.status, kind.code))
    rows = ((f"`{kind.code}`", kind.status, f"`{kind.__name__}`") for kind in found)
    return table(("code", "status", "in Python"), rows)


def _tree(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        if below.__module__ == "shoal.errors":
            yield below
            yield from _tree(below)


def _openapi() -> dict[str, Any]:
    from shoal.server.app import build_routes
    from shoal.server.service import Service

    return build_routes(cast(Service, SimpleNamespace(version=__version__))).openapi()


def _by_tag(api: Mapping[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for path, methods in api["paths"].items():
        for method, about in methods.items():
            row = (
                f"`{method.upper()} {path.removeprefix('/api/v1')}`",
                about.get("description") or _sentence(about["summary"].lower()),
                " ".join(f"`{one['name']}`" for one in about.get("parameters", ()) if one["in"] == "query"),
                _named(about.get("requestBody", {})),
                next((code for code in about["responses"] if code.startswith("2")), ""),
            )
            found.setdefault(about["tags"][0], []).append(row)
    return found


def _named(body: Mapping[str, Any]) -> str:
    for content in body.get("content", {}).values():
        name = _plain(content.get("schema", {})).get("$ref", "").rpartition("/")[2]
        return f"`{name}`" if name else "bytes"
    return ""


def _kind(schema: Mapping[str, Any]) -> str:
    plain = _plain(schema)
    if plain.get("type") == "array":
        return f"list of {_kind(plain.get('items', {}))}"
    if "enum" in plain:
        return ", ".join(f"`{word}`" for word in plain["enum"])
    kinds = {
        "string": "text",
        "object": "map",
        "number": "number",
        "integer": "whole number",
        "boolean": "true or false",
    }
    return kinds.get(plain.get("type", ""), plain.get("type", ""))


# Settings of the server.


def settings() -> Iterator[str]:
    from shoal.server.settings import ServerSettings

    return _settings(ServerSettings)


def isolation() -> Iterator[str]:
    from shoal.server.settings import IsolationSettings

    return _settings(IsolationSettings)


def _settings(model: type[Frozen]) -> Iterator[str]:
    rows = []
    for name, field in model.model_fields.items():
        rows.append((f"`{name}`", _set(field.default), _sentence(_SETTING_WORDS.get(name) or field.description or "")))
    return table(("key", "default", "meaning"), rows)


def _set(value: Any) -> str:
    """As one would write it into the file; nothing where nothing is set."""
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return f"`{'-'.join(map(str, value))}`"
    return "`false`" if value is False else f"`{value}`"


def sizes() -> Iterator[str]:
    from shoal.server.settings import SIZES

    rows = ((f"`{name}`", f"{size.cpu:g}", format_size(size.memory or 0), size.gpu) for name, size in SIZES.items())
    return table(("size", "cpu", "memory", "gpu"), rows)


# Strategies of the training library.


def strategies() -> Iterator[str]:
    from shoal.strategy import STRATEGIES

    rows = (
        (f"`{kind.name}`", kind.family, _sentence(kind.meaning), "yes" if kind.servers else "", _lost(kind))
        for kind in STRATEGIES.values()
    )
    return table(("name", "family", "what it does", "servers", "a lost worker"), rows)


def _lost(kind: Any) -> str:
    return "the others go on" if kind.spares_workers else "a new attempt, from the last checkpoint"


def strategy_options() -> Iterator[str]:
    from shoal.strategy import STRATEGIES

    for kind in STRATEGIES.values():
        if not kind.options:
            continue
        yield f"\n### `{kind.name}`\n"
        rows = (
            (f"`{o.name}`", f"`{o.default}`".lower() if o.default != "" else "", o.bounds(), _sentence(o.meaning))
            for o in kind.options
        )
        yield from table(("option", "default", "takes", "meaning"), rows)


# Frameworks.


def frameworks() -> Iterator[str]:
    from shoal.frameworks import FRAMEWORKS

    rows = (
        (f"`{row.name}`", f"`{pair.strategy}`", _sentence(pair.says), ", ".join(map(_part, pair.parts)))
        for row in FRAMEWORKS.values()
        if row.name != "pytorch"
        for pair in row.pairs.values()
    )
    return table(("framework", "strategy", "how", "roles"), rows)


def _part(part: Any) -> str:
    more = "" if part.most == part.count else "+"
    counts = f"{part.count}{more}" if part.count else "on request"
    return f"`{part.role}` ({counts}{', of Shoal' if part.ours else ''})"


def ends() -> Iterator[str]:
    from shoal.frameworks import FRAMEWORKS

    words = {"all": "when all of them have", "first": "when the first has", "none": ""}
    lost = {"fail": "ends the attempt", "restart": "is started again", "continue": "is done without"}
    seen = {
        (row.name, part.role, words[part.leads], lost[part.on_lost]): pair.strategy
        for row in FRAMEWORKS.values()
        if row.name != "pytorch"
        for pair in reversed(row.pairs.values())
        for part in pair.parts
    }
    rows = (
        (f"`{name}`", f"`{role}`", f"`{strategy}`", led, gone) for (name, role, led, gone), strategy in seen.items()
    )
    return table(("framework", "role", "under", "the job has ended well", "a lost one"), rows)


def refusals() -> Iterator[str]:
    from shoal.frameworks import FRAMEWORKS

    rows = ((f"`{row.name}`", _sentence(row.why_not)) for row in FRAMEWORKS.values() if row.why_not)
    return table(("framework", "other strategies are refused because"), rows)


PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "job-keys": job_keys,
    "role-keys": role_keys,
    "resource-keys": resource_keys,
    "states": states,
    "reasons": reasons,
    "commands": commands,
    "routes": routes,
    "shapes": shapes,
    "errors": errors,
    "settings": settings,
    "isolation": isolation,
    "sizes": sizes,
    "frameworks": frameworks,
    "framework-ends": ends,
    "framework-refusals": refusals,
    "strategies": strategies,
    "strategy-options": strategy_options,
}


def up_to_date(text: str) -> str:
    """The text with every generated part written anew."""

    def fill(found: re.Match[str]) -> str:
        return found[1] + "\n".join(PARTS[found[2]]()).strip() + "\n" + found[3]

    return _PART.sub(fill, text)


def main() -> int:
    stale = []
    for file in sorted(DOCS.rglob("*.md")):
        text = file.read_text(encoding="utf-8")
        fresh = up_to_date(text)
        if fresh != text:
            stale.append(file)
            if "--check" not in sys.argv[1:]:
                file.write_text(fresh, encoding="utf-8")
    for file in stale:
        print(f"{'out of date' if '--check' in sys.argv[1:] else 'written'}: {file.relative_to(DOCS.parent)}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
