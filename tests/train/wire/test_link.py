"""Links and hosts in one process: asks, payloads, errors, deaths, strangers, many at once."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import NotAllowed, UnknownName
from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.wire import frames, host, proof
from shoal.train.wire.bulk import cut, stripes
from shoal.train.wire.frames import Buffer
from shoal.train.wire.host import Host, Peer
from shoal.train.wire.link import Link

SECRET = b"the attempt's secret"
SOON = 30.0  # seconds; a bound for what must happen, never waited for


class Parrot:
    """Answers with what it was told; holds, fails and counts when asked to."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.holding = threading.Event()
        self.gone: list[str] = []
        self.someone_left = threading.Semaphore(0)
        self.place = bytearray(1 << 20)
        self.handled: list[Any] = []

    def handle(self, peer: Peer, meta: dict[str, Any], payload: memoryview) -> tuple[dict[str, Any], Sequence[Buffer]]:
        self.handled.append(meta.get("n"))
        if meta["kind"] == "hold":
            self.holding.set()
            assert self.release.wait(SOON)
        if meta["kind"] == "disagree":
            raise Disagreement("the models differ at fc.weight", parameter="fc.weight")
        if meta["kind"] == "lost":
            raise PeerLost("worker-7 died", ["worker-7"])
        if meta["kind"] == "bug":
            raise KeyError("nothing here")
        if meta["kind"] == "big":
            return {"kind": "ok"}, [bytes(meta["size"])]
        return {"kind": "ok", "me": peer.name, "n": meta.get("n")}, [payload]

    def buffer(self, peer: Peer, meta: dict[str, Any], size: int) -> memoryview | None:
        return memoryview(self.place) if meta["kind"] == "placed" else None

    def left(self, peer: Peer) -> None:
        self.gone.append(peer.name)
        self.someone_left.release()


@pytest.fixture
def parrot() -> Parrot:
    return Parrot()


@pytest.fixture
def served(parrot: Parrot) -> Iterator[Host]:
    with Host(SECRET, {"ps": parrot}) as served:
        yield served
        parrot.release.set()


def reach(
    served: Host,
    me: str = "worker-0",
    service: str = "ps",
    secret: bytes = SECRET,
    deadline: float = 10,
    sockets: int = 1,
) -> Link:
    return Link.open(
        "127.0.0.1", served.port, secret, service=service, me=me, peer="server-0", deadline=deadline, sockets=sockets
    )


def test_an_ask_is_answered_with_its_payload(served: Host) -> None:
    link = reach(served)
    reply = link.ask({"kind": "say", "n": 4}, [b"one", bytearray(b"two")])
    assert reply.meta == {"kind": "ok", "me": "worker-0", "n": 4}
    assert bytes(reply.payload) == b"onetwo"
    assert link.bytes_sent > 6
    assert link.bytes_received == 6
    link.close()


def test_an_answer_lands_in_the_place_named(served: Host) -> None:
    link, place = reach(served), bytearray(8)
    reply = link.ask({"kind": "say"}, [b"abcdef"], into=memoryview(place))
    assert bytes(place) == b"abcdef\0\0"
    assert reply.payload.nbytes == 6
    link.close()


def test_a_payload_lands_where_the_service_says(served: Host, parrot: Parrot) -> None:
    link = reach(served)
    link.ask({"kind": "placed"}, [b"straight in"])
    assert bytes(parrot.place[:11]) == b"straight in"
    link.close()


def test_errors_are_raised_again_by_their_code(served: Host) -> None:
    link = reach(served)
    with pytest.raises(Disagreement, match="fc.weight") as differs:
        link.ask({"kind": "disagree"})
    assert differs.value.facts == {"parameter": "fc.weight"}
    with pytest.raises(PeerLost, match="worker-7 died") as lost:
        link.ask({"kind": "lost"})
    assert lost.value.who == ["worker-7"]
    with pytest.raises(Exception, match="KeyError"):
        link.ask({"kind": "bug"})
    assert link.ask({"kind": "say", "n": 1}).meta["n"] == 1, "the link goes on after an error"
    assert not link.closed
    link.close()


def test_asks_may_begin_before_the_first_answer(served: Host) -> None:
    link = reach(served)
    pending = [link.begin({"kind": "say", "n": n}, [bytes([n])]) for n in range(20)]
    for n in reversed(range(20)):
        assert pending[n].wait().meta["n"] == n
    link.close()


def test_threads_may_share_a_link(served: Host) -> None:
    link = reach(served)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: link.ask({"kind": "say", "n": n}, [b"%d" % n]), range(200)))
    assert [reply.meta["n"] for reply in replies] == list(range(200))
    assert [bytes(reply.payload) for reply in replies] == [b"%d" % n for n in range(200)]
    link.close()


def test_many_links_at_once_do_not_wait_for_each_other(served: Host, parrot: Parrot) -> None:
    links = [reach(served, f"worker-{n}") for n in range(12)]
    held = links[0].begin({"kind": "hold", "n": 0})
    assert parrot.holding.wait(SOON)
    for n, link in enumerate(links[1:], 1):
        assert link.ask({"kind": "say"}).meta["me"] == f"worker-{n}"
    parrot.release.set()
    assert held.wait().meta["me"] == "worker-0"
    for link in links:
        link.close()
    for _ in links:
        assert parrot.someone_left.acquire(timeout=SOON)
    assert sorted(parrot.gone) == sorted(f"worker-{n}" for n in range(12))


def test_a_wrong_secret_is_told_at_once(served: Host, parrot: Parrot) -> None:
    with pytest.raises(NotAllowed, match="server-0"):
        reach(served, secret=b"wrong", deadline=SOON)
    assert parrot.handled == []
    assert served.peers() == []


def test_an_unknown_service_is_answered_with_the_nearest(served: Host) -> None:
    with pytest.raises(UnknownName, match="did you mean 'ps'"):
        reach(served, service="pss")


def test_a_stranger_reaches_no_service(served: Host, parrot: Parrot) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=SOON) as stranger:
        assert stranger.recv(4) == proof.GREETING
        stranger.sendall(b"\x16\x03\x01" + bytes(400))
        with pytest.raises(ConnectionError):
            while stranger.recv(4096):
                pass
            raise ConnectionError("ended")
    assert parrot.handled == parrot.gone == []


def test_too_many_strangers_are_turned_away_and_then_let_in_again(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "MOST_STRANGERS", 2)
    with Host(SECRET, {"ps": parrot}) as served:
        strangers = [socket.create_connection(("127.0.0.1", served.port), timeout=SOON) for _ in range(2)]
        for stranger in strangers:
            stranger.recv(36)
        with socket.create_connection(("127.0.0.1", served.port), timeout=SOON) as third:
            assert third.recv(1) == b""
        for stranger in strangers:
            stranger.close()
        reach(served, deadline=SOON).close()


def test_garbage_after_the_proof_ends_that_link_only(served: Host, parrot: Parrot) -> None:
    good, bad = reach(served, "good"), reach(served, "bad")
    bad._sock.sendall(b"X" * 64)
    assert parrot.someone_left.acquire(timeout=SOON)
    assert parrot.gone == ["bad"]
    assert good.ask({"kind": "say"}).meta["me"] == "good"
    good.close()
    bad.close()


def test_an_oversized_meta_ends_that_link_only(served: Host, parrot: Parrot) -> None:
    bad = reach(served, "bad")
    bad._sock.sendall(frames.HEADER.pack(frames.MAGIC, frames.META_LIMIT + 1, 0))
    with pytest.raises(PeerLost, match="server-0"):
        bad.ask({"kind": "say"})
        bad.ask({"kind": "say"})
    assert parrot.someone_left.acquire(timeout=SOON)


def test_a_truncated_frame_is_a_peer_that_left(served: Host, parrot: Parrot) -> None:
    bad = reach(served, "bad")
    bad._sock.sendall(frames.HEADER.pack(frames.MAGIC, 10, 1000) + b'{"kind":')
    bad.close()
    assert parrot.someone_left.acquire(timeout=SOON)
    assert parrot.handled == []


def test_a_caller_that_dies_while_its_answer_is_held_is_noticed(served: Host, parrot: Parrot) -> None:
    link = reach(served, "worker-5")
    link.begin({"kind": "hold"})
    assert parrot.holding.wait(SOON)
    begin = time.monotonic()
    link.close()
    assert parrot.someone_left.acquire(timeout=SOON), "noticed although the service still blocks"
    print(f"noticed after {(time.monotonic() - begin) * 1000:.0f} ms")
    assert not parrot.release.is_set()
    parrot.release.set()
    assert parrot.gone == ["worker-5"]


def test_left_comes_once_and_after_what_was_sent_before(served: Host, parrot: Parrot) -> None:
    for n in range(30):
        link = reach(served, f"w{n}")
        link.begin({"kind": "say", "n": n})
        link._sock.shutdown(socket.SHUT_WR)
        assert parrot.someone_left.acquire(timeout=SOON)
        assert parrot.handled[-1] == n
        link.close()
    assert parrot.gone == [f"w{n}" for n in range(30)]


def test_a_host_that_closes_is_a_lost_peer(parrot: Parrot) -> None:
    served = Host(SECRET, {"ps": parrot}).start()
    link = reach(served)
    held = link.begin({"kind": "hold"})
    assert parrot.holding.wait(SOON)
    threading.Timer(0.05, parrot.release.set).start()
    served.close()
    served.close()
    with pytest.raises(PeerLost, match="server-0"):
        held.wait()
        link.ask({"kind": "say"})
    assert link.closed
    with pytest.raises(PeerLost, match="open another"):
        link.ask({"kind": "say"})
    assert parrot.gone == ["worker-0"]


def test_nobody_there_is_a_lost_peer_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PeerLost, match=f"server-1 at 127.0.0.1:{port}"):
        Link.open("127.0.0.1", port, SECRET, service="ps", me="worker-0", peer="server-1", deadline=0.1)


def test_a_listener_that_says_nothing_is_waited_for_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(WaitedTooLong, match="server-1") as waited:
            Link.open("127.0.0.1", port, SECRET, service="ps", me="worker-0", peer="server-1", deadline=0.1)
    assert waited.value.who == ["server-1"]


def test_a_call_waits_in_the_backlog_until_somebody_serves(parrot: Parrot) -> None:
    served = Host(SECRET, {"ps": parrot})  # listens, does not serve yet
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(reach, served, deadline=SOON)
        with served:
            link = early.result(SOON)
            assert link.ask({"kind": "say", "n": 3}).meta["n"] == 3
            link.close()


def test_a_listener_of_somebody_else_survives_its_host(parrot: Parrot) -> None:
    keeper = host.listen("127.0.0.1", 0)
    for round_ in range(2):
        with Host(SECRET, {"ps": parrot}, listener=keeper.dup()) as served:
            link = reach(served)
            assert link.ask({"kind": "say", "n": round_}).meta["n"] == round_
            link.close()
    keeper.close()


def test_an_answer_that_does_not_come_in_time_names_the_peer(served: Host, parrot: Parrot) -> None:
    link = reach(served)
    with pytest.raises(WaitedTooLong, match="server-0"):
        link.begin({"kind": "hold"}).wait(patience=0.05)
    assert link.closed


def test_a_slow_reader_does_not_hold_up_others(served: Host) -> None:
    slow, quick = reach(served, "slow"), reach(served, "quick")
    pending = slow.begin({"kind": "big", "size": 32 << 20})  # more than the buffers between them
    assert quick.ask({"kind": "say", "n": 1}).meta["n"] == 1
    assert pending.wait().payload.nbytes == 32 << 20
    slow.close()
    quick.close()


def test_an_answer_larger_than_its_place_loses_the_link(served: Host) -> None:
    link = reach(served)
    with pytest.raises(PeerLost, match="does not fit"):
        link.ask({"kind": "say"}, [b"abcdef"], into=memoryview(bytearray(2)))


def test_a_closed_link_wakes_who_waits_in_another_thread(served: Host, parrot: Parrot) -> None:
    link = reach(served)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(link.ask, {"kind": "hold"})
        assert parrot.holding.wait(SOON)
        link.close()
        with pytest.raises(PeerLost):
            waiting.result(SOON)


@pytest.mark.parametrize("sockets", [2, 4])
def test_large_payloads_travel_over_several_sockets(served: Host, parrot: Parrot, sockets: int) -> None:
    link = reach(served, sockets=sockets)
    sent = random.Random(1).randbytes((3 << 20) + 12345)
    place = bytearray(len(sent))
    reply = link.ask({"kind": "say", "n": 1}, [sent[:1000], sent[1000:2_000_000], sent[2_000_000:]], memoryview(place))
    assert bytes(place) == sent
    assert reply.payload.nbytes == len(sent)
    assert bytes(link.ask({"kind": "say"}, [b"small"]).payload) == b"small"
    assert len(served.peers()) == 1, "it is one peer"
    link.close()
    assert parrot.someone_left.acquire(timeout=SOON)
    assert parrot.gone == ["worker-0"]


def test_a_caller_that_dies_in_the_middle_of_a_large_payload_is_noticed(served: Host, parrot: Parrot) -> None:
    link = reach(served, sockets=3)
    link._sock.sendall(frames.HEADER.pack(frames.STRIPED, 14, 3 << 20) + b'{"kind":"say"}' + bytes(1 << 20))
    link.close()  # the other stripes never come
    assert parrot.someone_left.acquire(timeout=SOON)
    assert parrot.handled == []


def test_a_host_that_dies_in_the_middle_of_a_large_answer_is_noticed(served: Host, parrot: Parrot) -> None:
    link = reach(served, sockets=3)
    pending = link.begin({"kind": "big", "size": 64 << 20})
    threading.Timer(0.05, served.close).start()
    with pytest.raises(PeerLost):
        pending.wait()
        link.ask({"kind": "big", "size": 64 << 20})
        link.ask({"kind": "hold"})


def test_a_further_socket_needs_the_token_of_its_link(served: Host, parrot: Parrot) -> None:
    link = reach(served, "worker-0", sockets=2)
    with pytest.raises(PeerLost, match="hangs up"):
        reach(served, "worker-0", service="+0123456789abcdef", deadline=3.0)
    assert bytes(link.ask({"kind": "say"}, [b"a" * (2 << 20)]).payload) == b"a" * (2 << 20)
    link.close()


@given(size=st.integers(0, 10_000_000), count=st.integers(1, 16))
@settings(deadline=None, max_examples=200)
def test_stripes_cover_everything_once(size: int, count: int) -> None:
    found = stripes(size, count)
    assert len(found) == count
    assert [begin for begin, _ in found] + [size] == [0] + [end for _, end in found]
    assert max(end - begin for begin, end in found) <= -(-size // count) + 4096


@given(parts=st.lists(st.binary(max_size=50), max_size=6), data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_cut_is_a_range_of_the_whole(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    assert b"".join(cut([memoryview(part) for part in parts], begin, end)) == whole[begin:end]
