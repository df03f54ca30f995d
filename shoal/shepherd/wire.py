"""HTTP/1.1 as far as a shepherd needs it: requests with a body, answers whole or as a stream, connections kept open.

Written by hand because the library's own client takes longer to import than the shepherd takes to start. Every request
of the gang's interface may be repeated, so one that failed on a kept connection is sent again on a fresh one.
Whether and when to try again after that is the business of `gang`.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import zlib
from typing import Any, Dict, List, NamedTuple, Optional

CONNECT_TIMEOUT = 5.0  # seconds
_MAX_LINE = 64 * 1024
_READ = 256 * 1024
_JSON = "application/json"


class WireError(Exception):
    """No answer, or one that is not HTTP."""


class Address(NamedTuple):
    secure: bool
    host: str
    port: int
    base: str  # path in front of everything, without a slash at its end

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Address:
    """`https://host:port/base`, with brackets around an IPv6 host; ValueError for another scheme."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https"):
        raise ValueError(f"the server's address {url!r} must begin with http:// or https://")
    authority, _, base = rest.partition("/")
    host, port = authority, ""
    if authority.startswith("["):
        host, _, after = authority[1:].partition("]")
        port = after.lstrip(":")
    elif ":" in authority:
        host, _, port = authority.rpartition(":")
    secure = scheme == "https"
    return Address(secure, host, int(port) if port else (443 if secure else 80), f"/{base}".rstrip("/"))


def plain_host(host: str) -> str:
    """The host in the form the resolver takes without loading the codec for foreign letters, which costs 2 ms."""
    return host.encode("ascii") if host.isascii() else host  # type: ignore[return-value]  # bytes do as well


class Answer:
    """One answer: status, headers, and a body to be read to its end before the connection can serve again."""

    def __init__(self, connection: _Connection, status: int, headers: Dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self._connection = connection
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._left: Optional[int] = None if self._chunked or length is None else int(length)
        if status in (204, 304):
            self._left, self._chunked = 0, False
        if self._chunked:
            self._left = 0
        self._over = False
        self._inflate = zlib.decompressobj(31) if headers.get("content-encoding") == "gzip" else None

    @property
    def reusable(self) -> bool:
        """Whether the connection can serve another request: body read, and nobody wants to hang up."""
        ends_by_close = not self._chunked and self._left is None
        return self._over and not ends_by_close and self.headers.get("connection", "").lower() != "close"

    def read(self, count: int = -1) -> bytes:
        """`count` bytes of the body (more when it is compressed), all of it without; b"" at its end.

        WireError when it breaks off.
        """
        pieces: List[bytes] = []
        size = 0
        while count < 0 or size < count:
            piece = self._piece(_READ if count < 0 else count - size)
            if not piece and self._over:
                break
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def json(self) -> Any:
        """The body as JSON; WireError when it is none."""
        body = self.read()
        try:
            return json.loads(body) if body else {}
        except ValueError as error:
            raise WireError(f"answer {self.status} is not JSON: {body[:80]!r}") from error

    def _piece(self, most: int) -> bytes:
        raw = self._raw(most)
        return self._inflate.decompress(raw) if self._inflate else raw

    def _raw(self, most: int) -> bytes:
        if self._chunked and self._left == 0 and not self._over:
            self._left = self._connection.chunk_size()
            self._over = self._left == 0
        if self._over or self._left == 0:
            self._over = True
            return b""
        data = self._connection.read(most if self._left is None else min(most, self._left))
        if not data:
            self._over = True
            if self._left is not None:
                raise WireError(f"the answer broke off {self._left} bytes before its end")
        if self._left is not None:
            self._left -= len(data)
            self._end_of_chunk()
        return data

    def _end_of_chunk(self) -> None:
        if self._left == 0:
            if self._chunked:
                self._connection.line()
            else:
                self._over = True


class _Connection:
    def __init__(self, address: Address, fingerprint: Optional[str]) -> None:
        self._socket = socket.create_connection((plain_host(address.host), address.port), CONNECT_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if address.secure:
                self._socket = _secured(self._socket, address.host, fingerprint)
            self._file = self._socket.makefile("rb")
        except BaseException:
            self._socket.close()
            raise

    def send(self, head: bytes, body: bytes, timeout: float) -> None:
        self._socket.settimeout(timeout)
        if len(body) <= _MAX_LINE:
            self._socket.sendall(head + body)
        else:
            self._socket.sendall(head)
            self._socket.sendall(body)

    def answer(self) -> Answer:
        """Reads up to the end of the headers; interim answers (100) are passed over."""
        while True:
            words = self.line().split(None, 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
                raise WireError(f"not an HTTP answer: {b' '.join(words)[:80]!r}")
            headers = self._headers()
            if int(words[1]) >= 200:
                return Answer(self, int(words[1]), headers)

    def line(self) -> bytes:
        try:
            line = self._file.readline(_MAX_LINE)
        except OSError as error:
            raise WireError(f"no answer: {error}") from error
        if not line.endswith(b"\n"):
            raise WireError("the server hung up")
        return line.rstrip(b"\r\n")

    def read(self, most: int) -> bytes:
        try:
            return self._file.read1(most)
        except OSError as error:
            raise WireError(f"the answer broke off: {error}") from error

    def chunk_size(self) -> int:
        text = self.line().partition(b";")[0]
        try:
            size = int(text, 16)
        except ValueError as error:
            raise WireError(f"not a chunk size: {text[:40]!r}") from error
        if size == 0:
            while self.line():  # trailers
                pass
        return size

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _headers(self) -> Dict[str, str]:
        headers: Dict[str, str] = {}
        while True:
            line = self.line()
            if not line:
                return headers
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()


class Wire:
    """Connections to one server, for several threads. A thread holds one only while its request is under way."""

    def __init__(self, url: str, fingerprint: Optional[str], headers: Dict[str, str]) -> None:
        self._address = parse_url(url)
        self._fingerprint = fingerprint.replace(":", "").lower() if fingerprint else None
        fixed = {"Host": self._address.authority, **headers}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: List[_Connection] = []
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = _JSON, timeout: float = 30.0) -> Reply:
        """One request, one whole answer. WireError when there is none within `timeout` seconds of silence."""
        answer = self.open(method, path, body, kind, timeout)
        try:
            return Reply(answer.status, answer.json())
        finally:
            self.release(answer)

    def open(self, method: str, path: str, body: bytes = b"", kind: str = _JSON, timeout: float = 30.0) -> Answer:
        """One request; the body of the answer is still to be read. Give it back with `release`."""
        head = f"{method} {self._address.base}{path} HTTP/1.1\r\n{self._fixed}Accept-Encoding: gzip\r\n"
        if body or method == "POST":
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        raw = f"{head}\r\n".encode("latin-1")
        while True:
            connection = self._kept()
            fresh = connection is None
            try:
                connection = connection or _Connection(self._address, self._fingerprint)
                connection.send(raw, body, timeout)
                return connection.answer()
            except (OSError, WireError) as error:
                if connection is not None:
                    connection.close()
                late = isinstance(error.__cause__ or error, socket.timeout)
                if fresh or late:
                    raise WireError(f"{method} {path}: {error}") from error

    def release(self, answer: Answer) -> None:
        """Keeps the connection for the next request, or closes it when the answer was not read to its end."""
        if answer.reusable:
            with self._lock:
                self._idle.append(answer._connection)
        else:
            answer._connection.close()

    def _kept(self) -> Optional[_Connection]:
        with self._lock:
            return self._idle.pop() if self._idle else None


class Reply(NamedTuple):
    status: int
    content: Any


def _secured(plain: socket.socket, host: str, fingerprint: Optional[str]) -> socket.socket:
    import ssl  # here, because it costs 20 ms and a local gang speaks plain HTTP

    if fingerprint is None:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate signs itself; that it is the very one we were told of says more than any chain.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    secured = context.wrap_socket(plain, server_hostname=host)
    found = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()
    if found != fingerprint:
        secured.close()
        raise WireError(f"the server shows certificate {found}, not {fingerprint}; is it another server?")
    return secured
