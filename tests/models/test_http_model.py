"""What all wire formats share: keep-alives, and how long to wait for the rest after a complete reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from indelible.clock import SystemClock
from indelible.content import Finish, KeepAlive, Part, TextDelta
from indelible.models.http.hooks import Answer, HttpRequest
from indelible.models.http.http_model import HttpModel
from indelible.models.profile import Profile
from indelible.models.protocol import Call
from indelible.models.providers.openai_chat.response import ChatWire

WORD = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


class Body:
    """A body that comes in these pieces; then it ends, or says nothing more."""

    status = 200
    method = "POST"

    def __init__(self, pieces: Sequence[bytes], *, ends: bool = True, again: bytes | None = None) -> None:
        self.headers = {"content-type": "text/event-stream"}
        self.is_closed = False
        self.is_settled = False
        self.reads = 0
        self._pieces = list(pieces)
        self._ends = ends
        self._again = again

    async def read(self) -> bytes:
        self.reads += 1
        if self._pieces:
            return self._pieces.pop(0)
        if self._again is not None:
            await asyncio.sleep(0)
            return self._again
        if not self._ends:
            await asyncio.get_running_loop().create_future()
        return b""

    def settle(self) -> None:
        self.is_settled = True

    async def aclose(self) -> None:
        self.is_closed = True

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[Answer]:
        try:
            yield self
        finally:
            await self.aclose()


async def feed(body: Body) -> list[Part]:
    model = HttpModel(
        ChatWire(official=False),
        provider="test",
        name="m",
        base_url="http://provider.test/v1",
        headers={},
        profile=Profile(),
        http=body,
        clock=SystemClock(),
    )
    heard = [part async for part in model.stream(Call(messages=[]))]
    assert body.is_closed
    return heard


async def test_a_comment_is_a_sign_of_life() -> None:
    """OpenRouter and DeepSeek send nothing else while a request waits, for minutes."""
    heard = await feed(Body([b": OPENROUTER PROCESSING\n\n", b": keep-alive\n\n", WORD, END, DONE]))
    assert heard[:2] == [KeepAlive(), KeepAlive()]
    assert isinstance(heard[-1], Finish)


async def test_half_an_event_is_a_sign_of_life_too() -> None:
    assert (await feed(Body([WORD[:9], WORD[9:], END, DONE])))[0] == KeepAlive()


async def test_usage_behind_the_end_is_waited_for_and_counted() -> None:
    finish = (await feed(Body([WORD, END, USAGE, DONE])))[-1]
    assert isinstance(finish, Finish)
    assert finish.usage is not None
    assert (finish.usage.input_tokens, finish.usage.output_tokens) == (7, 2)


async def test_a_response_is_settled_when_the_reply_is_complete_and_not_before() -> None:
    cut, whole = Body([WORD]), Body([WORD, END])
    await feed(cut)
    await feed(whole)
    assert (cut.is_settled, whole.is_settled) == (False, True)


async def test_a_provider_that_keeps_the_connection_open_does_not_keep_the_reply() -> None:
    assert isinstance((await feed(Body([WORD, END, DONE], ends=False)))[-1], Finish)


async def test_a_provider_that_goes_on_talking_behind_its_end_does_not_keep_the_reply_either() -> None:
    assert isinstance((await feed(Body([WORD, END, DONE], again=b": still here\n\n")))[-1], Finish)


async def test_garbage_behind_the_end_makes_a_reply_no_less_complete() -> None:
    for garbage in (b"data: {broken\n\n", b'data: {"error":{"message":"late"}}\n\n', b"event: error\ndata: {}\n\n"):
        for body in (Body([WORD, END + garbage]), Body([WORD, END, garbage])):
            assert isinstance((await feed(body))[-1], Finish)


async def test_without_its_end_a_reply_has_no_finish() -> None:
    heard = await feed(Body([WORD, USAGE, DONE]))
    assert TextDelta in map(type, heard)
    assert not any(isinstance(part, Finish) for part in heard)
