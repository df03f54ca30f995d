"""Both ends prove the attempt's secret before either believes a word: HMAC-SHA256 over both nonces, the role, and who
asks for which service.

    host    → caller   "SHP1" + nonce (32)
    caller  → host     "SHP1" + length of service, of name (1 + 1) + nonce (32) + proof (32) + service + name
    host    → caller   proof (32), or 32 zeros for a refusal

The host reads at most 200 bytes of a stranger and waits at most 5 s for them. A proof is bound to its role, so it
cannot be sent back, and to both nonces, so it cannot be sent again. What follows is not encrypted: the peers of an
attempt share a trusted network or one host.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from contextlib import suppress

from shoal.errors import NotAllowed
from shoal.train.wire.frames import Ended, Garbled

GREETING = b"SHP1"
NONCE = 32
PROOF = 32
REFUSED = bytes(PROOF)
PATIENCE = 5.0  # seconds a stranger may take in all
NAMES_LIMIT = 200 - len(GREETING) - 2 - NONCE - PROOF  # bytes of service and name together


def challenge(sock: socket.socket, secret: bytes, patience: float = PATIENCE) -> tuple[str, str]:
    """The host's side: who calls, and for which service. Raises NotAllowed, Garbled, Ended or TimeoutError; the caller
    was told of a refusal."""
    _must_be_secret(secret)
    until = time.monotonic() + patience
    mine = secrets.token_bytes(NONCE)
    sock.settimeout(patience)
    sock.sendall(GREETING + mine)
    head = _take(sock, len(GREETING) + 2 + NONCE + PROOF, until)
    if head[:4] != GREETING:
        raise Garbled("a stranger that does not know the greeting")
    lengths, theirs, proof = head[4:6], head[6 : 6 + NONCE], head[6 + NONCE :]
    if sum(lengths) > NAMES_LIMIT:
        raise Garbled(f"a stranger with names of {sum(lengths)} bytes; the limit is {NAMES_LIMIT}")
    names = _take(sock, sum(lengths), until)
    service, name = names[: lengths[0]], names[lengths[0] :]
    if not hmac.compare_digest(proof, _proof(secret, b"caller", mine, theirs, service, name)):
        with suppress(OSError):
            sock.sendall(REFUSED)
        raise NotAllowed("a caller does not know the secret of this attempt and was turned away")
    sock.sendall(_proof(secret, b"host", mine, theirs, service, name))
    return service.decode("utf-8", "replace"), name.decode("utf-8", "replace")


def answer(sock: socket.socket, secret: bytes, service: str, name: str, patience: float = PATIENCE) -> None:
    """The caller's side. NotAllowed when either side's proof is wrong; Ended, Garbled or TimeoutError otherwise."""
    _must_be_secret(secret)
    asked, me = service.encode(), name.encode()
    if len(asked) + len(me) > NAMES_LIMIT:
        raise ValueError(f"service and name have {len(asked) + len(me)} bytes; the limit is {NAMES_LIMIT}")
    until = time.monotonic() + patience
    greeting = _take(sock, len(GREETING) + NONCE, until)
    if greeting[:4] != GREETING:
        raise Garbled("who listens there is no peer of this job: it does not greet")
    theirs, mine = greeting[4:], secrets.token_bytes(NONCE)
    proof = _proof(secret, b"caller", theirs, mine, asked, me)
    sock.sendall(GREETING + bytes((len(asked), len(me))) + mine + proof + asked + me)
    said = _take(sock, PROOF, until)
    if said == REFUSED:
        raise NotAllowed("the peer turned us away: its secret is another attempt's; is an old server still running?")
    if not hmac.compare_digest(said, _proof(secret, b"host", theirs, mine, asked, me)):
        raise NotAllowed("who listens there does not know the secret of this attempt; nothing was told to it")


def _proof(secret: bytes, role: bytes, host: bytes, caller: bytes, service: bytes, name: bytes) -> bytes:
    text = b"".join(len(part).to_bytes(2, "big") + part for part in (role, host, caller, service, name))
    return hmac.new(secret, text, "sha256").digest()


def _must_be_secret(secret: bytes) -> None:
    if not secret:
        raise ValueError("a proof needs a secret; SHOAL_SECRET is empty")


def _take(sock: socket.socket, size: int, until: float) -> bytes:
    """Exactly so many bytes, none of what follows them. One byte a second does not stretch the time."""
    got = bytearray()
    while len(got) < size:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the peer took too long to prove itself")
        sock.settimeout(left)
        piece = sock.recv(size - len(got))
        if not piece:
            raise Ended("the peer left before it had proved itself")
        got += piece
    return bytes(got)
