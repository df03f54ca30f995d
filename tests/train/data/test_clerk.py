"""The clerk as a service: who waits, who is lost, what outlives its process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from shoal.train.data import clerk as clerks
from shoal.train.data.clerk import Clerk
from shoal.train.errors import Disagreement, TrainError
from shoal.train.wire.host import Peer

A, B = Peer("worker-0", 1, "a"), Peer("worker-1", 2, "b")
KEY = {"feed": "loader 0", "epoch": 0, "number": 0}


def ask(clerk: Clerk, peer: Peer, kind: str, **more: Any) -> dict[str, Any]:
    return clerk.handle(peer, {"kind": kind, **KEY, **more}, memoryview(b""))[0]


def opened(total: int | None = 4, notes: Path | None = None, **more: Any) -> Clerk:
    clerk = Clerk(notes)
    ask(clerk, A, "open", total=total, **more)
    return clerk


def test_shards_are_handed_out_until_all_are_done() -> None:
    clerk = opened(total=2)
    first = ask(clerk, A, "take", workers=2)["shard"]
    second = ask(clerk, B, "take", workers=2)["shard"]
    assert [first, second] == [(0, 1), (1, 2)]
    assert ask(clerk, A, "take", done=[first])["kind"] == "later"
    over = ask(clerk, B, "take", done=[second])
    assert over["kind"] == "over" and over["report"] == [2, 0, []] and over["say"]
    assert not ask(clerk, A, "take")["say"]  # one says it, not everybody


def test_a_worker_waits_for_the_end_and_gets_what_a_lost_one_held() -> None:
    clerk, answers = opened(total=1), []
    assert ask(clerk, A, "take")["kind"] == "shard"
    waiting = threading.Thread(target=lambda: answers.append(ask(clerk, B, "take", wait=True)))
    waiting.start()
    clerk.left(A)
    waiting.join(10)
    assert answers == [{"kind": "shard", "shard": (0, 1)}]
    assert ask(clerk, B, "take", done=[[0, 1]])["report"] == [1, 1, ["worker-0"]]


def test_a_waiting_worker_that_dies_is_let_go() -> None:
    clerk, answers = opened(total=1), []
    ask(clerk, A, "take")
    waiting = threading.Thread(target=lambda: answers.append(ask(clerk, B, "take", wait=True)))
    waiting.start()
    clerk.left(B)
    waiting.join(10)
    assert answers == [{"kind": "later"}]


def test_an_old_connection_that_ends_late_takes_nothing_away() -> None:
    clerk = opened(total=4)
    ask(clerk, A, "take", workers=1)
    again = Peer("worker-0", 7, "a")
    shard = ask(clerk, again, "take", workers=1, holding=[[0, 1]])["shard"]
    clerk.left(A)
    assert ask(clerk, again, "state", holding=[[0, 1], shard])["done"] == []
    assert ask(clerk, B, "take", workers=1)["shard"] == (2, 3)


def test_a_worker_that_comes_to_an_old_epoch_learns_that_it_is_over() -> None:
    clerk = opened(total=1)
    ask(clerk, A, "take", done=[[0, 1]])
    ask(clerk, A, "open", epoch=1, total=1)
    ask(clerk, B, "open", total=1)
    assert ask(clerk, B, "take", wait=True) == {"kind": "over"}


def test_an_epoch_that_was_left_early_goes_on_for_the_others() -> None:
    clerk = opened(total=2)
    ask(clerk, A, "take", workers=1)
    ask(clerk, A, "open", epoch=1, total=2)
    assert ask(clerk, B, "take", workers=1)["shard"] == (1, 2)


def test_other_data_is_noticed() -> None:
    with pytest.raises(Disagreement, match="has 5 batches here and 4"):
        ask(opened(total=4), B, "open", total=5)


def test_a_question_it_does_not_know_and_an_epoch_that_is_not_open_are_refused() -> None:
    with pytest.raises(TrainError, match="'hello'"):
        ask(opened(), A, "hello")
    with pytest.raises(TrainError, match="was not opened for epoch 3"):
        ask(opened(), A, "take", epoch=3)


def test_an_input_without_length_ends_where_somebody_finds_its_end() -> None:
    clerk = opened(total=None)
    assert ask(clerk, A, "take")["shard"] == (0, 16)
    assert ask(clerk, B, "take")["shard"] == (16, 32)
    ask(clerk, B, "end", total=10)
    assert ask(clerk, B, "take", done=[])["kind"] == "later"
    assert ask(clerk, A, "take", done=[[0, 10]], holding=[[10, 16]])["kind"] == "over"


def test_after_a_restart_what_is_done_is_known_to_the_first_worker() -> None:
    clerk, answers = Clerk(), []
    late = threading.Thread(target=lambda: answers.append(ask(clerk, B, "open", total=4, done=[[0, 4]], resumed=True)))
    late.start()
    ask(clerk, A, "open", total=4, done=[[0, 2]], resumed=True)
    late.join(10)
    assert answers and ask(clerk, B, "state")["done"] == [(0, 2)]


def test_a_clerk_that_comes_back_knows_what_the_one_before_it_knew(tmp_path: Path) -> None:
    notes = tmp_path / "clerk.json"
    before = opened(total=4, notes=notes)
    held = ask(before, A, "take", workers=1)["shard"]
    done = ask(before, B, "take", workers=1)["shard"]
    ask(before, B, "take", workers=1, done=[done])
    after = Clerk(notes)
    assert ask(after, A, "state", holding=[held])["done"] == [done]
    assert [path.name for path in tmp_path.iterdir()] == ["clerk.json"]


def test_a_worker_that_does_not_call_again_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes, now = tmp_path / "clerk.json", [0.0]
    before = opened(total=1, notes=notes)
    ask(before, A, "take")
    monkeypatch.setattr(clerks, "LOOK", 0.01)
    after, answers = Clerk(notes, clock=lambda: now[0]), []
    waiting = threading.Thread(target=lambda: answers.append(ask(after, B, "take", wait=True)))
    waiting.start()
    now[0] = clerks.GRACE + 1
    waiting.join(10)
    assert answers == [{"kind": "shard", "shard": (0, 1)}]
