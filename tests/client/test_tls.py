"""A pinned certificate is checked however the bytes travel: over a socket of ours, or through a proxy's TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from shoal.client.tls import context_for
from shoal.errors import ServerAway
from shoal.server.tls import self_signed


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Both ends in memory, as a client speaks through a proxy that itself speaks TLS."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="shoal.example")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done = {ours: False, theirs: False}
    for _ in range(10):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done[side] = True
            except ssl.SSLWantReadError:
                pass
    assert all(done.values())


def test_a_handshake_without_a_socket_checks_the_pin_too(tmp_path: Path) -> None:
    made = self_signed(tmp_path, "shoal.example")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.cert, made.key)
    shake_hands(context_for("https://shoal.example", made.fingerprint), server)
    with pytest.raises(ServerAway, match="pinned"):
        shake_hands(context_for("https://shoal.example", "0" * 64), server)
