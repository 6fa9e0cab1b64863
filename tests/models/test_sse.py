"""Decoding server-sent events by the standard, however the network splits the bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.models.http.sse import EventTooLarge, SseDecoder, SseEvent

STREAM = (
    "\ufeff: a comment\n\n"
    'event: part\r\nid: c1\r\ndata: {"a": "ä"}\r\n\r\n'
    "data: one\rdata:two\rdata:  three\r\r"
    "event: nothing\n\n"
    "data\n\n"
    "id: c\0\nretry: 10\nunknown: x\ndata: \N{FAMILY}\n\n"
    "id\ndata: no id\n\n"
    "data: cut"
).encode()  # fmt: skip
EVENTS = [
    SseEvent("part", '{"a": "ä"}'.encode(), "c1"),
    SseEvent("message", b"one\ntwo\n three", "c1"),
    SseEvent("message", b"", "c1"),
    SseEvent("message", "\N{FAMILY}".encode(), "c1"),
    SseEvent("message", b"no id", ""),
]


def decode(*chunks: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_a_stream_is_read_as_the_standard_says() -> None:
    assert decode(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_however_a_stream_is_cut_the_same_events_come_out(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert decode(*(STREAM[start:end] for start, end in itertools.pairwise(places))) == EVENTS


def test_a_stream_that_comes_byte_by_byte_is_the_same() -> None:
    assert decode(*(bytes([byte]) for byte in STREAM)) == EVENTS


@given(st.text(alphabet="a:\r\n \ufeff", max_size=30), st.data())
def test_any_text_is_the_same_whole_and_in_pieces(text: str, data: st.DataObject) -> None:
    stream = text.replace("a", "data").encode()
    cut = data.draw(st.integers(0, len(stream)))
    assert decode(stream[:cut], stream[cut:]) == decode(stream) == decode(*(bytes([byte]) for byte in stream))


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_there_with_its_last_byte_whatever_ends_its_lines(ending: bytes) -> None:
    decoder = SseDecoder()
    for number in range(3):
        last = b"%d" % number
        emitted = decoder.feed(b"data: " + last + ending + ending)
        assert [event.data for event in emitted] == [last]


def test_an_event_without_an_end_is_bounded() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLarge, match="larger than 1,000 bytes"):
        decoder.feed(b"x" * 100)


def test_many_lines_of_one_event_are_bounded_too() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"data: 123456789\n" * 100)
    with pytest.raises(EventTooLarge, match="larger than 1,000 bytes"):
        decoder.feed(b"data: 1\n")


def test_empty_lines_of_one_event_are_bounded_too() -> None:
    with pytest.raises(EventTooLarge, match="larger than 1,000 bytes"):
        SseDecoder(max_event_bytes=1000).feed(b"data:\n" * 1001)


def test_many_small_events_are_not_too_large_together() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    for _ in range(200):
        assert len(decoder.feed(b"data: 1234567890\n\n")) == 1


def test_a_long_line_in_many_chunks_is_one_event() -> None:
    """bench/growth.py measures that its cost grows with its length and no faster."""
    decoder = SseDecoder()
    chunks = [b"data: ", *[b"x" * 64] * 100_000]
    assert [event for chunk in chunks for event in decoder.feed(chunk)] == []
    (event,) = decoder.feed(b"\n\n")
    assert event.data == b"x" * 6_400_000
