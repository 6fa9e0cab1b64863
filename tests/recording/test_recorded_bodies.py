"""Bodies that are no streams: judged at their close, kept in part if large (S39)."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from tests.recording.answers import JSON, Answer, Broken, Waiting, only, read_all, record

from indelible.recording.exchange import HEAD_BYTES, TAIL_BYTES

CASES: list[tuple[str, dict[str, Any], int | None, str | None]] = [
    # what it is, the answer, how many reads (None: to the end), the error
    ("json, end seen", {"script": [b'{"a":', b"1}"]}, None, None),
    ("json with space around, end seen", {"script": [b"\n [1, 2]", b" \n"]}, None, None),
    ("cut json, end seen", {"script": [b'{"a":']}, None, "unexpected end"),
    ("two documents, end seen", {"script": [b"{}", b"{}"]}, None, "unexpected end"),
    ("no json at all, end seen", {"script": []}, None, "unexpected end"),
    ("bottomless json, end seen", {"script": [b"[" * 100_000]}, None, "unexpected end"),
    ("cut json of its length, end seen", {"script": [b'{"a":'], "headers": {"content-length": "5"}}, None, None),
    ("cut problem+json", {"script": [b"{"], "content_type": "application/problem+json; a=b"}, None, "unexpected end"),
    ("cut json, compressed", {"script": [b"\x1f\x8b"], "headers": {"Content-Encoding": "gzip"}}, None, None),
    ("cut text, end seen", {"script": [b"hel"], "content_type": "text/plain"}, None, None),
    ("full length, end not seen", {"script": [b"abc", b"de"], "headers": {"Content-Length": "5"}}, 2, None),
    ("half the length", {"script": [b"abc", b"de"], "headers": {"Content-Length": "5"}}, 1, "unexpected end"),
    ("length zero, nothing read", {"script": [], "headers": {"CONTENT-LENGTH": "0"}}, 0, None),
    ("less than its length, end seen", {"script": [b"ab"], "headers": {"content-length": "9"}}, None, "unexpected end"),
    ("no number", {"script": [b"ab"], "headers": {"content-length": "-2"}, "content_type": "a/b"}, 1, "unexpected end"),
    ("compressed, its length read", {"script": [b"ab", b"c"], "headers": {"content-length": "2",
     "content-encoding": "br"}, "content_type": "a/b"}, 1, "unexpected end"),
    ("a document, end not seen", {"script": [b'{"a":1}']}, 1, None),
    ("a document, spaces are not read", {"script": [b'{"a":1}', b" \r\n"]}, 1, None),
    ("a document, more is not read", {"script": [b'{"a":1}', b"{}"]}, 1, None),
    ("a document, an error is not read", {"script": [b'{"a":1}', Broken("late")]}, 1, None),
    ("half a document, the rest is not read", {"script": [b'{"a":', b"1}"]}, 1, "unexpected end"),
    ("text, end not seen", {"script": [b"hello"], "content_type": "text/plain"}, 1, "unexpected end"),
    ("nothing read", {"script": [b"{}"]}, 0, "unexpected end"),
    ("HEAD", {"method": "HEAD", "headers": {"content-length": "100"}}, 0, None),
    ("HEAD, end seen", {"method": "HEAD"}, None, None),
    ("100", {"status": 100}, 0, None),
    ("204", {"status": 204}, 0, None),
    ("304, end seen", {"status": 304}, None, None),
    ("an error status", {"status": 529, "script": [b"{}"]}, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("options", "reads", "error"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_s39_a_body_that_is_no_stream_is_judged_at_its_close(
    options: dict[str, Any], reads: int | None, error: str | None
) -> None:
    script = options.get("script", [])
    rest = {name: value for name, value in options.items() if name != "script"}
    response, log = record(Answer(*script, **{"content_type": JSON, **rest}))
    if reads is None:
        await read_all(response)
    for _ in range(reads or 0):
        await response.read()
    assert log.attempts == []
    await response.aclose()

    assert (only(log).status, only(log).error) == ("completed" if error is None else "failed", error)


@pytest.mark.parametrize("reads", [0, 1, 2])
async def test_s39_a_close_error_makes_it_failed_whatever_was_read(reads: int) -> None:
    error = Broken("no goodbye")
    response, log = record(Answer(b"{}", content_type=JSON, closes=[error]))
    for _ in range(reads):
        await response.read()
    with pytest.raises(Broken) as caught:
        await response.aclose()

    assert caught.value is error
    assert (only(log).status, only(log).error) == ("failed", "no goodbye")


# --- reading nothing of its own ---


async def test_a_close_reads_nothing_that_the_caller_did_not_read() -> None:
    for answer in (
        Answer(b"{}", b" ", content_type=JSON),
        Answer(b"{", b"}", content_type=JSON),
        Answer(b"{}", b"\n", content_type=JSON, headers={"content-length": "3"}),
        Answer(b"{}", b"\n", content_type="text/plain"),
    ):
        response, _ = record(answer)
        await response.read()
        await response.aclose()
        assert len(answer.script) == 1


async def test_a_document_is_complete_though_its_end_has_not_arrived() -> None:
    answer = Waiting(b"{}")
    response, log = record(answer)
    await response.read()
    reader = asyncio.create_task(response.read())
    await answer.is_waiting.wait()
    await response.aclose()

    assert (answer.waits, answer.closed) == (["begun"], 1)
    assert only(log).status == "completed"
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert only(log).status == "completed"


# --- large bodies ---

EVENT_BYTES = 128
EVENTS_KEPT = (HEAD_BYTES + TAIL_BYTES) // EVENT_BYTES


def make_events(letter: str, count: int) -> bytes:
    return b'data: {"a":"%b"}\n\n' % (letter.encode() * (EVENT_BYTES - 16)) * count


@pytest.mark.parametrize("piece_bytes", [100, 16_384, 1_000_000, 10_000_000])
async def test_of_a_large_body_head_and_tail_are_kept_and_memory_is_bounded(piece_bytes: int) -> None:
    """Redacting may take the events at the gap away, but not more."""
    half = EVENTS_KEPT // 2
    missing = make_events("m", 40_000)
    body = make_events("h", half) + missing + make_events("t", half)
    pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]
    response, log = record(Answer(*pieces))
    tracemalloc.start()
    try:
        for _ in pieces:
            await response.read()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await response.read()

    kept = only(log).response_body
    assert kept.startswith(make_events("h", half - 2).decode())
    assert kept.endswith(make_events("t", half - 2).decode())
    assert "mm" not in kept
    assert str(len(missing)) in kept.replace(",", "")
    assert peak_bytes < 4 * (HEAD_BYTES + TAIL_BYTES)


async def test_a_body_that_just_fits_is_kept_whole() -> None:
    body = make_events("x", EVENTS_KEPT)
    assert len(body) == HEAD_BYTES + TAIL_BYTES
    response, log = record(Answer(*(body[at : at + 1000] for at in range(0, len(body), 1000))))
    await read_all(response)

    assert only(log).response_body == body.decode()


async def test_a_document_that_is_too_large_to_judge_is_believed_if_its_end_was_seen() -> None:
    for reads, status in ((2, "completed"), (1, "failed")):
        response, log = record(Answer(b"[" + b"1," * 200_000, content_type=JSON))
        for _ in range(reads):
            await response.read()
        await response.aclose()
        assert only(log).status == status


async def test_a_json_answer_over_the_limit_is_shortened_and_stays_a_document() -> None:
    items = [{"id": number, "password": "kestrel", "text": "words " * 50} for number in range(2000)]
    for document in ({"items": items}, {"items": items * 10}):
        body = json.dumps(document).encode()
        assert len(body) > HEAD_BYTES + TAIL_BYTES
        response, log = record(Answer(*(body[at : at + 65536] for at in range(0, len(body), 65536)), content_type=JSON))
        await read_all(response)
        await response.aclose()
        kept = json.loads(only(log).response_body)
        assert kept["items"][0] == {"id": 0, "password": "[redacted]", "text": "words " * 50}
        assert len(only(log).response_body.encode()) <= HEAD_BYTES + TAIL_BYTES


async def test_an_event_stream_shorter_than_its_length_has_failed() -> None:
    response, log = record(Answer(b"data: {}\n\n", headers={"content-length": "99"}))
    await read_all(response)
    assert (only(log).status, only(log).error) == ("failed", "unexpected end")
