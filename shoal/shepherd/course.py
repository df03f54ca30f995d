"""How far one stream of the spool has got to the server, and how its offsets here and there belong together.

They are the same until the spool has to drop a part the server never got. Then a line that says so takes the place of
the part, and everything behind it has a lower offset on the server than here. The pairs of offsets behind each such
line are kept in a file, written before the line is sent, so that a successor can go on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Optional, Tuple

from shoal._lib import frames
from shoal._lib.quantities import format_size
from shoal.shepherd.spool import Stream

Piece = Tuple[int, bytes]  # offset on the server, whole frames


class Course:
    """For one thread, the shipper. `next_piece` goes forward; `settle` says what the server really has.

    After a request without an answer nobody knows what arrived, and the spool may drop it any moment: the server must
    be asked where its stream ends, and `settle` told, before `next_piece` is called again.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._path = stream.folder.with_name(f"{stream.name}.pairs")
        self._pairs = _load(self._path)  # (offset in the spool, offset on the server), both growing
        self._at = 0  # in the spool: what has been sent
        self._settled = 0  # in the spool: what the server has

    @property
    def level(self) -> bool:
        """Whether the server has everything."""
        return self._settled >= self.stream.end

    @property
    def backlog(self) -> int:
        """Bytes that were not sent yet."""
        return max(0, self.stream.end - self._at)

    @property
    def settled_at(self) -> int:
        """Where the server's stream ends, as far as we know."""
        return self._to_server(self._settled)

    def next_piece(self, limit: int) -> Optional[Piece]:
        """What to send next, at most `limit` bytes unless one frame is larger; None when there is nothing."""
        real, data = self.stream.read(self._at, limit)
        if not data:
            return None
        server = self._to_server(self._at)
        if real > self._at:
            data = self._bridge(real, server, data)
            self._at = real
        else:
            self._at = real + len(data)
        return server, data

    def settle(self, server_end: int) -> bool:
        """The server's stream ends there: what lies before may go, what lies behind is sent (again). False: no news."""
        before = self._settled
        spool = self._to_spool(server_end)
        if spool > self.stream.end:  # it has more than we do: the end of our file was torn off by a crash
            spool = self.stream.end
            self._remember(spool, server_end, after=server_end - 1)
        self._settled = self._at = spool
        self.stream.drop_before(spool)
        return spool != before

    def _bridge(self, real: int, server: int, data: bytes) -> bytes:
        at_us, _ = next(frames.decode(data))
        lost = format_size(real - self._at)
        line = f"… {lost} dropped here: it came faster than the server took it, and the spool of this node was full …\n"
        bridge = frames.pack(at_us, line.encode())
        self._remember(real, server + len(bridge), after=server)
        return bridge

    def _remember(self, spool: int, server: int, after: int) -> None:
        self._pairs = [pair for pair in self._pairs if pair[1] <= after]
        self._pairs.append((spool, server))
        draft = self._path.with_suffix(".draft")
        try:
            draft.write_text(json.dumps(self._pairs))
            draft.replace(self._path)
        except OSError as error:  # a full disk: we know the pairs, only a successor would not
            self.stream.journal.note(f"{self._path.name} cannot be written: {error}")

    def _to_server(self, spool: int) -> int:
        here, there = [pair for pair in [(0, 0), *self._pairs] if pair[0] <= spool][-1]
        return there + spool - here

    def _to_spool(self, server: int) -> int:
        here, there = [pair for pair in [(0, 0), *self._pairs] if pair[1] <= server][-1]
        return here + server - there


def _load(path: Path) -> List[Tuple[int, int]]:
    if not path.exists():
        return []
    return [(int(here), int(there)) for here, there in json.loads(path.read_text())]
