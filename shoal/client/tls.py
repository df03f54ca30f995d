"""How a server proves who it is: by the system's authorities, or by the fingerprint of its own certificate."""

from __future__ import annotations

import ssl
from hashlib import sha256

from shoal.errors import ServerAway


class PinnedContext(ssl.SSLContext):
    """Trusts exactly one certificate. The check ends the handshake, so a token never reaches another."""

    fingerprint: str

    def check(self, shown: bytes | None) -> None:
        found = sha256(shown or b"").hexdigest()
        if found != self.fingerprint:
            raise ServerAway(
                f"the server shows the certificate {found}, not {self.fingerprint}, which was pinned; if its owner made"
                " a new one, take over the new fingerprint, otherwise something stands between",
                shown=found,
            )


class _PinnedSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        assert isinstance(self.context, PinnedContext)
        try:
            self.context.check(self.getpeercert(binary_form=True))
        except ServerAway:
            self.close()
            raise


class _PinnedObject(ssl.SSLObject):
    """What speaks TLS without a socket of its own: to a server behind a proxy that itself speaks TLS."""

    def do_handshake(self) -> None:
        super().do_handshake()
        assert isinstance(self.context, PinnedContext)
        self.context.check(self.getpeercert(binary_form=True))


PinnedContext.sslsocket_class = _PinnedSocket
PinnedContext.sslobject_class = _PinnedObject


def context_for(url: str, fingerprint: str | None) -> ssl.SSLContext:
    """The context for one server; for plain http one that is cheap to make and never used."""
    if fingerprint:
        pinned = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        pinned.check_hostname = False
        pinned.verify_mode = ssl.CERT_NONE
        pinned.fingerprint = fingerprint.replace(":", "").lower()
        return pinned
    return ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
