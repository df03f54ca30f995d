"""A server that takes over from one that died: updates half done, slots still there or gone, members that stay away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.train.errors import NoRoom, PeerLost
from shoal.train.ps.applier import Step
from shoal.train.ps.orders import Apply, Contribution
from shoal.train.ps.shard import Shard
from shoal.train.wire import segment
from tests.train.ps.by_hand import Hand, all_equal, layout_of, place_of, serving
from tests.train.ps.test_serve import wait_until

LAYOUT = layout_of(1000, chunk_bytes=1024)  # four chunks


class Died(BaseException):
    """The process ends here."""


def cut_off(shared: Path, hands: list[Hand], monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """An update of all hands that ends in the middle of chunk number `after`."""
    shard = Shard.open(shared / "shard-0.0-s0")
    write = Step.write

    def dying(self: Step, index: int, *rest: object) -> None:
        write(self, index, *rest)  # type: ignore[arg-type]
        if index == after:
            raise Died

    monkeypatch.setattr(Step, "write", dying)
    part = LAYOUT.part(0)
    slots = {hand.rank: hand.slot[part.offset : part.offset + part.count] for hand in hands}
    contributions = tuple(Contribution(hand.rank, hand.seq, clock=hand.clock) for hand in hands)
    with pytest.raises(Died):
        shard.obey(Apply(contributions, divisor=float(len(hands))), slots)
    monkeypatch.setattr(Step, "write", write)
    shard.close()


def lay_down(hands: list[Hand], value: float) -> None:
    """As if the push had been sent, and the server died before it could answer."""
    for hand in hands:
        hand.lay(value)
        hand.seq += 1
        hand.clock += 1


@pytest.mark.parametrize("after", [0, 2, 3])
def test_an_update_half_done_is_finished_before_anybody_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    place = place_of(tmp_path, "ps-sync")
    hands = [Hand(place.shared, rank, LAYOUT) for rank in range(2)]
    with serving(place) as (host, _):
        for hand in hands:
            hand.hello(host.port)
    lay_down(hands, 2.0)
    cut_off(place.shared, hands, monkeypatch, after)
    with serving(place) as (host, service):
        assert not service.spaces()["0.0"].space.recovering
        for hand in hands:
            assert hand.hello(host.port)["last_seq"] == 1
            assert hand.send().wait().meta["version"] == 1
            assert all_equal(hand.read(), LAYOUT, 0, -2.0)
            hand.close()


def test_an_update_whose_slot_is_gone_is_finished_when_its_worker_sends_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(tmp_path, "ps-async")
    here, there = Hand(place.shared, 0, LAYOUT), Hand(tmp_path, 1, LAYOUT, remote=True)
    with serving(place) as (host, _):
        for hand in (here, there):
            hand.hello(host.port)
    lay_down([there], 3.0)
    cut_off(place.shared, [there], monkeypatch, 1)
    (place.shared / "slot-0.0-w1-s0").unlink()
    with serving(place) as (host, service):
        assert service.spaces()["0.0"].space.recovering
        here.hello(host.port)
        waiting = here.begin(1.0)
        told = there.hello(host.port)
        assert told["last_seq"] == 0, "it is not taken yet"
        assert service.spaces()["0.0"].space.recovering, "a fresh slot has nothing of the worker's in it"
        there.send().wait()
        assert waiting.wait().meta["version"] == 2
        assert all_equal(here.read(), LAYOUT, 0, -4.0)
        for hand in (here, there):
            hand.close()


def test_an_update_that_cannot_be_finished_is_given_up_when_its_worker_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = place_of(tmp_path, "ps-async")
    here, there = Hand(place.shared, 0, LAYOUT), Hand(tmp_path, 1, LAYOUT, remote=True)
    with serving(place) as (host, _):
        for hand in (here, there):
            hand.hello(host.port)
    lay_down([there], 3.0)
    cut_off(place.shared, [there], monkeypatch, 0)
    (place.shared / "slot-0.0-w1-s0").unlink()
    with serving(place) as (host, service):
        here.hello(host.port)
        waiting = here.begin(1.0)
        service.all.give_up_on_absent()
        assert waiting.wait().meta["version"] == 1
        assert all_equal(here.read(), LAYOUT, 0, -1.0), "nothing of the lost update is left"
        assert "it is undone" in caplog.text
        here.close()


def test_who_leaves_while_an_update_is_unfinished_is_not_left_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = place_of(tmp_path, "ps-async")
    here, there = Hand(place.shared, 0, LAYOUT), Hand(tmp_path, 1, LAYOUT, remote=True)
    with serving(place) as (host, _):
        for hand in (here, there):
            hand.hello(host.port)
    lay_down([there], 3.0)
    cut_off(place.shared, [there], monkeypatch, 1)
    (place.shared / "slot-0.0-w1-s0").unlink()
    with serving(place) as (host, service):
        here.hello(host.port)
        waiting, space = here.begin(1.0), service.spaces()["0.0"].space
        wait_until(lambda: space._stashed, "the push did not come")
        space.leave(0, "somebody says so")
        with pytest.raises(PeerLost, match="worker-0 is not waited for any more: somebody says so"):
            waiting.wait()
        here.close()


def test_members_that_do_not_call_again_are_not_waited_for(tmp_path: Path) -> None:
    place = place_of(tmp_path, "ps-sync")
    hands = [Hand(place.shared, rank, LAYOUT) for rank in range(2)]
    with serving(place) as (host, _):
        for hand in hands:
            hand.hello(host.port)
    with serving(place) as (host, service):
        hands[0].hello(host.port)
        pending = hands[0].begin(2.0)
        wait_until(lambda: service.spaces()["0.0"].status()["waits"], "nobody waits")
        service.all.give_up_on_absent()
        pending.wait()
        assert all_equal(hands[0].read(), LAYOUT, 0, -2.0)
        hands[0].close()


def test_what_softsync_holds_survives(tmp_path: Path) -> None:
    place = place_of(tmp_path, "ps-softsync:c=2")
    hand = Hand(place.shared, 0, LAYOUT)
    with serving(place) as (host, _):
        hand.hello(host.port)
        assert hand.push(2.0).meta["version"] == 0
    with serving(place) as (host, _):
        assert hand.hello(host.port)["last_seq"] == 1
        assert hand.push(4.0).meta["version"] == 1
        assert all_equal(hand.read(), LAYOUT, 0, -3.0)
        hand.close()


def test_a_server_that_holds_nothing_of_a_small_model_serves_too(tmp_path: Path) -> None:
    layout = layout_of(10, servers=2)
    assert layout.part(1).count == 0
    place = place_of(tmp_path, "ps-async", index=1, servers=2)
    for remote in (False, True):
        with serving(place) as (host, _):
            hand = Hand(place.shared, 0, layout, remote, server=1)
            hand.hello(host.port)
            hand.push(1.0, want="params")
            assert hand.read().numel() == 0 if not remote else True
            hand.close()


def test_a_shard_that_was_never_finished_is_begun_anew(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    (place.shared / "shard-0.0-s0").write_bytes(bytes(1 << 16))
    with serving(place) as (host, _):
        hand = Hand(place.shared, 0, LAYOUT)
        assert not hand.hello(host.port)["initialised"]
        assert hand.push(1.0).meta["version"] == 1
        hand.close()


def test_without_room_in_shared_memory_a_server_works_on_disk_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = replace(place_of(tmp_path), secret=str(tmp_path).encode())  # the folder on disk is named after it
    check = segment._check_room

    def short(folder: Path, size: int) -> None:
        if folder == place.shared:
            raise NoRoom(f"no room for {size} bytes")
        check(folder, size)

    hands = [Hand(place.shared, 0, LAYOUT), Hand(tmp_path, 1, LAYOUT, remote=True)]
    for hand in hands:
        hand.secret = place.secret
    monkeypatch.setattr(segment, "_check_room", short)
    for life in range(2):
        with serving(place) as (host, service):
            monkeypatch.setattr(service.all, "close", lambda: None)  # it dies: nothing is cleared away
            for hand in hands:
                hand.hello(host.port)
                hand.push(1.0)
            assert all_equal(hands[0].read(), LAYOUT, 0, -2.0 * (life + 1))
    assert place.spill.exists()
    assert "lies on disk" in caplog.text
    with serving(place):
        pass
    assert not place.spill.exists()
