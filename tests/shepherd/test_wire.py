"""The hand-written HTTP client against servers that answer in every form it must understand."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from shoal.shepherd.wire import Wire, WireError, parse_url


class Script:
    """A server that plays back raw answers, one list per connection, and keeps what it was asked."""

    def __init__(self, connections: list[list[bytes]], context: ssl.SSLContext | None = None) -> None:
        self.heard: list[bytes] = []
        self.accepted = 0
        self._connections = connections
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for answers in self._connections:
            try:
                client, _ = self._listener.accept()
                client = self._context.wrap_socket(client, server_side=True) if self._context else client
            except OSError:
                continue
            self.accepted += 1
            with client:
                for answer in answers:
                    self.heard.append(_request(client))
                    client.sendall(answer)

    def close(self) -> None:
        self._listener.close()


def _request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += client.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    made: list[Script] = []

    def make(*connections: list[bytes], context: ssl.SSLContext | None = None) -> Script:
        made.append(Script(list(connections), context))
        return made[-1]

    yield make
    for each in made:
        each.close()


OK = b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"fine": 1}'


def wire(server: Script, fingerprint: str | None = None) -> Wire:
    scheme = "https" if server._context else "http"
    return Wire(f"{scheme}://127.0.0.1:{server.port}", fingerprint, {"Authorization": "Gang x"})


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://h:81", (False, "h", 81, "")),
        ("https://h", (True, "h", 443, "")),
        ("http://h/", (False, "h", 80, "")),
        ("http://[::1]:8000/shoal/", (False, "::1", 8000, "/shoal")),
    ],
)
def test_addresses_are_understood(url: str, found: tuple[object, ...]) -> None:
    assert tuple(parse_url(url)) == found


def test_another_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="ftp://h"):
        parse_url("ftp://h")


def test_a_connection_serves_many_requests(script: Callable[..., Script]) -> None:
    server = script([OK, OK, OK])
    line = wire(server)
    for _ in range(3):
        assert line.ask("POST", "/x", b"{}") == (200, {"fine": 1})
    assert server.accepted == 1
    assert b"POST /x HTTP/1.1\r\n" in server.heard[0]
    assert b"\r\nAuthorization: Gang x\r\n" in server.heard[0]
    assert server.heard[0].endswith(b"Content-Length: 2\r\n\r\n{}")


def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(script: Callable[..., Script]) -> None:
    server = script([OK], [OK])
    line = wire(server)
    assert line.ask("GET", "/x").status == 200
    assert line.ask("GET", "/x").status == 200
    assert server.accepted == 2


def test_a_server_that_wants_to_hang_up_is_obeyed(script: Callable[..., Script]) -> None:
    server = script([OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)], [OK])
    line = wire(server)
    assert line.ask("GET", "/x").status == line.ask("GET", "/x").status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"fi\r\n7;x=y\r\nne": 1}\r\n0\r\nT: z\r\n\r\n',
        b'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"fine": 1}',
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
        % (len(gzip.compress(b'{"fine": 1}')), gzip.compress(b'{"fine": 1}')),
    ],
    ids=["chunked", "interim", "gzip"],
)
def test_answers_in_every_form_are_read_and_leave_the_connection_usable(
    script: Callable[..., Script], answer: bytes
) -> None:
    server = script([answer, OK])
    line = wire(server)
    assert line.ask("GET", "/x") == (200, {"fine": 1})
    assert line.ask("GET", "/x") == (200, {"fine": 1})
    assert server.accepted == 1


def test_a_body_that_ends_with_its_connection_is_read(script: Callable[..., Script]) -> None:
    server = script([b'HTTP/1.1 200 OK\r\n\r\n{"fine": 1}'])
    assert wire(server).ask("GET", "/x") == (200, {"fine": 1})


def test_an_answer_without_a_body_is_an_empty_one(script: Callable[..., Script]) -> None:
    server = script([b"HTTP/1.1 204 No Content\r\n\r\n", OK])
    line = wire(server)
    assert line.ask("POST", "/x", b"{}") == (204, {})
    assert line.ask("GET", "/x").status == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"SSH-2.0-OpenSSH_9\r\n",
    ],
    ids=["nothing", "cut", "chunk", "html", "ssh"],
)
def test_what_is_no_answer_is_an_error(script: Callable[..., Script], answer: bytes) -> None:
    with pytest.raises(WireError):
        wire(script([answer])).ask("GET", "/x")


def test_silence_is_an_error_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = Wire(f"http://127.0.0.1:{silent.getsockname()[1]}", None, {})
        with pytest.raises(WireError, match="timed out"):
            line.ask("GET", "/x", timeout=0.05)


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(WireError, match="refused"):
        Wire(f"http://127.0.0.1:{port}", None, {}).ask("GET", "/x")


def test_a_long_body_comes_in_pieces(script: Callable[..., Script]) -> None:
    body = bytes(range(256)) * 4000
    server = script([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)])
    line = wire(server)
    answer = line.open("GET", "/tar")
    pieces = []
    while piece := answer.read(100_000):
        pieces.append(piece)
    assert b"".join(pieces) == body
    assert {len(piece) for piece in pieces[:-1]} == {100_000}


def test_a_certificate_is_pinned_by_its_fingerprint(script: Callable[..., Script], tmp_path: Path) -> None:
    context, fingerprint = self_signed(tmp_path)
    told = ":".join(fingerprint[at : at + 2] for at in range(0, 64, 2)).upper()
    assert wire(script([OK], context=context), told).ask("GET", "/x") == (200, {"fine": 1})


def test_another_certificate_is_refused(script: Callable[..., Script], tmp_path: Path) -> None:
    context, _ = self_signed(tmp_path)
    with pytest.raises(WireError, match="is it another server"):
        wire(script([OK], context=context), "0" * 64).ask("GET", "/x")


def test_without_a_fingerprint_a_self_signed_certificate_is_refused(
    script: Callable[..., Script], tmp_path: Path
) -> None:
    context, _ = self_signed(tmp_path)
    with pytest.raises(WireError, match="CERTIFICATE_VERIFY_FAILED"):
        wire(script([OK], context=context)).ask("GET", "/x")


def self_signed(folder: Path) -> tuple[ssl.SSLContext, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    pem += key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "pem").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pem")
    return context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
