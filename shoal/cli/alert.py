"""`shoal alert`: the signed webhook that hears of overruns, failures and successes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.cli.output import clock, print_facts, print_json, print_table

app = typer.Typer()
alert = typer.Typer(no_args_is_help=True)
app.add_typer(alert, name="alert", help="Send overruns, failures and successes to a webhook.")

KINDS = ("overrun", "failure", "success")
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@alert.command("set")
def alert_set(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to POST.")],
    kinds: Annotated[
        list[str] | None, typer.Option("--on", metavar="KIND", help=f"Only these: {', '.join(KINDS)}.")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            "--secret", metavar="TEXT", envvar="SHOAL_ALERT_SECRET", help="Signs each message; made if left out."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Set your webhook; each message is signed with the secret (HMAC-SHA256).

    Examples:
    shoal alert set https://example.org/hook
    shoal alert set https://example.org/hook --on failure --on overrun
    """
    from shoal.client.connect import connect

    body: dict[str, Any] = {"url": url, "secret": secret, "kinds": _words(kinds)}
    made = connect(start=False).request("PUT", "/webhook", json={key: value for key, value in body.items() if value})
    if as_json:
        print_json(made)
    else:
        _print({**made, "secret": "as you gave it"} if secret else made)


@alert.command("show")
def alert_show(as_json: Json = False) -> None:
    """Show your webhook.

    Example:
    shoal alert show
    """
    from shoal.client.connect import connect

    found = connect(start=False).request("GET", "/webhook")
    if as_json:
        print_json(found)
    else:
        _print(found)


@alert.command("rm")
def alert_remove() -> None:
    """Remove your webhook.

    Example:
    shoal alert rm
    """
    from shoal.client.connect import connect

    connect(start=False).request("DELETE", "/webhook")
    print("webhook removed")


@alert.command("test")
def alert_test(as_json: Json = False) -> None:
    """Send a test message to your webhook.

    Example:
    shoal alert test
    """
    from shoal.client.connect import connect

    answer = connect(start=False).request("POST", "/webhook/test")
    if as_json:
        print_json(answer)
    else:
        print("test message on its way; see 'shoal alert log'")


@alert.command("log")
def alert_log(
    limit: Annotated[str, typer.Option("--limit", "-l", metavar="COUNT", help="How many, newest first.")] = "50",
    as_json: Json = False,
) -> None:
    """List what was sent to your webhook, with the answers.

    Example:
    shoal alert log --limit 10
    """
    from shoal.client.connect import connect

    answer = connect(start=False).request("GET", "/webhook/deliveries", params={"limit": limit})
    found = answer["deliveries"]
    if as_json:
        print_json(found)
    else:
        columns = ("time", "kind", "job", "tries", "status", "delivered", "next try", "error")
        print_table(columns, map(_delivery, found), empty="nothing was sent yet")


def _words(kinds: list[str] | None) -> list[str]:
    return [word for text in kinds or [] for word in text.split(",") if word]


def _print(hook: dict[str, Any]) -> None:
    print_facts(
        [("url", hook.get("url")), ("on", ", ".join(hook.get("kinds") or KINDS)), ("secret", hook.get("secret"))]
    )


def _delivery(found: dict[str, Any]) -> tuple[Any, ...]:
    return (
        clock(found.get("created_at")),
        found.get("kind"),
        ((found.get("payload") or {}).get("job") or {}).get("id"),
        found.get("tries"),
        found.get("status"),
        clock(found.get("delivered_at")),
        clock(found.get("next_at")),
        found.get("error"),
    )
