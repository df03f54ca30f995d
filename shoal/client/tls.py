"""How a server proves who it is: by the system's authorities, or by the fingerprint of its own certificate."""

from __future__ import annotations

import socket
import ssl
from hashlib import sha256
from typing import Any

from shoal.errors import ServerAway


class PinnedContext(ssl.SSLContext):
    """Trusts exactly one certificate. The check comes before the request, so a token never reaches another."""

    fingerprint: str

    def wrap_socket(self, sock: socket.socket, *args: Any, **keys: Any) -> ssl.SSLSocket:
        wrapped = super().wrap_socket(sock, *args, **keys)
        shown = sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
        if shown != self.fingerprint:
            wrapped.close()
            raise ServerAway(
                f"the server shows the certificate {shown}, not {self.fingerprint}, which was pinned; if its owner made"
                " a new one, take over the new fingerprint, otherwise something stands between",
                shown=shown,
            )
        return wrapped


def context_for(url: str, fingerprint: str | None) -> ssl.SSLContext:
    """The context for one server; for plain http one that is cheap to make and never used."""
    if fingerprint:
        pinned = PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        pinned.check_hostname = False
        pinned.verify_mode = ssl.CERT_NONE
        pinned.fingerprint = fingerprint.replace(":", "").lower()
        return pinned
    return ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
