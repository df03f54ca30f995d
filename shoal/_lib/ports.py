"""Ports for who will listen a little later."""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress
from typing import List

PORTS = range(20_000, 32_000)  # Linux gives those above to calls that go out: one of them may be taken meanwhile
TRIES = 50


def free_ports(count: int, host: str = "127.0.0.1") -> List[int]:
    """So many that nobody listens at now, all different; OSError when there are not so many."""
    found: List[int] = []
    for port in [*random.SystemRandom().sample(PORTS, TRIES + count), *[0] * count]:
        if len(found) == count:
            return found
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, suppress(OSError):
            probe.bind((host, port))
            found.append(int(probe.getsockname()[1]))
    if len(found) < count:
        raise OSError(errno.EADDRINUSE, f"this machine has no {count} free ports at {host}: look at what listens there")
    return found
