"""`shoal user` and `shoal token`: who may use the server, and the keys they use it with."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from shoal._lib.quantities import parse_duration
from shoal.cli.output import age, clock, note, print_json, print_table
from shoal.errors import BadSpec, ServerAway
from shoal.home import Home

if TYPE_CHECKING:
    from shoal.client.http import Api

app = typer.Typer()
user = typer.Typer(no_args_is_help=True)
token = typer.Typer(no_args_is_help=True)
app.add_typer(user, name="user", help="Add, list and remove users (administrators).")
app.add_typer(token, name="token", help="Make, list and revoke tokens.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Stdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin instead of asking.")]


@user.command("add")
def user_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, '.', '-' and '_'.")],
    admin: Annotated[bool, typer.Option("--admin", help="May see and touch everything.")] = False,
    password_stdin: Stdin = False,
    as_json: Json = False,
) -> None:
    """Add a user; asks for the password twice.

    Examples:
    shoal user add lin
    pass show lin | shoal user add lin --password-stdin
    """
    from shoal.client.connect import connect

    api = connect(start=False)
    password = read_password(password_stdin, twice=True)
    made = api.request("POST", "/users", json={"name": name, "password": password, "admin": admin})
    if as_json:
        print_json(made)
    else:
        print(f"{name} added; signs in with 'shoal token new --user {name}'")


@user.command("ls")
def user_list(as_json: Json = False) -> None:
    """List the users.

    Example:
    shoal user ls
    """
    from shoal.client.connect import connect

    found = connect(start=False).request("GET", "/users")["users"]
    if as_json:
        print_json(found)
    else:
        rows = ((one["name"], "yes" if one.get("admin") else None, clock(one.get("created_at"))) for one in found)
        print_table(("name", "admin", "since"), rows)


@user.command("rm")
def user_remove(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a user; the user's tokens die with it.

    Example:
    shoal user rm lin --yes
    """
    from shoal.client.connect import connect

    api = connect(start=False)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Remove {name} with all tokens?", abort=True)
    api.request("DELETE", f"/users/{quote(name, safe='')}")
    print(f"{name} removed")


@token.command("new")
def token_new(
    label: Annotated[str | None, typer.Option("--label", metavar="TEXT", help="What it is for.")] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="Valid for this long: 12h, 30d.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="Sign in as this user with a password.")
    ] = None,
    whose: Annotated[
        str | None, typer.Option("--for", metavar="NAME", help="For another user (administrators).")
    ] = None,
    password_stdin: Stdin = False,
    as_json: Json = False,
) -> None:
    """Make a token and print it, once; it is shown never again.

    Examples:
    shoal token new --label laptop --expires 30d
    SHOAL_TOKEN=$(shoal token new --user lin --password-stdin < password)
    """
    from shoal.client.connect import connect

    body: dict[str, Any] = {"label": label, "expires_in": None if expires is None else _seconds(expires)}
    if name is not None and whose is not None:
        raise BadSpec("--user signs in with a password, --for needs an administrator's token; give one of them")
    if whose is not None:
        body["user"] = whose
    if name is not None:
        body |= {"user": name, "password": read_password(password_stdin, twice=False)}
    api = connect(start=False) if name is None else _unsigned()
    made = api.request("POST", "/tokens", json={key: value for key, value in body.items() if value is not None})
    if as_json:
        print_json(made)
        return
    print(made["token"])
    note(f"token {made['id']}: keep it now, it is not shown again; use it as SHOAL_TOKEN")


@token.command("ls")
def token_list(as_json: Json = False) -> None:
    """List your tokens, without their secrets.

    Example:
    shoal token ls
    """
    from shoal.client.connect import connect

    found = connect(start=False).request("GET", "/tokens")["tokens"]
    if as_json:
        print_json(found)
    else:
        print_table(("id", "user", "label", "age", "expires"), map(_token_row, found), empty="no tokens")


@token.command("revoke")
def token_revoke(ident: Annotated[str, typer.Argument(metavar="ID", help="As 'shoal token ls' shows it.")]) -> None:
    """Revoke a token: it stops working at once.

    Example:
    shoal token revoke 4kd82mq1xz
    """
    from shoal.client.connect import connect

    connect(start=False).request("DELETE", f"/tokens/{quote(ident, safe='')}")
    print(f"{ident} revoked")


def _unsigned() -> Api:
    """The server without a token, for signing in with a password."""
    from shoal.client.connect import FINGERPRINT, URL
    from shoal.client.http import Api

    note = Home.here().read_note()
    url = os.environ.get(URL) or (note.url if note else None)
    if url is None:
        raise ServerAway("no server runs here; start it with 'shoal server start', or set SHOAL_URL")
    own = note.fingerprint if note and note.url == url else None
    return Api(url, None, os.environ.get(FINGERPRINT) or own)


def read_password(from_stdin: bool, twice: bool) -> str:
    """A password from stdin, or typed unseen, twice when it is new."""
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=twice)
    else:
        raise BadSpec("a password is needed and nobody is there to ask; give it with --password-stdin")
    if not password:
        raise BadSpec("the password is empty; write it on the first line of stdin")
    return password


def _token_row(found: dict[str, Any]) -> tuple[Any, ...]:
    expires = found.get("expires_at")
    state = "expired" if expires and expires < time.time() else clock(expires) or "never"
    return (found["id"], found.get("user"), found.get("label"), age(found.get("created_at")), state)


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as wrong:
        raise BadSpec(f"--expires: {wrong}") from None
    return seconds
