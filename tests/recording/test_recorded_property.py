"""Whatever comes and however it is read: one entry, and a caller that can not tell that it is recorded."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from tests.recording.answers import Answer, Broken, only

from indelible.models.http.hooks import HttpResponse
from indelible.recording import ExchangeLog, wrap

STREAMS = ["text/event-stream", "Text/Event-Stream; charset=utf-8"]
TYPES = [
    *STREAMS,
    "application/x-ndjson",
    "application/json",
    "application/problem+json",
    "text/plain",
    "application/octet-stream",
    "",
]
BODIES = st.one_of(
    st.sampled_from([b"", b"{}", b'{"a": [1, 2.5, null]}', b"[1]\n", b'"text"', b'{"a":', b"{}{}", b"data: x\n\n"]),
    st.text("ab \n", max_size=60).map(str.encode),
    st.binary(max_size=60),
)


class Case(NamedTuple):
    """An answer, and what its caller does: True reads, False closes."""

    script: list[bytes | BaseException]
    closes: list[BaseException | None]
    headers: dict[str, str]
    status: int
    method: str
    steps: list[bool]

    @property
    def promised_bytes(self) -> int:
        """How long the body is at least, by the headers; 0 if they do not say so."""
        has_no_body = self.method == "HEAD" or self.status in {101, 204, 304}
        length = self.headers.get("Content-Length", "")
        return int(length) if length.isdigit() and not has_no_body else 0

    def make_answer(self) -> Answer:
        answer = Answer(*self.script, closes=self.closes, status=self.status, method=self.method)
        answer.headers = self.headers
        return answer


@st.composite
def cases(draw: st.DrawFn) -> Case:
    body = draw(BODIES)
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(body) - 1)), max_size=5)))
    pieces = [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    script: list[bytes | BaseException] = [piece for piece in pieces if piece]
    if draw(st.booleans()):
        error = draw(st.sampled_from([Broken("reading"), asyncio.CancelledError(), EOFError()]))
        script.insert(draw(st.integers(0, len(script))), error)
    headers = {draw(st.sampled_from(["Content-Type", "content-type"])): draw(st.sampled_from(TYPES))}
    length = draw(st.sampled_from([None, None, len(body), len(body) + 1, max(0, len(body) - 1), "odd"]))
    if length is not None:
        headers["Content-Length"] = str(length)
    whole = [True] * (len(script) + draw(st.integers(0, 2)))
    return Case(
        script=script,
        closes=draw(st.lists(st.sampled_from([None, Broken("closing"), asyncio.CancelledError()]), max_size=2)),
        headers=headers,
        status=draw(st.sampled_from([200, 200, 200, 101, 204, 304, 500])),
        method=draw(st.sampled_from(["POST", "POST", "HEAD"])),
        steps=draw(st.one_of(st.lists(st.booleans(), max_size=12), st.lists(st.booleans()).map(lambda s: whole + s))),
    )


async def take(response: HttpResponse, *, reads: bool) -> object:
    """What the caller gets of one step: a piece, nothing, or the very error."""
    try:
        if reads:
            return await response.read()
        await response.aclose()
    except (Exception, asyncio.CancelledError) as error:
        return error
    return None


def is_same(one: object, other: object) -> bool:
    return one is other if isinstance(one, BaseException) else one == other


@given(cases())
async def test_the_caller_can_not_tell_that_it_is_recorded(case: Case) -> None:
    plain, seen = case.make_answer(), case.make_answer()
    response = wrap(seen, ExchangeLog())

    assert (response.status, response.method, response.headers) == (plain.status, plain.method, plain.headers)
    for reads in case.steps:
        assert is_same(await take(plain, reads=reads), await take(response, reads=reads))
    assert plain.closed == seen.closed


@given(cases())
async def test_there_is_exactly_one_entry_and_it_says_what_the_caller_saw(case: Case) -> None:
    log = ExchangeLog()
    response = wrap(case.make_answer(), log)
    content_type = next(value for name, value in case.headers.items() if name.lower() == "content-type")
    read_before_counted = b""
    close_errors: list[object] = []
    end_seen = False
    for reads in case.steps:
        was_open = not log.attempts
        got = await take(response, reads=reads)
        if was_open and isinstance(got, bytes):
            read_before_counted += got
            end_seen |= got == b""
        if isinstance(got, BaseException) and not reads:
            close_errors.append(got)

        failed_at_once = isinstance(got, BaseException)
        ended_at_once = end_seen and content_type in STREAMS
        assert len(log.attempts) == int(not was_open or not reads or failed_at_once or ended_at_once)
    log.finalise()

    attempt = only(log)
    assert log.dropped == 0
    assert (attempt.number, attempt.status_code) == (1, case.status)
    assert (attempt.status == "failed") == (attempt.error is not None)
    if close_errors:
        told = "closing" if isinstance(close_errors[0], Broken) else "cancelled while closing"
        assert told in str(attempt.error)
    elif end_seen and content_type in STREAMS:
        is_short = len(read_before_counted) < case.promised_bytes
        assert attempt.error == ("unexpected end" if is_short else None)
    if content_type == "text/plain" and set(read_before_counted) <= set(b"ab \n"):
        assert attempt.response_body == read_before_counted.decode()
