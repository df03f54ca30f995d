"""Servers as processes: killed between and during pushes, orphaned, ended; workers by hand push on through it all."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shoal import contract
from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.ps.layout import Layout
from shoal.train.world import PORT
from tests.train.ps.by_hand import Hand, all_equal, layout_of
from tests.train.support import Running, open_world

pytestmark = pytest.mark.real

SOON = 60.0
WAITING = """
import os, sys, time
sys.path.insert(0, {repository!r})
from shoal.train.wire.link import Link
link = Link.open("127.0.0.1", {port}, {secret!r}, service="ps", me="worker-1")
link.ask({hello!r})
print("here", flush=True)
time.sleep(600)
"""


@contextmanager
def servers(strategy: str, count: int = 1, workers: int = 2, spares: int = 1, start: bool = True) -> Iterator[Running]:
    """Server processes of a gang whose workers are this test."""
    with open_world("", workers, count, strategy) as world:
        for index in range(count):
            world.commands[f"server-{index}"] += ["--spares", str(spares)]
        for index in range(count if start else 0):
            world.start(f"server-{index}")
        for index in range(count if start else 0):
            serving(world, index)
        yield world


def serving(world: Running, index: int = 0, times: int = 1) -> int:
    """The process that serves, once it does for the n-th time."""
    found = wait_for(lambda: re.findall(r"process (\d+) serves at", world.said(f"server-{index}", "err")), times, world)
    return int(found[-1])


def wait_for(look: Callable[[], list[str]], times: int, world: Running) -> list[str]:
    end = time.monotonic() + SOON
    while len(found := look()) < times:
        assert time.monotonic() < end, world.result().told()
        time.sleep(0.02)
    return found


def hand_of(world: Running, rank: int, layout: Layout, remote: bool = False, server: int = 0) -> Hand:
    variables = world.variables[f"server-{server}"]
    hand = Hand(Path(variables[contract.SHARED]), rank, layout, remote, server=server)
    hand.secret = variables[contract.SECRET].encode()
    return hand


def port_of(world: Running, index: int = 0) -> int:
    return world.roster.find(f"server-{index}").ports[PORT]


def push_through(hand: Hand, port: int, value: float) -> None:
    """One push, exactly once, whatever becomes of the server meanwhile."""
    hand.lay(value)
    hand.seq += 1
    hand.clock += 1
    while True:
        try:
            hand.send().wait()
            return
        except PeerLost:
            while True:
                with suppress(PeerLost, WaitedTooLong):
                    told = hand.hello(port)
                    break
            if told["last_seq"] >= hand.seq:
                return


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_killed_server_is_replaced_by_its_spare_and_nothing_is_lost() -> None:
    with servers("ps-async") as world:
        layout, port = layout_of(200_000), port_of(world)
        hands = [hand_of(world, 0, layout), hand_of(world, 1, layout, remote=True)]
        for hand in hands:
            hand.hello(port)
            for _ in range(3):
                hand.push(1.0)
        first = serving(world)
        spare = int(world.wait_for("server-0", r"spare (\d+) is warm", SOON, "err").group(1))
        begin = time.monotonic()
        os.kill(first, signal.SIGKILL)
        for hand in hands:
            push_through(hand, port, 2.0)
        print(f"served again after {(time.monotonic() - begin) * 1000:.0f} ms (both workers, with a push each)")
        assert serving(world, times=2) == spare
        for hand in hands:
            assert all_equal(hand.read(), layout, 0, -10.0)
            assert hand.version == 8
            hand.close()
        assert "was killed by SIGKILL; a warm spare" in world.said("server-0", "err")


@pytest.mark.parametrize(("strategy", "kills"), [("ps-async", 2), ("ps-sync", 1)])
def test_pushes_count_once_though_servers_are_killed_in_the_middle_of_them(strategy: str, kills: int) -> None:
    rounds = 40
    with servers(strategy) as world:
        layout, port = layout_of(1_000_000, chunk_bytes=1 << 16), port_of(world)
        hands = [hand_of(world, 0, layout), hand_of(world, 1, layout, remote=True)]
        done = [0, 0]

        def work(rank: int) -> None:
            for step in range(rounds):
                if strategy == "ps-sync":
                    hands[rank].read()
                push_through(hands[rank], port, float(step % 5 + rank))
                done[rank] = step + 1

        for hand in hands:
            hand.hello(port)
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(work, rank) for rank in range(2)]
            for kill in range(kills):
                world.wait_for("server-0", r"(spare \d+ is warm[\s\S]*){" + str(kill + 1) + "}", SOON, "err")
                target = serving(world, times=kill + 1)
                reached = min(done) + 3
                while min(done) < min(reached, rounds):
                    time.sleep(0.001)
                os.kill(target, signal.SIGKILL)
            for one in running:
                one.result(SOON)
        total = sum(step % 5 + rank for step in range(rounds) for rank in range(2))
        expected = -float(total) if strategy == "ps-async" else -total / 2
        assert all_equal(hands[0].read(), layout, 0, expected)
        assert hands[0].version == (2 * rounds if strategy == "ps-async" else rounds)
        for hand in hands:
            hand.close()


def test_a_killed_worker_is_noticed_and_the_others_go_on() -> None:
    layout = layout_of(1000)
    with servers("ps-ssp:staleness=1", spares=0) as world:
        port = port_of(world)
        hand, other = hand_of(world, 0, layout), hand_of(world, 1, layout)
        hand.hello(port)
        hello = {
            "kind": "hello", "space": "0.0", "layout": layout.to_json(), "applier": "step", "remote": False,
            "slot": str(other.path), "recipe": {"name": "SGD", "groups": [{"lr": 1.0}]},
        }  # fmt: skip
        secret = world.variables["server-0"][contract.SECRET].encode()
        text = WAITING.format(repository=str(Path.cwd()), port=port, secret=secret, hello=hello)
        (world.folder / "script.py").write_text(text)
        world.start("worker-1")
        world.wait_for("worker-1", "here")
        hand.push(1.0)
        blocked = hand.begin(1.0)
        watching = hand_of(world, 2, layout, remote=True)
        watching.open(port)
        while not watching.status()["waits"]:
            time.sleep(0.005)
        begin = time.monotonic()
        world.kill("worker-1")
        assert blocked.wait().meta["waited_for"] == ["worker-1"]
        print(f"noticed, and the other set free, after {(time.monotonic() - begin) * 1000:.0f} ms")
        assert hand.push(1.0).meta["version"] == 3
        assert hand.status()["members"] == [0]
        hand.close()
        watching.close()


def test_a_spare_that_dies_is_replaced_and_sigterm_ends_everything_in_order() -> None:
    with servers("ps-async") as world:
        child = serving(world)
        first = int(world.wait_for("server-0", r"spare (\d+) is warm", SOON, "err").group(1))
        os.kill(first, signal.SIGKILL)
        world.wait_for("server-0", rf"spare {first} was killed by SIGKILL; another", SOON, "err")
        spare = int(world.wait_for("server-0", r"is warm[\s\S]*spare (\d+) is warm", SOON, "err").group(1))
        hand = hand_of(world, 0, layout_of(100))
        hand.hello(port_of(world))
        hand.push(1.0)
        world.signal("server-0", signal.SIGTERM)
        assert world.processes["server-0"].wait(SOON) == 0
        assert not alive(child)
        assert not alive(spare)
        with pytest.raises(PeerLost):
            hand.push(1.0)
        assert "Traceback" not in world.said("server-0", "err")


def test_a_server_whose_parent_is_killed_leaves_nobody_behind_and_can_be_started_again() -> None:
    layout = layout_of(5000)
    with servers("ps-async", spares=0) as world:
        port, child = port_of(world), serving(world)
        hand = hand_of(world, 0, layout)
        hand.hello(port)
        hand.push(1.0)
        world.signal("server-0", signal.SIGKILL)
        world.processes["server-0"].wait(SOON)
        end = time.monotonic() + SOON
        while alive(child):
            assert time.monotonic() < end, "a child outlives its parent"
            time.sleep(0.01)
        world.start("server-0")
        push_through(hand, port, 2.0)
        assert all_equal(hand.read(), layout, 0, -3.0)
        assert hand.version == 2
        hand.close()


def test_a_server_ends_when_those_it_was_started_for_have_left() -> None:
    with servers("ps-async", spares=0, start=False) as world:
        world.commands["server-0"] += ["--until-left", "2"]
        world.start("server-0")
        layout, port = layout_of(100), port_of(world)
        hands = [hand_of(world, rank, layout) for rank in range(2)]
        for hand in hands:
            hand.hello(port)
            hand.push(1.0)
        for hand in hands:
            assert hand.link
            hand.link.ask({"kind": "leave", "space": "0.0"})
            hand.close()
        assert world.processes["server-0"].wait(SOON) == 0
        assert "all 2 workers have left" in world.said("server-0", "err")


def test_a_lost_machine_gets_its_state_back_from_the_next_server() -> None:
    with servers("ps-async:replicas=1", count=2, workers=1, spares=0) as world:
        layout = layout_of(50_000, 2)
        hands = [hand_of(world, 0, layout, remote=True, server=index) for index in range(2)]
        for index, hand in enumerate(hands):
            hand.hello(port_of(world, index))
            for _ in range(5):
                hand.push(1.0)
            hand.read()
        end = time.monotonic() + SOON
        while hands[0].status()["replica"]["version"] < 5:
            assert time.monotonic() < end
            time.sleep(0.01)
        world.kill("server-0")
        shared = Path(world.variables["server-0"][contract.SHARED])
        for path in shared.glob("*-s0*"):  # its machine's memory; the other server's is of another machine
            if not path.name.startswith("replica-"):
                path.unlink()
        world.start("server-0")
        push_through(hands[0], port_of(world), 2.0)
        assert all_equal(hands[0].read(), layout, 0, -7.0)
        assert hands[0].status()["restored"] == {"from": "the replica", "version": 5, "lost": 0}
        world.wait_for("server-0", "comes back from the replica at version 5", SOON, "err")
        for hand in hands:
            hand.close()


def test_a_place_that_cannot_be_is_told_in_words() -> None:
    with servers("ps-async", start=False) as world:
        del world.variables["server-0"][contract.SECRET]
        assert world.start("server-0").wait(SOON) == 2
        assert "SHOAL_SECRET" in world.said("server-0", "err")
    with servers("ps-async", start=False) as world:
        from shoal.train.wire.host import listen

        with listen("127.0.0.1", port_of(world)):
            assert world.start("server-0").wait(SOON) == 2
        assert "cannot listen" in world.said("server-0", "err")
