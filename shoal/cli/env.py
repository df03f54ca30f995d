"""`shoal env`: what jobs run in, by name, built ahead, taken away, frozen, made into an image."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal._lib.quantities import format_duration, format_size
from shoal.cli.output import age, clock, note, print_facts, print_json, print_table
from shoal.errors import BadSpec

app = typer.Typer()
env = typer.Typer(no_args_is_help=True)
app.add_typer(env, name="env", help="See, build and freeze what jobs run in.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but what the build prints.")]
Named = Annotated[str, typer.Argument(metavar="NAME", help="A preset, or a built one by its key or name.")]
Buildable = Annotated[str, typer.Argument(metavar="NAME", help="A preset, requirements.txt, pyproject.toml or a lock.")]
SHOWN = 8  # characters of a key


@env.command("ls")
def env_list(as_json: Json = False) -> None:
    """List the presets, and what is built on the server's machine.

    Examples:
    shoal env ls
    shoal env ls --json
    """
    from shoal.client import environments
    from shoal.client.connect import connect

    found = environments.ls(connect(start=False))
    if as_json:
        print_json(found)
        return
    print_table(("preset", "flavour", "python", "kept until", "about"), map(_preset, found["presets"]))
    print()
    columns = ("key", "name", "python", "size", "built", "last used", "in use")
    print_table(columns, map(_built, found["built"]), empty=f"nothing is built yet in {found['folder']}")
    total = sum(one["size"] for one in found["built"])
    note(f"{format_size(total)} of {format_size(found['room'])} in {found['folder']}" if found["built"] else "")


@env.command("show")
def env_show(name: Named, as_json: Json = False) -> None:
    """Show a preset, or a built environment with its packages.

    Examples:
    shoal env show pytorch-2.13
    shoal env show 3f9a2c11 --json
    """
    from shoal.client import environments
    from shoal.client.connect import connect

    found = environments.show(name, connect(start=False))
    if as_json:
        print_json(found)
        return
    print_facts(_facts(found))
    if found["kind"] == "built":
        print()
        print_table(("package", "version"), found["packages"].items(), empty="no packages")


@env.command("build")
def env_build(name: Buildable, quiet: Quiet = False) -> None:
    """Build an environment before a job needs it, and follow the build.

    Examples:
    shoal env build pytorch-2.13
    shoal env build requirements.txt
    """
    from shoal.cli.follow import follow_to_end
    from shoal.cli.transfer import transfer_bar
    from shoal.client import environments
    from shoal.client.connect import connect

    api = connect()
    with transfer_bar("sending", quiet) as progress:
        job = environments.build(name, api, progress)
    raise typer.Exit(follow_to_end(job, quiet))


@env.command("rm")
def env_remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Built ones by key or name.")],
) -> None:
    """Remove built environments that no job runs in.

    Example:
    shoal env rm 3f9a2c11
    """
    from shoal.client import environments
    from shoal.client.connect import connect

    api = connect(start=False)
    for name in names:
        gone = environments.rm(name, api)
        print(f"removed {gone['name']} ({gone['key'][:SHOWN]}), {format_size(gone['size'])}")


@env.command("freeze")
def env_freeze(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there instead of printing.")
    ] = None,
) -> None:
    """Write the packages a job really had as a requirements file.

    Examples:
    shoal env freeze digits
    shoal env freeze 7f3k -o requirements.lock
    """
    from shoal.client import environments
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    _write(environments.freeze(find(job, connect(start=False))), output)


@env.command("image")
def env_image(
    name: Buildable,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", metavar="TAG", help="What to call it: REGISTRY/NAME:VERSION.")
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", metavar="IMAGE", help="What to build on; a slim Python when left out.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the Containerfile there.")
    ] = None,
    push: Annotated[bool, typer.Option("--push", help="Push it to the registry its tag names.")] = False,
    auth_file: Annotated[
        Path | None,
        typer.Option("--auth-file", metavar="FILE", help="The registry's credentials, as login writes them."),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="User of the registry.")] = None,
    password_env: Annotated[
        str | None, typer.Option("--password-env", metavar="VARIABLE", help="The variable that holds his password.")
    ] = None,
) -> None:
    """Make a container image of an environment, with podman or docker.

    Without --tag only the Containerfile is written or printed.

    Examples:
    shoal env image pytorch-2.13 --tag registry.example.com/team/torch:1 --push --auth-file auth.json
    shoal env image requirements.txt -o Containerfile
    """
    from shoal.client import images

    path = Path(name.partition("[")[0])
    folder = path.absolute().parent if path.is_file() else Path.cwd()
    made = images.recipe(path.name + name[len(str(path)) :] if path.is_file() else name, base, folder)
    credentials = images.Credentials(auth_file, user, password_env)
    credentials.check()
    if tag is None:
        if push:
            raise BadSpec("--push needs --tag, which names the registry, such as registry.example.com/team/train:1")
        _write(made.containerfile, output)
        return
    images.build(made, tag, note, output)
    if push:
        images.push(tag, credentials, note)
    print(f"image://{tag}")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)
        print(output)


def _preset(preset: dict[str, Any]) -> tuple[Any, ...]:
    pythons = preset["pythons"]
    return (preset["name"], preset["flavour"], f"{pythons[0]}–{pythons[-1]}", preset["until"], preset["about"])


def _built(built: dict[str, Any]) -> tuple[Any, ...]:
    return (
        built["key"][:SHOWN],
        built["name"],
        built["python"],
        format_size(built["size"]),
        clock(built["built_at"]),
        f"{age(built['used_at'])} ago",
        built["users"] or None,
    )


def _facts(found: dict[str, Any]) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [("name", found["name"]), ("requirements", ", ".join(found["requirements"]))]
    if found["kind"] == "preset":
        return [
            *facts,
            ("flavour", found["flavour"]),
            ("pythons", ", ".join(found["pythons"])),
            ("kept until", found["until"]),
            ("about", found["about"]),
            ("built", ", ".join(one["key"][:SHOWN] for one in found["built"]) or "not here yet"),
        ]
    return [
        *facts,
        ("key", found["key"]),
        ("python", found["python"]),
        ("size", format_size(found["size"])),
        ("built", f"{clock(found['built_at'])} in {format_duration(found['seconds'])}"),
        ("last used", clock(found["used_at"])),
        ("in use", found["users"] or None),
    ]
