"""Reads what the ranks write, in one thread for all of them, and puts it into the spool as whole lines."""

from __future__ import annotations

import fcntl
import os
import selectors
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from shoal.shepherd import progress
from shoal.shepherd.lines import Lines
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.progress import Board
from shoal.shepherd.ship import Shipper
from shoal.shepherd.spool import Spool

_READ = 256 * 1024  # bytes
_PIPE = 1024 * 1024  # bytes the kernel may hold for us, so that a rank rarely waits
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.9 does not name
_LAST_LOOK = 16 * 1024 * 1024  # bytes read at most from a pipe that somebody keeps open
_LOOK_EVERY = 1.0  # seconds, while a line is being overwritten


class Output:
    """The output of one incarnation of a member."""

    def __init__(self, member: str, incarnation: int, handle: int, watch: Callable[[str, bytes], None]) -> None:
        self.member = member
        self.incarnation = incarnation
        self.handle = handle
        self.lines = Lines(lambda line: watch(member, line))


class Reader:
    """Sends an `eof` letter with the tail of the output when a pipe has ended. The shipper is told of what is new."""

    def __init__(self, spool: Spool, board: Board, mailbox: Mailbox, shipper: Shipper) -> None:
        self._spool = spool
        self._board = board
        self._mailbox = mailbox
        self._shipper = shipper
        self._outputs: Dict[int, Output] = {}
        self._wishes: Deque[Tuple[str, Any]] = deque()
        self._selector = selectors.DefaultSelector()
        self._ear, self._bell = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._bell, False)
        self._selector.register(self._ear, selectors.EVENT_READ)

    def add(self, member: str, incarnation: int, handle: int) -> None:
        """Reads from `handle` from now on, and closes it in the end."""
        self._wish("add", Output(member, incarnation, handle, self._watch))

    def close(self, member: str, incarnation: int) -> None:
        """Takes what is in the pipe and ends it, though somebody may still hold its other end."""
        self._wish("close", (member, incarnation))

    def run(self) -> None:
        while True:
            moving = any(output.lines.moving for output in self._outputs.values())
            for key, _ in self._selector.select(_LOOK_EVERY if moving else None):
                if key.fd == self._ear:
                    self._obey()
                elif key.fd in self._outputs:
                    self._read(self._outputs[key.fd])
            if moving:
                for output in self._outputs.values():
                    self._keep(output, output.lines.tick(time.monotonic()))

    def _wish(self, kind: str, what: Any) -> None:
        self._wishes.append((kind, what))
        try:
            os.write(self._bell, b".")
        except BlockingIOError:
            pass  # it is ringing already

    def _obey(self) -> None:
        os.read(self._ear, 4096)
        while self._wishes:
            kind, what = self._wishes.popleft()
            if kind == "add":
                self._open(what)
            else:
                for output in list(self._outputs.values()):
                    if (output.member, output.incarnation) == what:
                        self._drain(output)

    def _open(self, output: Output) -> None:
        os.set_blocking(output.handle, False)
        try:
            fcntl.fcntl(output.handle, _SET_PIPE_SIZE, _PIPE)
        except OSError:
            pass  # above this user's limit: the usual 64 KiB do as well
        self._outputs[output.handle] = output
        self._selector.register(output.handle, selectors.EVENT_READ)

    def _read(self, output: Output) -> Optional[int]:
        """Bytes read; None when there is nothing, 0 when the pipe has ended."""
        try:
            piece = os.read(output.handle, _READ)
        except BlockingIOError:
            return None
        if piece:
            self._keep(output, output.lines.feed(piece, time.monotonic()))
        else:
            self._finish(output)
        return len(piece)

    def _drain(self, output: Output) -> None:
        left = _LAST_LOOK
        while left > 0:
            count = self._read(output)
            if count == 0:
                return
            if count is None:
                break
            left -= count
        self._finish(output)

    def _finish(self, output: Output) -> None:
        self._keep(output, output.lines.finish())
        self._selector.unregister(output.handle)
        del self._outputs[output.handle]
        os.close(output.handle)
        self._mailbox.put("eof", member=output.member, incarnation=output.incarnation, tail=output.lines.tail)

    def _watch(self, member: str, line: bytes) -> None:
        facts = progress.parse(line)
        if facts and self._board.post(member, facts):
            self._shipper.progress_came()

    def _keep(self, output: Output, lines: bytes) -> None:
        if lines:
            self._spool[output.member].write(lines)
            self._shipper.lines_came()
