"""HTTP as uvicorn speaks it, with a bound on what a stranger can make it remember before anybody has looked at it.

The parser keeps a header until it is whole, however long it gets, and the door sees a request only after its last
header. Bodies are bounded by the door.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 1 << 20  # bytes of address and headers; a cursor into the logs of ten thousand ranks has a tenth of it


class BoundedHttp(HttpToolsProtocol):
    """Hangs up on whoever sends more than MOST_HEAD bytes that are no body."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self._unread = 0  # bytes since the request, or the last piece of its body, began

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The address and the headers are over {MOST_HEAD} bytes.")

    def on_message_begin(self) -> None:
        self._unread = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()
