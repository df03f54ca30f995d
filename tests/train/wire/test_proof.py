"""Both ends prove the secret; strangers are read for 200 bytes at most."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import NotAllowed
from shoal.train.wire import proof
from shoal.train.wire.frames import Ended, Garbled


def both(host: Callable[[socket.socket], Any], caller: Callable[[socket.socket], Any]) -> tuple[Any, Any]:
    """What each side returned or raised."""
    left, right = socket.socketpair()
    results: list[Any] = [None, None]

    def run(index: int, act: Callable[[socket.socket], Any], sock: socket.socket) -> None:
        with sock:
            try:
                results[index] = act(sock)
            except Exception as error:
                results[index] = error

    threads = [
        threading.Thread(target=run, args=(index, act, sock))
        for index, (act, sock) in enumerate([(host, left), (caller, right)])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results[0], results[1]


def saying(words: bytes) -> Callable[[socket.socket], None]:
    """A stranger that hears the greeting and says this."""

    def say(sock: socket.socket) -> None:
        sock.recv(36, socket.MSG_WAITALL)
        sock.sendall(words)

    return say


def test_those_who_know_the_secret_know_each_other() -> None:
    host, caller = both(
        lambda sock: proof.challenge(sock, b"secret"), lambda sock: proof.answer(sock, b"secret", "ps", "worker-3")
    )
    assert host == ("ps", "worker-3")
    assert caller is None


def test_a_caller_with_a_wrong_secret_is_told_so() -> None:
    host, caller = both(
        lambda sock: proof.challenge(sock, b"secret"), lambda sock: proof.answer(sock, b"guess", "ps", "worker-3")
    )
    assert isinstance(host, NotAllowed)
    assert isinstance(caller, NotAllowed)
    assert "turned us away" in caller.message


def test_a_host_that_does_not_know_the_secret_is_not_believed() -> None:
    def impostor(sock: socket.socket) -> None:
        sock.sendall(proof.GREETING + os.urandom(32))
        sock.recv(200)
        sock.sendall(os.urandom(32))

    _, caller = both(impostor, lambda sock: proof.answer(sock, b"secret", "ps", "worker-0"))
    assert isinstance(caller, NotAllowed)
    assert "does not know the secret" in caller.message


def test_a_proof_sent_back_proves_nothing() -> None:
    """A caller that lets the host answer its own challenge: the roles are in the proof."""

    def mirror(sock: socket.socket) -> bytes:
        nonce = sock.recv(36)[4:]
        sock.sendall(proof.GREETING + bytes((2, 1)) + nonce + os.urandom(32) + b"psx")
        return sock.recv(32)

    host, said = both(lambda sock: proof.challenge(sock, b"secret"), mirror)
    assert isinstance(host, NotAllowed)
    assert said == proof.REFUSED


def test_a_recorded_proof_cannot_be_played_again() -> None:
    record: list[bytes] = []

    def caller(sock: socket.socket) -> None:
        left, right = socket.socketpair()
        with left, right:
            thread = threading.Thread(target=lambda: proof.challenge(left, b"secret"))
            thread.start()
            greeting = right.recv(36)
            other, inner = socket.socketpair()
            with other, inner:
                second = threading.Thread(target=lambda: proof.answer(inner, b"secret", "ps", "w"))
                second.start()
                other.sendall(greeting)
                record.append(other.recv(200))
                right.sendall(record[0])
                other.sendall(right.recv(32))
                second.join()
            thread.join()
        sock.recv(36)
        sock.sendall(record[0])

    host, _ = both(lambda sock: proof.challenge(sock, b"secret"), caller)
    assert isinstance(host, NotAllowed)


def test_a_stranger_is_dropped_at_the_first_words() -> None:
    host, _ = both(lambda sock: proof.challenge(sock, b"secret"), saying(b"GET / HTTP/1.1\r\n" * 9))
    assert isinstance(host, Garbled)


def test_a_stranger_with_long_names_is_dropped_unread() -> None:
    head = proof.GREETING + bytes((255, 255)) + bytes(64)
    host, _ = both(lambda sock: proof.challenge(sock, b"secret"), saying(head + bytes(510)))
    assert isinstance(host, Garbled)


def test_a_silent_stranger_is_dropped_in_time() -> None:
    gone = threading.Event()

    def challenge(sock: socket.socket) -> Any:
        try:
            return proof.challenge(sock, b"secret", patience=0.05)
        finally:
            gone.set()

    host, _ = both(challenge, lambda sock: gone.wait(30))
    assert isinstance(host, TimeoutError)


def test_a_trickling_stranger_gets_no_more_time() -> None:
    def trickle(sock: socket.socket) -> None:
        sock.settimeout(30)
        with pytest.raises(OSError):
            while True:
                sock.sendall(b"S")
                threading.Event().wait(0.01)

    host, _ = both(lambda sock: proof.challenge(sock, b"secret", patience=0.2), trickle)
    assert isinstance(host, TimeoutError | Garbled)


def test_a_host_that_hangs_up_is_an_end() -> None:
    _, caller = both(lambda sock: None, lambda sock: proof.answer(sock, b"secret", "ps", "worker-0"))
    assert isinstance(caller, Ended | ConnectionResetError | BrokenPipeError)


def test_an_empty_secret_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(ValueError, match="SHOAL_SECRET"):
            proof.challenge(left, b"")
        with pytest.raises(ValueError, match="SHOAL_SECRET"):
            proof.answer(right, b"", "ps", "worker-0")
        with pytest.raises(ValueError, match="limit"):
            proof.answer(right, b"secret", "ps", "w" * 200)
