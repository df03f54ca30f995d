"""The service "ps" in this process: workers by hand push and pull through slots and payloads, come, go, come again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from shoal.errors import BadRequest, NotFound
from shoal.train.errors import Disagreement, PeerLost
from shoal.train.ps import serve
from shoal.train.ps.shard import Shard
from shoal.train.wire.link import Link
from tests.train.ps.by_hand import SECRET, SGD, Hand, all_equal, layout_of, place_of, serving

SOON = 30.0


def wait_until(true: Callable[[], object], message: str) -> None:
    """Looks until it is so; fails after SOON."""
    end = threading.Event()
    for _ in range(int(SOON / 0.01)):
        if true():
            return
        end.wait(0.01)
    raise AssertionError(message)


@pytest.mark.parametrize("remote", [False, True])
def test_pushes_are_applied_and_read_back(tmp_path: Path, remote: bool) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path)) as (host, _):
        hands = [Hand(tmp_path / "shared-0", rank, layout, remote) for rank in range(2)]
        for hand in hands:
            told = hand.hello(host.port, values=100.0)
            assert told["last_seq"] == told["version"] == 0
            assert (told["segment"] is None) == remote
        for step in range(1, 4):
            for hand in hands:
                hand.push(float(step))
        assert all_equal(hands[0].read(), layout, 0, 100.0 - 2 * (1 + 2 + 3))
        assert hands[0].version == 6
        for hand in hands:
            hand.close()


def test_a_remote_worker_gets_what_it_wants_with_the_answer(tmp_path: Path) -> None:
    layout = layout_of(300)
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path, 0, layout, remote=True)
        hand.hello(host.port, values=10.0)
        reply = hand.push(3.0, want="params")
        assert all_equal(torch.frombuffer(bytearray(reply.payload), dtype=torch.float32), layout, 0, 7.0)
        assert reply.meta["version"] == 1
        assert hand.push(1.0, want="version").payload.nbytes == 0
        hand.close()


def test_a_slot_may_be_filled_in_parts_over_other_connections(tmp_path: Path) -> None:
    layout = layout_of(4096)
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path, 0, layout, remote=True)
        hand.hello(host.port)
        values, got = torch.arange(4096, dtype=torch.float32), torch.empty(4096)
        other = Link.open("127.0.0.1", host.port, SECRET, service="ps", me="worker-0")
        assert hand.link is not None
        for link, at in ((other, 0), (hand.link, 1024), (other, 2048), (other, 3072)):
            meta = {"kind": "part", "space": "0.0", "begin": at, "count": 1024}
            link.ask(meta, [values[at : at + 1024].numpy().data.cast("B")])
        hand.seq = hand.clock = 1
        hand.send_alone().wait()
        for at in range(0, 4096, 1024):
            meta = {"kind": "pull", "space": "0.0", "begin": at, "count": 1024}
            other.ask(meta, into=got[at : at + 1024].numpy().data.cast("B"))
        assert torch.equal(got, -values)
        other.close()
        assert hand.push(0.0).meta["version"] == 2, "the connection that brought parts does not stand for the worker"
        hand.close()


def test_the_same_push_sent_again_counts_once(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path / "shared-0", 0, layout)
        hand.hello(host.port)
        hand.push(1.0)
        assert hand.send().wait().meta["version"] == 1
        hand.close()
        told = hand.hello(host.port)
        assert told["last_seq"] == 1
        hand.send().wait()
        assert all_equal(hand.read(), layout, 0, -1.0)
        hand.close()


def test_hardsync_waits_for_everybody_and_says_for_whom(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path, "ps-sync")) as (host, _):
        hands = [Hand(tmp_path / "shared-0", rank, layout) for rank in range(2)]
        for hand in hands:
            hand.hello(host.port)
        first = hands[0].begin(2.0)
        wait_until(lambda: hands[1].status()["waits"], "nobody waits")
        assert hands[1].status()["waits"] == {"worker-0": ["worker-1"]}
        assert hands[1].push(4.0).meta["waited_for"] == []
        assert first.wait().meta["waited_for"] == ["worker-1"]
        assert all_equal(hands[0].read(), layout, 0, -3.0)
        for hand in hands:
            hand.close()


def test_a_worker_that_dies_does_not_hold_up_the_others(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path, "ps-ssp:staleness=1")) as (host, _):
        hands = [Hand(tmp_path / "shared-0", rank, layout) for rank in range(2)]
        for hand in hands:
            hand.hello(host.port)
        hands[0].push(1.0)
        blocked = hands[0].begin(1.0)  # two ahead of one that has done nothing
        wait_until(lambda: hands[1].status()["waits"], "nobody waits")
        hands[1].close()
        assert blocked.wait().meta["waited_for"] == ["worker-1"]
        assert hands[0].push(1.0).meta["version"] == 3
        assert hands[0].status()["members"] == [0]
        told = Hand(tmp_path / "shared-0", 1, layout).hello(host.port)
        assert told["clock"] == 3, "a joiner starts at the minimum"
        hands[0].close()


def test_a_worker_that_dies_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path, "ps-sync", workers=3)) as (host, _):
        hands = [Hand(tmp_path / "shared-0", rank, layout) for rank in range(3)]
        for hand in hands:
            hand.hello(host.port)
        hands[0].begin(100.0)
        wait_until(lambda: hands[1].status()["waits"], "nobody waits")
        hands[0].close()
        wait_until(lambda: hands[1].status()["members"] == [1, 2], "the dead one is still a member")
        second = hands[1].begin(2.0)
        hands[2].push(4.0)
        second.wait()
        assert all_equal(hands[1].read(), layout, 0, -3.0), "the mean of those who are left"
        for hand in hands:
            hand.close()


def test_a_second_connection_of_a_worker_replaces_the_first(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path, "ps-sync")) as (host, _):
        hands = [Hand(tmp_path / "shared-0", rank, layout) for rank in range(2)]
        for hand in hands:
            hand.hello(host.port)
        old = hands[0].begin(2.0)
        wait_until(lambda: hands[1].status()["waits"], "nobody waits")
        before = hands[0].link
        assert hands[0].hello(host.port)["last_seq"] == 0, "it waited, it was not taken"
        with pytest.raises(PeerLost):
            old.wait()
        again = hands[0].send()
        wait_until(lambda: hands[1].status()["waits"], "nobody waits")
        hands[1].push(4.0)
        again.wait()
        assert all_equal(hands[0].read(), layout, 0, -3.0)
        assert hands[1].status()["members"] == [0, 1], "the end of the old connection is no leaving"
        with pytest.raises(PeerLost):
            assert before
            before.ask({"kind": "status"})
        for hand in hands:
            hand.close()


def test_all_begin_with_the_values_of_the_first_worker(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path)) as (host, _):
        late, first = Hand(tmp_path / "shared-0", 1, layout), Hand(tmp_path / "shared-0", 0, layout)
        thread = threading.Thread(target=late.hello, args=(host.port, 5.0))
        thread.start()
        wait_until(host.peers, "nobody called")
        first.hello(host.port, 7.0)
        thread.join(SOON)
        assert all_equal(late.read(), layout, 0, 7.0)
        late.close()
        first.close()


def test_without_the_first_worker_all_begin_with_the_values_of_the_lowest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of()
    monkeypatch.setattr(serve, "INIT_PATIENCE", 0.5)
    monkeypatch.setattr(serve, "LOOK", 0.05)
    with serving(place_of(tmp_path, workers=3)) as (host, service):
        hands = {rank: Hand(tmp_path / "shared-0", rank, layout) for rank in (1, 2)}
        threads = []
        for rank in (2, 1):  # the higher one runs out of patience first
            threads.append(threading.Thread(target=hands[rank].hello, args=(host.port, 10.0 * rank)))
            threads[-1].start()
            wait_until(lambda rank=rank: "0.0" in service.spaces() and rank in service.spaces()["0.0"].present, "no")  # type: ignore[misc]
        for thread in threads:
            thread.join(SOON)
        assert all_equal(hands[2].read(), layout, 0, 10.0)
        for hand in hands.values():
            hand.close()


def test_workers_with_other_hyperparameters_are_told_the_first_difference(tmp_path: Path) -> None:
    recipe = SGD.to_json()
    other = {**recipe, "groups": [{**recipe["groups"][0], "foreach": True, "momentum": 0.5}]}
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path / "shared-0", 0, layout_of(100))
        hand.hello(host.port)
        with pytest.raises(Disagreement, match=r"momentum of SGD \(group 0\) is 0.5, server-0 has 0"):
            Hand(tmp_path / "shared-0", 1, layout_of(100)).hello(host.port, recipe=other)
        hand.push(1.0, changes={"0": {"lr": 0.5}})
        late = Hand(tmp_path / "shared-0", 1, layout_of(100))
        assert late.hello(host.port)["version"] == 1, "a scheduler may have been at work meanwhile"
        for one in (hand, late):
            one.close()


def test_only_a_worker_that_reads_has_a_copy_to_compensate_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(Shard, "note_read", lambda self, worker: noted.append(worker))
    with serving(place_of(tmp_path, "ps-async:compensate=0.5,fetch=2")) as (host, _):
        hand = Hand(tmp_path / "shared-0", 0, layout_of(100))
        hand.hello(host.port)
        told = [hand.push(1.0, want=want) and len(noted) for want in ("none", "params", "none", "version")]
        assert told == [0, 1, 1, 2]
        hand.close()


def test_workers_with_different_models_are_told_the_first_difference(tmp_path: Path) -> None:
    with serving(place_of(tmp_path)) as (host, _):
        Hand(tmp_path / "shared-0", 0, layout_of(100)).hello(host.port)
        with pytest.raises(Disagreement, match="parameter 0 is bias") as differs:
            Hand(tmp_path / "shared-0", 1, layout_of(100, name="bias")).hello(host.port)
        assert "weight" in differs.value.message
        with pytest.raises(Disagreement, match="optimizer"):
            other = {**SGD.to_json(), "name": "Adam"}
            Hand(tmp_path / "shared-0", 1, layout_of(100)).hello(host.port, recipe=other)
        with pytest.raises(Disagreement, match="strategy"):
            Hand(tmp_path / "shared-0", 1, layout_of(100)).hello(host.port, strategy="ps-sync")
        with pytest.raises(Disagreement, match="servers"):
            Hand(tmp_path / "shared-0", 1, layout_of(100), space="1.0").hello(
                host.port, layout=layout_of(100, servers=2).to_json()
            )


def test_what_cannot_be_is_refused_with_words(tmp_path: Path) -> None:
    layout = layout_of(100)
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path / "shared-0", 0, layout)
        link = hand.open(host.port)
        with pytest.raises(NotFound, match="say hello"):
            link.ask({"kind": "pull", "space": "0.0"})
        with pytest.raises(BadRequest, match="knows hello"):
            link.ask({"kind": "dance"})
        with pytest.raises(BadRequest, match="no name of a space"):
            hand.space = "../../etc"
            hand.hello(host.port)
        hand.space = "0.0"
        with pytest.raises(BadRequest, match="shared folder"):
            hand.hello(host.port, slot="/etc/passwd")
        with pytest.raises(BadRequest, match="cannot be mapped"):
            hand.hello(host.port, slot=str(tmp_path / "shared-0" / "nothing"))
        hand.hello(host.port)
        with pytest.raises(BadRequest, match="not in this part"):
            assert hand.link
            hand.link.ask({"kind": "pull", "space": "0.0", "begin": 64, "count": 100})
        hand.close()


def test_a_payload_that_has_no_place_is_answered_and_the_link_goes_on(tmp_path: Path) -> None:
    layout = layout_of(100)
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path, 0, layout, remote=True)
        hand.hello(host.port)
        with pytest.raises(BadRequest, match="check the layout"):
            hand.send_alone([memoryview(bytes(40))]).wait()
        with pytest.raises(BadRequest, match="no slot here"):
            local = Hand(tmp_path / "shared-0", 1, layout)
            local.hello(host.port)
            local.send_alone(hand.payload()).wait()
        assert hand.push(1.0).meta["version"] == 1
        hand.close()
        local.close()


def test_two_spaces_do_not_wait_for_each_other(tmp_path: Path) -> None:
    layout = layout_of(200)
    with serving(place_of(tmp_path, "ps-sync")) as (host, _):
        generator = [Hand(tmp_path / "shared-0", rank, layout, space="0.0") for rank in range(2)]
        critic = [Hand(tmp_path / "shared-0", rank, layout, space="1.0") for rank in range(2)]
        for hand in [*generator, *critic]:
            hand.hello(host.port)
        held = generator[0].begin(1.0)
        first = critic[0].begin(2.0)
        critic[1].push(4.0)
        first.wait()
        generator[1].push(3.0)
        held.wait()
        assert all_equal(generator[0].read(), layout, 0, -2.0)
        assert all_equal(critic[0].read(), layout, 0, -3.0)
        for hand in [*generator, *critic]:
            hand.close()


def test_changed_hyperparameters_travel_with_a_push(tmp_path: Path) -> None:
    layout = layout_of(100)
    with serving(place_of(tmp_path)) as (host, _):
        hand = Hand(tmp_path / "shared-0", 0, layout)
        hand.hello(host.port)
        hand.push(1.0)
        hand.push(1.0, changes={"0": {"lr": 0.5}})
        assert all_equal(hand.read(), layout, 0, -1.5)
        hand.close()


def test_a_compressed_push_is_decoded_into_the_slot(tmp_path: Path) -> None:
    from shoal.train import compress

    layout = layout_of(256)
    squeezer = compress.make({"compress": "fp16"})
    assert squeezer
    with serving(place_of(tmp_path, "ps-async:compress=fp16")) as (host, _):
        hand = Hand(tmp_path, 0, layout, remote=True)
        hand.hello(host.port)
        code = squeezer.encode("0.0", torch.full((layout.count,), 3.0))
        assert hand.link
        meta = {"kind": "push", "space": "0.0", "seq": 1, "base": 0, "clock": 1, "want": "params"}
        reply = hand.link.ask(meta, [code.numpy().data.cast("B")])
        assert all_equal(torch.frombuffer(bytearray(reply.payload), dtype=torch.float32), layout, 0, -3.0)
        hand.close()


def test_elastic_averaging_leaves_the_change_in_the_slot(tmp_path: Path) -> None:
    layout = layout_of(128)
    with serving(place_of(tmp_path, "easgd:alpha=0.5")) as (host, _):
        here, there = Hand(tmp_path / "shared-0", 0, layout), Hand(tmp_path, 1, layout, remote=True)
        for hand in (here, there):
            hand.hello(host.port, values=0.0, applier="elastic", recipe=None)
        here.push(8.0)
        assert all_equal(here.slot, layout, 0, 4.0)
        assert all_equal(here.read(), layout, 0, 4.0)
        reply = there.push(8.0, want="slot")
        assert all_equal(torch.frombuffer(bytearray(reply.payload), dtype=torch.float32), layout, 0, 2.0)
        here.close()
        there.close()


def test_an_update_that_fails_is_told_to_those_who_wait_and_nobody_else(tmp_path: Path) -> None:
    layout = layout_of(100)
    with serving(place_of(tmp_path)) as (host, service):
        hands = [Hand(tmp_path / "shared-0", rank, layout) for rank in range(2)]
        for hand in hands:
            hand.hello(host.port)
        served = service.spaces()["0.0"]
        whole = served.space.slots[0]
        served.space.slots[0] = whole[:-16]
        with pytest.raises(Exception, match="elements"):
            hands[0].push(1.0)
        served.space.slots[0] = whole
        assert hands[1].push(1.0).meta["version"] == 1
        hands[0].send().wait()
        assert all_equal(hands[1].read(), layout, 0, -2.0)
        for hand in hands:
            hand.close()


def test_leaving_gives_everything_back(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path)) as (host, service):
        hand = Hand(tmp_path, 0, layout, remote=True)
        hand.hello(host.port)
        hand.push(1.0)
        slot = tmp_path / "shared-0" / "slot-0.0-w0-s0"
        assert slot.exists()
        assert hand.link
        hand.link.ask({"kind": "leave", "space": "0.0"})
        assert not slot.exists()
        assert service.departed == {0}
        hand.close()


def test_a_worker_that_the_roster_gives_up_is_not_waited_for(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path, "ps-sync")) as (host, service):
        hand = Hand(tmp_path / "shared-0", 0, layout)
        hand.hello(host.port)
        pending = hand.begin(2.0)
        service.all.lost(frozenset({1}))  # it never came
        pending.wait()
        assert all_equal(hand.read(), layout, 0, -2.0)
        hand.close()


def test_a_server_that_ends_tells_those_who_wait(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path, "ps-sync")) as (host, _):
        hand = Hand(tmp_path / "shared-0", 0, layout)
        hand.hello(host.port)
        pending = hand.begin(2.0)
        wait_until(host.peers, "nobody there")
    with pytest.raises(PeerLost):
        pending.wait()


def test_status_shows_clocks_staleness_and_balance(tmp_path: Path) -> None:
    layout = layout_of()
    with serving(place_of(tmp_path)) as (host, _):
        hands = [Hand(tmp_path / "shared-0", rank, layout) for rank in range(2)]
        for hand in hands:
            hand.hello(host.port)
        hands[0].push(1.0)
        hands[1].push(1.0)
        told = hands[0].status()
        assert told["clocks"] == {"worker-0": 1, "worker-1": 1}
        assert told["staleness"] == {"0": 1, "1": 1}
        assert told["version"] == told["pushes"] == 2
        assert told["balance"]["worst"] == 1.0
        assert told["connected"] == ["worker-0", "worker-1"]
        for hand in hands:
            hand.close()
