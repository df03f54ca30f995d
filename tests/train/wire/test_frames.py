"""Messages over a socket pair: what goes in comes out, wherever the stream is cut and wherever the payload lands."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.wire import frames
from shoal.train.wire.frames import Ended, Garbled, receive, send

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@given(meta=st.dictionaries(st.text(max_size=8), JSON, max_size=5), parts=st.lists(st.binary(max_size=300), max_size=8))
@settings(deadline=None, max_examples=80)
def test_a_message_comes_out_as_it_went_in(meta: dict[str, Any], parts: list[bytes]) -> None:
    left, right = socket.socketpair()
    with left, right:
        sent = send(left, meta, parts)
        left.shutdown(socket.SHUT_WR)
        got, payload = receive(right)
        assert got == meta
        assert bytes(payload) == b"".join(parts)
        assert sent == frames.HEADER.size + len(frames.encode(meta)) + len(payload)
        with pytest.raises(Ended) as ended:
            receive(right)
        assert ended.value.clean


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_message_cut_anywhere_is_an_unclean_end(data: st.DataObject) -> None:
    text = frames.encode({"kind": "push", "space": "0.0"})
    whole = frames.HEADER.pack(frames.MAGIC, len(text), 50) + text + bytes(50)
    cut = data.draw(st.integers(1, len(whole) - 1))
    left, right = socket.socketpair()
    with left, right:
        left.sendall(whole[:cut])
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(Ended) as ended:
            receive(right)
        assert not ended.value.clean


@given(junk=st.binary(min_size=16, max_size=64).filter(lambda junk: not junk.startswith(frames.MAGIC)))
@settings(deadline=None, max_examples=40)
def test_what_is_no_message_is_garbled(junk: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(junk)
        with pytest.raises(Garbled):
            receive(right)


@pytest.mark.parametrize("text", [b"[1]", b"7", b"{", b"\xff\xfe", b"[" * 5000])
def test_meta_that_is_no_object_is_garbled(pair: tuple[socket.socket, socket.socket], text: bytes) -> None:
    pair[0].sendall(frames.HEADER.pack(frames.MAGIC, len(text), 0) + text)
    with pytest.raises(Garbled):
        receive(pair[1])


@pytest.mark.parametrize(("meta", "payload"), [(frames.META_LIMIT + 1, 0), (2, frames.PAYLOAD_LIMIT + 1)])
def test_sizes_over_the_limit_are_refused_before_anything_is_allocated(
    pair: tuple[socket.socket, socket.socket], meta: int, payload: int
) -> None:
    pair[0].sendall(struct.pack("!4sIQ", frames.MAGIC, meta, payload))
    with pytest.raises(Garbled, match="over the limit"):
        receive(pair[1])


def test_a_meta_too_large_to_send_is_refused_with_its_size() -> None:
    with pytest.raises(ValueError, match="send it as payload"):
        frames.encode({"kind": "x" * (frames.META_LIMIT + 1)})


def test_a_payload_too_large_to_send_is_refused_before_anything_is_sent(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PAYLOAD_LIMIT", 4)
    with pytest.raises(ValueError, match=r"has 5 bytes; the limit is 4: send it in parts"):
        send(pair[0], {"kind": "x"}, [b"123", b"45"])
    send(pair[0], {"kind": "x"}, [b"1234"])
    assert receive(pair[1]) == ({"kind": "x"}, b"1234")


def test_a_payload_for_which_there_is_no_memory_is_garbled(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PAYLOAD_LIMIT", 1 << 62)
    pair[0].sendall(struct.pack("!4sIQ", frames.MAGIC, 2, 1 << 61) + b"{}")
    with pytest.raises(Garbled, match="not so much memory"):
        receive(pair[1])


def test_a_payload_lands_in_the_place_named(pair: tuple[socket.socket, socket.socket]) -> None:
    place = bytearray(12)
    seen: list[tuple[dict[str, Any], int]] = []

    def where(meta: dict[str, Any], size: int) -> memoryview:
        seen.append((meta, size))
        return memoryview(place)[2:]

    send(pair[0], {"kind": "part"}, [b"abc", bytearray(b"defg")])
    _meta, payload = receive(pair[1], where)
    assert seen == [({"kind": "part"}, 7)]
    assert bytes(place) == b"\0\0abcdefg\0\0\0"
    payload[0] = ord("X")
    assert place[2] == ord("X")


def test_a_payload_larger_than_its_place_is_garbled_and_the_place_untouched(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    place = bytearray(3)
    send(pair[0], {}, [b"four"])
    with pytest.raises(Garbled, match="does not fit"):
        receive(pair[1], lambda _meta, _size: memoryview(place))
    assert bytes(place) == bytes(3)


def test_a_slow_reader_gets_everything_of_many_large_buffers(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    parts = [bytes([number % 251]) * (number * 7) for number in range(2500)]  # more than one sendmsg takes
    sender = threading.Thread(target=send, args=(left, {"kind": "big"}, parts))
    sender.start()
    _meta, payload = receive(right)
    sender.join()
    assert bytes(payload) == b"".join(parts)


def test_buffers_of_other_formats_travel_as_their_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    import array

    numbers = array.array("f", [1.0, 2.0, 3.0])
    send(pair[0], {}, [memoryview(numbers)])
    back = array.array("f", bytes(12))
    receive(pair[1], lambda _meta, _size: memoryview(back))
    assert back == numbers
