"""The gang's interface on the server, one method per call, and the rule for a server that does not answer.

No answer, or an answer nobody expects: again, after a growing pause, for ever; the user's processes go on meanwhile.
Only a server that says the gang is over (`gang_over`), or refuses its secret for a whole minute, ends the shepherd.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from shoal._lib import backoff
from shoal.contract import AUTH_SCHEME, PROTOCOL, Environment, Process, Task
from shoal.errors import GangOver, NotSignedIn, ServerAway
from shoal.shepherd.journal import Journal
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.wire import Answer, Wire, WireError

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 5.0
REFUSED_FOR = 60.0  # seconds of 401 before it is believed
_LOGS_TIMEOUT = 60.0
_JSON = "application/json"
_POLL_SLACK = 15.0  # seconds a held beat may be late


class Refused(Exception):
    """The server has understood and will never give it: asking again is of no use."""


class Launch(NamedTuple):
    """What to start on this node, and what must be there first."""

    processes: List[Process]
    code: bool
    inputs: List[str]
    environment: Optional[Environment] = None


class Gang:
    """All calls are safe from any thread. They raise ServerAway (once) or GangOver; `again` repeats the former."""

    def __init__(self, task: Task, mailbox: Mailbox, journal: Journal) -> None:
        self._task = task
        self._mailbox = mailbox
        self._journal = journal
        self._server = (task.server, task.fingerprint)
        self._wire = self._connect(task.server, task.fingerprint)
        self._base = f"/api/v1/gangs/{task.key}"
        self._lock = threading.Lock()
        self._seen = 0
        self._refused_since: Optional[float] = None

    def join(self, ports: Dict[str, Dict[str, int]]) -> Dict[str, Any]:
        task = self._task
        about = {"node": task.node, "host": socket.gethostname(), "address": task.host, "ports": ports}
        return self._post("/join", {**about, "pid": os.getpid(), "version": str(PROTOCOL)})

    def beat(self, wait: float, progress: Dict[str, Any]) -> Dict[str, Any]:
        """Directives in the answer go to the main loop; the answer says whether there were any."""
        asked = {"node": self._task.node, "seen": self._seen, "wait": wait, "ranks": progress}
        answer = self._post("/beat", asked, timeout=wait + _POLL_SLACK)
        with self._expecting("/beat"):
            self._take_directives(answer)
        return answer

    def launch(self) -> Launch:
        answer = self._call("GET", f"/launch?node={_quoted(self._task.node)}")
        with self._expecting("/launch"):
            processes = [_process(raw) for raw in answer["processes"]]
            runs_in = answer.get("environment")
            return Launch(
                processes,
                bool(answer.get("code")),
                [str(name) for name in answer.get("inputs") or ()],
                Environment.from_dict(runs_in) if runs_in else None,
            )

    def roster(self) -> Dict[str, Any]:
        return self._call("GET", "/roster")

    def open_tar(self, what: str) -> Answer:
        """`code` or `inputs/<name>` as a stream; close it with `close_tar`. Refused when there is no such thing."""
        path = f"{self._base}/{'/'.join(map(_quoted, what.split('/')))}"
        try:
            answer = self._wire.open("GET", path, timeout=_LOGS_TIMEOUT)
            if answer.status != 200:
                try:
                    self._refusal(answer.status, answer.json())
                finally:
                    self._wire.release(answer)
        except WireError as error:
            raise ServerAway(str(error)) from error
        return answer

    def close_tar(self, answer: Answer) -> None:
        self._wire.release(answer)

    def ranks(self, events: List[Dict[str, Any]]) -> int:
        """The number of the last event the server has."""
        answer = self._post("/ranks", {"node": self._task.node, "seen": self._seen, "events": events})
        with self._expecting("/ranks"):
            self._take_directives(answer)
            return int(answer["acked"])

    def record(self, record: Dict[str, Any]) -> None:
        """What the ranks run in. A server that does not want it is not asked again."""
        try:
            body = json.dumps({"node": self._task.node, "record": record}).encode()
            status, content = self._wire.ask("POST", f"{self._base}/record", body, _JSON, 30.0)
        except WireError as error:
            raise ServerAway(str(error)) from error
        try:
            self._refusal(status, content)
        except Refused as refused:
            self._journal.note(f"the server does not want the record: {refused}")

    def logs(self, body: bytes) -> Dict[str, int]:
        """Where each stream ends on the server."""
        answer = self._call("POST", "/logs", body, "application/octet-stream", _LOGS_TIMEOUT)
        with self._expecting("/logs"):
            return {str(stream): int(end) for stream, end in answer["offsets"].items()}

    def done(self) -> None:
        self._post("/done", {"node": self._task.node})

    def again(self, call: Callable[[], Any]) -> Any:
        """Repeats a call until the server answers it."""
        tries = 0
        while True:
            try:
                return call()
            except ServerAway:
                time.sleep(pause(tries))
                tries += 1

    def _post(self, path: str, body: Dict[str, Any], timeout: float = 30.0) -> Dict[str, Any]:
        return self._call("POST", path, json.dumps(body).encode(), _JSON, timeout)

    def _call(
        self, method: str, path: str, body: bytes = b"", kind: str = _JSON, timeout: float = 30.0
    ) -> Dict[str, Any]:
        try:
            status, content = self._wire.ask(method, self._base + path, body, kind, timeout)
        except WireError as error:
            self._journal.note(f"no answer: {error}")
            self._look_for_server()
            raise ServerAway(str(error)) from error
        return self._result(status, content)

    def _connect(self, server: str, fingerprint: Optional[str]) -> Wire:
        return Wire(server, fingerprint, {"Authorization": f"{AUTH_SCHEME} {self._task.secret}"})

    def _look_for_server(self) -> None:
        """A server that was away may be back at another port, or with another certificate; its note says so."""
        if self._task.note is None:
            return
        try:
            with open(self._task.note) as file:
                note = json.load(file)
            found = (str(note["url"]), note.get("fingerprint"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._journal.note(f"the server's note cannot be read: {error!r}")
            return
        if found != self._server:
            self._journal.note(f"the server is at {found[0]} now, with certificate {found[1]}")
            self._server, self._wire = found, self._connect(*found)

    def _result(self, status: int, content: Any) -> Dict[str, Any]:
        if 200 <= status < 300 and isinstance(content, dict):
            self._refused_since = None
            return content
        code = content.get("code") if isinstance(content, dict) else None
        if status in (404, 410) and code == GangOver.code:
            raise GangOver(f"the server says that gang {self._task.key} is over")
        if status == 401:
            self._count_refusal()
        self._journal.note(f"the server answers {status} {code or ''}: {str(content)[:300]}")
        raise ServerAway(f"the server answers {status}")

    def _refusal(self, status: int, content: Any) -> None:
        """A problem of Shoal's own about what was asked for; everything else may pass, and is asked again."""
        code = content.get("code") if isinstance(content, dict) else None
        if 400 <= status < 500 and isinstance(code, str) and code not in (GangOver.code, NotSignedIn.code):
            raise Refused(str(content.get("detail") or code))
        self._result(status, content)

    @contextmanager
    def _expecting(self, path: str) -> Iterator[None]:
        """An answer that lacks what it must have is no answer: something in between spoke, or a server half started."""
        try:
            yield
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._journal.note(f"the answer to {path} makes no sense: {error!r}")
            raise ServerAway(f"the answer to {path} makes no sense") from error

    def _count_refusal(self) -> None:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since >= REFUSED_FOR:
            raise GangOver(f"the server has refused the secret of gang {self._task.key} for {REFUSED_FOR:.0f} s")

    def _take_directives(self, answer: Dict[str, Any]) -> None:
        """Each directive once and in order, whichever answer brought it."""
        with self._lock:
            for directive in sorted(answer.get("directives") or (), key=lambda one: one["seq"]):
                if directive["seq"] > self._seen:
                    self._seen = directive["seq"]
                    self._mailbox.put(directive["kind"], **(directive.get("data") or {}))


def pause(tries: int) -> float:
    """Seconds to wait after that many failures in a row."""
    return backoff.delay(tries, FIRST_PAUSE, LONGEST_PAUSE)


def _process(raw: Dict[str, Any]) -> Process:
    """Lenient when reading: a newer server may say more than we know."""
    known = {field.name for field in fields(Process)}
    return Process(**{name: value for name, value in raw.items() if name in known})


def _quoted(text: str) -> str:
    """Percent-encoding, without the 10 ms that urllib takes to import."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in text.encode())
