"""What is kept of a server elsewhere: snapshots, replicas handed back."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shoal._lib.ports import free_ports
from shoal.train.ps.place import Place
from shoal.train.ps.serve import ParameterService
from shoal.train.wire.host import Host
from tests.train.ps.by_hand import Hand, all_equal, layout_of, place_of, serving
from tests.train.ps.test_serve import wait_until


def places(tmp_path: Path, strategy: str, servers: int, workers: int = 1) -> list[Place]:
    """As a roster would give them: every server knows where the others listen."""
    ports = free_ports(servers)
    made = [place_of(tmp_path, strategy, workers, index, servers) for index in range(servers)]
    peers = tuple(replace(peer, port=port) for peer, port in zip(made[0].servers, ports, strict=True))
    return [replace(place, port=port, servers=peers) for place, port in zip(made, ports, strict=True)]


class Gang:
    """One worker and some servers, each with a folder of its own."""

    def __init__(self, stack: ExitStack, made: list[Place], count: int = 3000) -> None:
        self.layout = layout_of(count, len(made))
        self.running: list[tuple[Host, ParameterService]] = [stack.enter_context(serving(place)) for place in made]
        self.hands = [Hand(place.shared, 0, self.layout, remote=True, server=place.index) for place in made]
        for hand, place in zip(self.hands, made, strict=True):
            hand.hello(place.port)

    def push(self, value: float) -> None:
        for hand in self.hands:
            hand.push(value)

    def values(self) -> torch.Tensor:
        """Of the parameters in their own order, whatever the layout."""
        out = torch.empty(self.layout.params[0].numel)
        for hand in self.hands:
            read = hand.read()
            for piece in hand.part.pieces:
                begin = piece.offset - hand.part.offset
                out[piece.begin : piece.begin + piece.count] = read[begin : begin + piece.count]
        return out


def test_a_lost_machine_comes_back_from_its_snapshot_and_says_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = places(tmp_path, "ps-async:snapshot=3600", 1)
    with ExitStack() as stack:
        gang = Gang(stack, made)
        gang.push(1.0)
        gang.push(1.0)
        gang.running[0][1]._copies._snapshots.take()
        kept = made[0].snapshots / "server-0.safetensors"
        shutil.copy(kept, tmp_path / "kept")
        gang.push(1.0)
        gang.values()
    shutil.copy(tmp_path / "kept", kept)  # what it writes at its own end is not written by a machine that is lost
    shutil.rmtree(made[0].shared)
    made[0].shared.mkdir()
    with serving(made[0]) as (host, _):
        hand = gang.hands[0]
        told = hand.hello(host.port)
        assert (told["version"], told["last_seq"], told["lost"], told["initialised"]) == (2, 2, 1, True)
        assert hand.status()["restored"] == {"from": "the snapshot", "version": 2, "lost": 1}
        assert "versions lost: 1" in caplog.text
        hand.push(5.0)
        assert all_equal(hand.read(), gang.layout, 0, -7.0)
        hand.close()


def test_a_snapshot_of_another_attempt_is_not_used(tmp_path: Path) -> None:
    made = places(tmp_path, "ps-async:snapshot=3600", 1)
    with ExitStack() as stack:
        gang = Gang(stack, made)
        gang.push(1.0)
    assert (made[0].snapshots / "server-0.safetensors").exists(), "a server that ends writes one more"
    shutil.rmtree(made[0].shared)
    made[0].shared.mkdir()
    other = replace(made[0], secret=b"of the next attempt")
    assert ParameterService(other)._copies._snapshots.find("0.0") is None
    assert ParameterService(made[0])._copies._snapshots.find("0.0") is not None


def test_a_lost_machine_comes_back_from_its_replica(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = places(tmp_path, "ps-async:replicas=1", 2)
    with ExitStack() as stack:
        stack.enter_context(serving(made[1]))
        with ExitStack() as first:
            own = first.enter_context(serving(made[0]))
            layout = layout_of(3000, 2)
            hands = [Hand(place.shared, 0, layout, remote=True, server=place.index) for place in made]
            for hand, place in zip(hands, made, strict=True):
                hand.hello(place.port)
            for _ in range(3):
                for hand in hands:
                    hand.push(1.0)
            wait_until(lambda: hands[0].status()["replica"] == {"at": "server-1", "version": 3}, "no copy arrives")
            own[1]._copies.close()  # from now on nothing is copied, as if the machine died before it could be
            hands[0].push(1.0)
            hands[0].read()
        shutil.rmtree(made[0].shared)
        made[0].shared.mkdir()
        with serving(made[0]):
            told = hands[0].hello(made[0].port)
            assert (told["version"], told["last_seq"], told["lost"]) == (3, 3, 1)
            assert hands[0].status()["restored"]["from"] == "the replica"
            hands[0].send().wait()  # the push whose update was lost is not known to have been taken
            assert all_equal(hands[0].read(), layout, 0, -4.0)
            wait_until(lambda: hands[0].status()["replica"]["version"] == 4, "no copy arrives")
            for hand in hands:
                hand.close()
    assert "comes back from the replica at version 3" in caplog.text


def test_a_replica_outlives_the_process_that_keeps_it(tmp_path: Path) -> None:
    made = places(tmp_path, "ps-async:replicas=1", 2)
    layout = layout_of(3000, 2)
    hand = Hand(made[0].shared, 0, layout, remote=True)
    with ExitStack() as stack:
        with ExitStack() as keeper:
            keeper.enter_context(serving(made[1]))
            with serving(made[0]):
                hand.hello(made[0].port)
                hand.push(2.0)
                wait_until(lambda: hand.status()["replica"]["version"] == 1, "no copy arrives")
        stack.enter_context(serving(made[1]))
        shutil.rmtree(made[0].shared)
        made[0].shared.mkdir()
        with serving(made[0]):
            assert hand.hello(made[0].port)["version"] == 1
            assert all_equal(hand.read(), layout, 0, -2.0)
            hand.close()


def test_a_server_whose_neighbour_is_away_serves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.train.ps.replica.PATIENCE", 0.1)
    made = places(tmp_path, "ps-async:replicas=1", 2)
    with serving(made[0]) as (host, _):
        hand = Hand(made[0].shared, 0, layout_of(3000, 2), remote=True)
        hand.hello(host.port)
        hand.push(2.0)
        assert hand.status()["replica"]["version"] == -1
        hand.close()
