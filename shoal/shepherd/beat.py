"""Joins the gang, then asks the server again and again for directives: long polls, at the pace the server sets."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Dict

from shoal.errors import GangOver
from shoal.shepherd.gang import Gang
from shoal.shepherd.mail import Mailbox

_BEAT = 10.0  # seconds, for a server that does not say
_LEAST_PAUSE = 0.2  # seconds between two polls that brought nothing


class Beater:
    """Runs in a thread of its own until the gang is over."""

    def __init__(self, gang: Gang, ports: Dict[str, Dict[str, int]], mailbox: Mailbox) -> None:
        self._gang = gang
        self._ports = ports
        self._mailbox = mailbox

    def run(self) -> None:
        try:
            answer = self._gang.again(lambda: self._gang.join(self._ports))
            beat = wait = _seconds(answer.get("beat"), _BEAT)
            while True:
                begun = time.monotonic()
                answer = self._gang.again(partial(self._gang.beat, wait, {}))
                beat = _seconds(answer.get("beat"), beat)
                wait = _seconds(answer.get("wait"), beat)
                if not answer.get("directives"):
                    time.sleep(max(0.0, begun + max(_LEAST_PAUSE, beat - wait) - time.monotonic()))
        except GangOver as over:
            self._mailbox.put("over", why=over.message)


def _seconds(told: Any, otherwise: float) -> float:
    return float(told) if isinstance(told, (int, float)) and told >= 0 else otherwise
