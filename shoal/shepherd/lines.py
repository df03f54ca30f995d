"""From the pieces a pipe gives to whole lines: keeps what is unfinished, and lets an overwritten line count once.

A carriage return starts a line over, as progress bars do; only its last state is worth keeping. While a line keeps
being overwritten, its state is let out now and then so that a follower sees it move. Pure: time is an argument.
"""

from __future__ import annotations

from typing import Callable, List, Optional

STATE_EVERY = 5.0  # seconds between two states of a line that is being overwritten
LONGEST_LINE = 64 * 1024  # bytes; a longer one is let out in parts
_TAIL = 4096  # bytes
_PROGRESS = b"progress "


class Lines:
    """One output. `watch` sees the lines that begin with `progress ` and the states of overwritten lines."""

    def __init__(self, watch: Callable[[bytes], None]) -> None:
        self._watch = watch
        self._held: List[bytes] = []  # the unfinished line, or its last state
        self._held_size = 0
        self._returned = False  # the unfinished line holds a carriage return
        self._overwritten = False  # … and text after it: not just the first half of a \r\n
        self._state = b""
        self._let_out: Optional[bytes] = None  # the state that was let out last
        self._let_out_at = 0.0
        self._tail = b""

    @property
    def moving(self) -> bool:
        """Whether a state waits to be let out by `tick`."""
        return self._overwritten and self._state != self._let_out and bool(self._state.strip())

    @property
    def tail(self) -> str:
        """The last text that came out, at most 4 KiB."""
        # A character that the cut went through is left out rather than shown as a question mark.
        start = next((at for at in range(min(4, len(self._tail))) if self._tail[at] & 0xC0 != 0x80), 0)
        return self._tail[start:].decode("utf-8", "replace")

    def feed(self, piece: bytes, now: float) -> bytes:
        """Takes what was read; returns the lines that are now whole, possibly none."""
        if self._returned or b"\r" in piece:
            return self._out(self._feed_returned(piece, now))
        return self._out(self._feed_plain(piece))

    def tick(self, now: float) -> bytes:
        """The state of an overwritten line, when one is due."""
        return self._out(self._due_state(now))

    def finish(self) -> bytes:
        """The output has ended: the unfinished line is whole now."""
        rest = self._take_held()
        final = self._close(rest) if rest else None
        return self._out(final + b"\n" if final else b"")

    def _feed_plain(self, piece: bytes) -> bytes:
        end = piece.rfind(b"\n") + 1
        if not end:
            return self._hold(piece)
        lines = self._take_held() + piece[:end] if self._held else piece[:end]
        if lines.startswith(_PROGRESS) or b"\n" + _PROGRESS in lines:
            for line in lines.split(b"\n"):
                self._look(line)
        return lines + self._hold(piece[end:])

    def _feed_returned(self, piece: bytes, now: float) -> bytes:
        *whole, rest = (self._take_held() + piece).split(b"\n")
        out: List[bytes] = []
        for line in whole:
            final = self._close(line)
            if final is not None:
                out += (final, b"\n")
        out.append(self._hold_returned(rest, now) if self._overwritten or b"\r" in rest else self._hold(rest))
        out.append(self._due_state(now))
        return b"".join(out)

    def _close(self, line: bytes) -> Optional[bytes]:
        """What remains of a finished line; None when its last state is blank or was let out already."""
        text = line.rstrip(b"\r")
        start = text.rfind(b"\r") + 1
        overwritten, before = self._overwritten or start > 0, self._let_out
        self._returned = self._overwritten = False
        self._let_out = None
        if not overwritten:
            self._look(text)
            return text
        final = text[start:]
        self._watch(final)
        return None if not final.strip() or final == before else final

    def _hold_returned(self, rest: bytes, now: float) -> bytes:
        text = rest.rstrip(b"\r")
        start = text.rfind(b"\r") + 1
        self._returned = True
        if not start and not self._overwritten:
            return self._hold(rest)  # so far it may be the first half of a \r\n
        if not self._overwritten:
            self._overwritten, self._let_out_at = True, now
        self._state = text[start : start + LONGEST_LINE]
        self._held, self._held_size = [self._state + rest[len(text) : len(text) + 1]], len(self._state)
        self._watch(self._state)
        return b""

    def _due_state(self, now: float) -> bytes:
        if not self.moving or now - self._let_out_at < STATE_EVERY:
            return b""
        self._let_out, self._let_out_at = self._state, now
        return self._state + b"\n"

    def _look(self, line: bytes) -> None:
        if line.startswith(_PROGRESS):
            self._watch(line)

    def _hold(self, piece: bytes) -> bytes:
        """Keeps the beginning of a line; returns the parts of it that have grown too long to keep."""
        if piece:
            self._held.append(piece)
            self._held_size += len(piece)
        if self._held_size < LONGEST_LINE:
            return b""
        rest = self._take_held()
        out: List[bytes] = []
        while len(rest) >= LONGEST_LINE:
            cut = _between_characters(rest, LONGEST_LINE - 1)
            out += (rest[:cut], b"\n")
            rest = rest[cut:]
        self._held, self._held_size = [rest], len(rest)
        return b"".join(out)

    def _take_held(self) -> bytes:
        held = b"".join(self._held)
        self._held, self._held_size = [], 0
        return held

    def _out(self, lines: bytes) -> bytes:
        if lines:
            self._tail = lines[-_TAIL:] if len(lines) >= _TAIL else (self._tail + lines)[-_TAIL:]
        return lines


def _between_characters(text: bytes, at: int) -> int:
    """The last place up to `at` that does not cut a UTF-8 character, which has at most three bytes after its first."""
    return next((at - back for back in range(4) if text[at - back] & 0xC0 != 0x80), at)
