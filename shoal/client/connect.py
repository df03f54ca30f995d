"""Which server to speak to: the one that was named, the one that runs here, or the embedded one, started now."""

from __future__ import annotations

import os
import sys
import threading
import time
from subprocess import DEVNULL, Popen

from shoal._lib.clock import Deadline
from shoal.client.http import Api
from shoal.errors import NotSignedIn, ServerAway
from shoal.home import Home, ServerNote

URL = "SHOAL_URL"
TOKEN = "SHOAL_TOKEN"
FINGERPRINT = "SHOAL_FINGERPRINT"
START_SECONDS = 20.0
ALREADY_RUNNING = 3  # the exit code of a second server on the same home

_current: tuple[tuple[str | None, ...], Api] | None = None


def connect(
    url: str | None = None, token: str | None = None, start: bool = True, *, fingerprint: str | None = None
) -> Api:
    """The server named by the arguments, else by SHOAL_URL and SHOAL_TOKEN, else the one of this SHOAL_HOME.

    With `start`, the embedded server is started when none answers there; otherwise ServerAway.
    """
    token = token or os.environ.get(TOKEN) or None
    url = url or os.environ.get(URL) or None
    if url is not None:
        return _named(url, token, fingerprint or os.environ.get(FINGERPRINT) or None)
    return here(token, start)


def here(token: str | None = None, start: bool = True) -> Api:
    """The server of this SHOAL_HOME, whatever SHOAL_URL says."""
    home = Home.here()
    try:
        api = _running(home, token)
    except OSError as wrong:
        raise _bad_home(home, wrong) from wrong
    if api is not None:
        return api
    if not start:
        raise ServerAway(f"no server runs on {home.root}; start it with 'shoal server start', or set SHOAL_URL")
    return _start(home, token)


def current() -> Api:
    """The connection that functions use when none is given: kept while nothing around changes and it answers."""
    global _current
    around = (os.environ.get(URL), os.environ.get(TOKEN), str(Home.here().root))
    if _current is not None and _current[0] == around and (around[0] or _current[1].healthy()):
        return _current[1]
    _current = (around, connect())
    return _current[1]


def note_of(home: Home) -> ServerNote | None:
    """The note of the home's last server; None without one, also for one of another version, which is replaced."""
    try:
        return home.read_note()
    except (ValueError, TypeError):
        return None


def start_server(home: Home) -> Popen[bytes]:
    """Spawns the embedded server, detached: it survives this process and its terminal. Returns at once."""
    try:
        home.create()
        descriptor = os.open(home.server_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as wrong:
        raise _bad_home(home, wrong) from wrong
    try:
        # In its home and not in the user's folder: -m puts the current folder on the path, where a json.py may lie.
        process = Popen(
            [sys.executable, "-m", "shoal.server", "--home", str(home.root)],
            stdin=DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=home.root,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    # Someone must collect its exit status, or it would stay a zombie that looks alive for as long as we live.
    threading.Thread(target=process.wait, daemon=True, name="shoal-server-exit").start()
    return process


def _named(url: str, token: str | None, fingerprint: str | None) -> Api:
    home = Home.here()
    note = note_of(home)
    if note is not None and note.url.rstrip("/") == url.rstrip("/"):
        token, fingerprint = token or home.read_token(), fingerprint or note.fingerprint
    if token is None:
        raise NotSignedIn(f"no token for {url}; set SHOAL_TOKEN, or get one with 'shoal token new'", url=url)
    return Api(url, token, fingerprint)


def _running(home: Home, token: str | None) -> Api | None:
    """The server the note speaks of, if it answers."""
    note = note_of(home)
    token = token or home.read_token()
    if note is None or token is None:
        return None
    api = Api(note.url, token, note.fingerprint)
    if api.healthy():
        return api
    api.close()
    return None


def _start(home: Home, token: str | None) -> Api:
    said = home.log_size()
    process = start_server(home)
    deadline = Deadline(START_SECONDS)
    while not deadline.over():
        api = _running(home, token)
        if api is not None:
            _withdraw(home, process)
            return api
        code = process.poll()
        if code is not None and code != ALREADY_RUNNING:
            raise ServerAway(
                f"the embedded server ended with code {code} while starting; {_last_words(home, said)}", exit_code=code
            )
        time.sleep(0.02)
    raise ServerAway(f"the embedded server did not answer within {START_SECONDS:g} s; {_last_words(home, said)}")


def _withdraw(home: Home, ours: Popen[bytes]) -> None:
    """Ends the server we started when another was first: still on its way, it could come up once that one stops."""
    note = note_of(home)
    if note is not None and note.pid != ours.pid:
        ours.terminate()


def _bad_home(home: Home, wrong: OSError) -> ServerAway:
    return ServerAway(
        f"SHOAL_HOME {home.root} cannot be used ({wrong.strerror}: {wrong.filename}); set SHOAL_HOME to a folder you"
        " may write to"
    )


def _last_words(home: Home, said: int, lines: int = 15) -> str:
    """What was written behind the first `said` bytes: an earlier server's words explain nothing."""
    try:
        with home.server_log.open("rb") as log:
            log.seek(max(said, log.seek(0, os.SEEK_END) - 16_384))
            text = log.read().decode("utf-8", "replace")
    except OSError as unreadable:
        return f"its log {home.server_log} cannot be read: {unreadable.strerror}"
    return f"the last lines of {home.server_log}:\n" + "\n".join(text.splitlines()[-lines:])
