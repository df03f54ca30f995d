"""Ports for who will listen a little later."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from shoal._lib import ports
from shoal._lib.ports import free_ports


def test_ports_are_all_different_and_can_be_listened_at() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    with ExitStack() as ends:
        for port in found:
            ends.enter_context(socket.socket()).bind(("127.0.0.1", port))


def test_a_port_that_somebody_holds_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", [taken] * 100)
        assert free_ports(1) != [taken]


def test_an_address_that_is_not_this_machines_has_none() -> None:
    with pytest.raises(OSError, match="no 2 free ports at 192.0.2.1"):
        free_ports(2, "192.0.2.1")
