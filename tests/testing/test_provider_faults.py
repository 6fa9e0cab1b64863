"""Every fault does what it promises, as seen from the socket; and the provider counts what it sees.

The client here is a bare HTTP/1.1 client on asyncio's streams, so nothing between the test and the socket repairs
anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pytest
from tests.testing.provider_scripts import HELLO, WIRES

from indelible.content import Part
from indelible.models.http.sse import SseDecoder
from indelible.testing import ScriptedModel, ScriptEnded, SimulatedProvider, faults, parts, write_reply
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Fault

PATHS: Final[dict[WireName, str]] = {
    "anthropic": "/v1/messages",
    "openai": "/v1/responses",
    "openai-chat": "/v1/chat/completions",
}
MESSAGES: Final = [{"role": "user", "content": "Hello"}]
BODIES: Final[dict[WireName, dict[str, Any]]] = {
    "anthropic": {"model": "m", "max_tokens": 9, "stream": True, "messages": MESSAGES},
    "openai": {"model": "m", "stream": True, "input": "Hello"},
    "openai-chat": {"model": "m", "stream": True, "messages": MESSAGES, "stream_options": {"include_usage": True}},
}
WAITING_S: Final = 100.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    whole: bool
    """Whether the body came to its proper end, and the connection was not just closed."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


@asynccontextmanager
async def ask(
    provider: SimulatedProvider, wire: WireName, **more: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send a request, and read the answer by hand."""
    address = urlsplit(provider.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps({**BODIES[wire], **more}).encode()
    head = [f"POST {PATHS[wire]} HTTP/1.1", "host: test", "anthropic-version: 2023-06-01"]
    head += ["content-type: application/json", f"content-length: {len(body)}"]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    raw = await reader.readuntil(b"\r\n\r\n")
    status, *lines = raw.decode().strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), {name.lower(): value for name, value in headers.items()}


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readuntil(b"\r\n"), 16)
    return (await reader.readexactly(size + 2))[:-2]


async def fetch(provider: SimulatedProvider, wire: WireName, **more: Any) -> Answer:
    chunks: list[bytes] = []
    async with asyncio.timeout(WAITING_S), ask(provider, wire, **more) as (reader, _):
        status, headers = await read_head(reader)
        assert headers["transfer-encoding"] == "chunked"
        try:
            while chunk := await read_chunk(reader):
                chunks.append(chunk)
        except asyncio.IncompleteReadError:
            return Answer(status, headers, chunks, whole=False)
    return Answer(status, headers, chunks, whole=True)


async def receive(wire: WireName, fault: Fault | None) -> Answer:
    """The answer with this fault to a script that says hello."""
    async with SimulatedProvider([HELLO], [fault]) as provider:
        return await fetch(provider, wire)


def read_events(chunks: Sequence[bytes]) -> list[tuple[str, bytes]]:
    decoder = SseDecoder()
    return [(event.event, event.data) for chunk in chunks for event in decoder.feed(chunk)]


# --- no fault ----------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_without_a_fault_the_answer_is_the_reply_one_chunk_per_event(wire: WireName) -> None:
    answer = await receive(wire, None)
    events = write_reply(wire, HELLO, model="m")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["request-id"] == "req_000000000001"
    assert answer.whole
    assert len(answer.chunks) == len(events)
    assert [name for name, _ in read_events(answer.chunks)] == [name for name, _ in read_events(events)]


async def test_the_same_script_gives_the_same_bytes() -> None:
    assert (await receive("openai", None)).body == (await receive("openai", None)).body


# --- before the body ---------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_status_answers_with_any_body_and_headers_and_asks_no_model(wire: WireName) -> None:
    model = ScriptedModel()
    page = faults.Status(502, b"<html>nginx</html>", {"content-type": "text/html", "retry-after": "3"})
    async with SimulatedProvider(model, [page, faults.Status(418, {"error": "tea"})]) as provider:
        first = await fetch(provider, wire)
        second = await fetch(provider, wire)
    assert (first.status, first.body) == (502, b"<html>nginx</html>")
    assert (first.headers["content-type"], first.headers["retry-after"]) == ("text/html", "3")
    assert (second.status, second.body) == (418, b'{"error":"tea"}')
    assert second.headers["content-type"] == "application/json"
    assert model.calls == []


async def test_hang_sends_nothing_until_the_client_goes() -> None:
    async with SimulatedProvider([], [faults.Hang()]) as provider, asyncio.timeout(WAITING_S):
        async with ask(provider, "openai") as (reader, _):
            await provider.wait_for_requests(1)
            assert (provider.open_streams, provider.drops) == (1, 0)
            reading = asyncio.create_task(reader.read(1))
        await provider.wait_for_drops(1)
        assert await reading == b""
        assert provider.open_streams == 0


async def test_slow_head_asks_the_model_only_when_it_is_let_go() -> None:
    model, go_on = ScriptedModel([HELLO]), asyncio.Event()
    async with SimulatedProvider(model, [faults.SlowHead(go_on)]) as provider, asyncio.timeout(WAITING_S):
        fetching = asyncio.create_task(fetch(provider, "anthropic"))
        await provider.wait_for_requests(1)
        assert model.calls == []
        assert not fetching.done()
        go_on.set()
        answer = await fetching
    assert answer.whole
    assert len(model.calls) == 1


async def test_content_type_is_what_the_fault_says() -> None:
    answer = await receive("openai-chat", faults.ContentType("text/html"))
    assert answer.headers["content-type"] == "text/html"
    assert answer.body == (await receive("openai-chat", None)).body


# --- in the body -------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("clean", [True, False])
async def test_cut_ends_the_body_at_the_byte(wire: WireName, clean: bool) -> None:
    whole = (await receive(wire, None)).body
    for at_byte in (0, 1, 200, len(whole) - 1):
        answer = await receive(wire, faults.Cut(at_byte, clean))
        assert answer.status == 200
        assert answer.body == whole[:at_byte]
        assert answer.whole is clean
    assert (await receive(wire, faults.Cut(len(whole), clean))).whole


async def test_a_body_that_was_cut_is_no_drop() -> None:
    async with SimulatedProvider([HELLO], [faults.Cut(100, clean=False)]) as provider:
        await fetch(provider, "openai")
        assert provider.drops == 0


async def test_stall_says_the_rest_when_it_is_let_go() -> None:
    whole = (await receive("anthropic", None)).body
    go_on = asyncio.Event()
    async with (
        asyncio.timeout(WAITING_S),
        SimulatedProvider([HELLO], [faults.Stall(150, go_on)]) as provider,
        ask(provider, "anthropic") as (reader, _),
    ):
        await read_head(reader)
        begun = await read_chunk(reader)
        assert begun == whole[:150]
        assert provider.open_streams == 1
        go_on.set()
        said = await reader.readuntil(b"0\r\n\r\n")
    assert b"message_stop" in said


async def test_stall_for_ever_ends_when_the_client_goes() -> None:
    async with SimulatedProvider([HELLO], [faults.Stall(0)]) as provider, asyncio.timeout(WAITING_S):
        async with ask(provider, "openai-chat") as (reader, _):
            status, _ = await read_head(reader)
            assert status == 200
        await provider.wait_for_drops(1)


@pytest.mark.parametrize("wire", WIRES)
async def test_error_event_ends_the_stream_after_so_many_events(wire: WireName) -> None:
    right = await receive(wire, None)
    wrong = await receive(wire, faults.ErrorEvent(2, {"error": {"message": "tea", "code": "teapot"}}))
    assert wrong.whole
    assert wrong.chunks[:2] == right.chunks[:2]
    (_, data) = read_events(wrong.chunks[2:])[0]
    assert json.loads(data) == {"error": {"message": "tea", "code": "teapot"}}
    assert len(wrong.chunks) == 3


@pytest.mark.parametrize("wire", WIRES)
async def test_malformed_spoils_one_event_and_the_rest_follows(wire: WireName) -> None:
    right, wrong = await receive(wire, None), await receive(wire, faults.Malformed(3))
    events = read_events(wrong.chunks)
    assert len(wrong.chunks) == len(right.chunks) == len(events)
    assert wrong.chunks[:3] + wrong.chunks[4:] == right.chunks[:3] + right.chunks[4:]
    with pytest.raises(json.JSONDecodeError):
        json.loads(events[3][1])


@pytest.mark.parametrize("wire", WIRES)
async def test_half_a_character_ends_a_data_line(wire: WireName) -> None:
    wrong = await receive(wire, faults.HalfCharacter(2))
    with pytest.raises(UnicodeDecodeError, match=r"invalid continuation|unexpected end of data"):
        read_events(wrong.chunks)[2][1].decode()


@pytest.mark.parametrize("wire", WIRES)
async def test_chunked_splits_the_body_anywhere(wire: WireName) -> None:
    right, wrong = await receive(wire, None), await receive(wire, faults.Chunked([1, 7, 2]))
    assert wrong.body == right.body
    assert [len(chunk) for chunk in wrong.chunks[:6]] == [1, 7, 2, 1, 7, 2]
    assert read_events(wrong.chunks) == read_events(right.chunks)


async def test_chunked_gives_the_client_time_to_read_piece_by_piece() -> None:
    reads = 0
    async with (
        SimulatedProvider([HELLO], [faults.Chunked([10])]) as provider,
        asyncio.timeout(WAITING_S),
        ask(provider, "openai") as (reader, _),
    ):
        read = b""
        while not read.endswith(b"0\r\n\r\n"):
            read += await reader.read(2**16)
            reads += 1
    assert reads > 20


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(("fault", "mark"), [(faults.Crlf(), b"\r\n\r\n"), (faults.Comments(), b": a comment\n")])
async def test_other_ways_to_write_the_same_events(wire: WireName, fault: Fault, mark: bytes) -> None:
    right, wrong = await receive(wire, None), await receive(wire, fault)
    assert wrong.body.count(mark) == len(right.chunks)
    assert read_events(wrong.chunks) == read_events(right.chunks)


async def test_faults_are_for_the_requests_in_order_and_then_there_are_none() -> None:
    async with SimulatedProvider([HELLO, HELLO], [None, faults.Status(500)]) as provider:
        statuses = [(await fetch(provider, "openai-chat")).status for _ in range(3)]
        assert statuses == [200, 500, 200]
        assert not provider.faults


# --- what the model does -----------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_hangs_leaves_the_stream_hanging_and_a_stop_reaches_it(wire: WireName) -> None:
    closed = asyncio.Event()

    async def speak_and_hang(_: Any) -> AsyncIterator[Any]:
        try:
            yield parts.text_delta("t", "Hello")
            await asyncio.Event().wait()
        finally:
            closed.set()

    async with SimulatedProvider([speak_and_hang]) as provider, asyncio.timeout(WAITING_S):
        async with ask(provider, wire) as (reader, _):
            await read_head(reader)
            await reader.readuntil(b"Hello")
            assert (provider.open_streams, provider.drops) == (1, 0)
        await provider.wait_for_drops(1)
        await closed.wait()
        assert provider.open_streams == 0


class Speaker:
    """A stream that is no generator, so that nobody closes it but who was given it."""

    def __init__(self, said: Sequence[Part]) -> None:
        self.is_closed = False
        self._said = list(said)

    def __aiter__(self) -> Speaker:
        return self

    async def __anext__(self) -> Part:
        return self._said.pop(0)

    async def aclose(self) -> None:
        self.is_closed = True


async def test_a_model_is_read_to_its_finish_and_then_closed() -> None:
    speaker = Speaker([*HELLO, parts.text_delta("u", "What nobody hears.")])
    async with SimulatedProvider([lambda _: speaker]) as provider:
        answer = await fetch(provider, "anthropic")
    assert answer.whole
    assert b"What nobody hears" not in answer.body
    assert speaker.is_closed


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stream_without_a_finish_ends_without_the_last_word(wire: WireName) -> None:
    async with SimulatedProvider([HELLO[:-1]]) as provider:
        answer = await fetch(provider, wire)
    assert answer.whole
    assert b"Hello" in answer.body
    for last_word in (b"message_stop", b"response.completed", b"[DONE]", b'"finish_reason":"'):
        assert last_word not in answer.body


async def test_a_reply_that_was_read_to_its_end_is_no_drop() -> None:
    async with SimulatedProvider([HELLO] * 3) as provider:
        for wire in WIRES:
            await fetch(provider, wire)
        assert provider.drops == 0
        assert provider.open_streams == 0


async def test_closing_the_provider_cuts_off_whoever_is_answered_and_counts_no_drop() -> None:
    async with asyncio.timeout(WAITING_S):
        provider = SimulatedProvider([], [faults.Hang()])
        async with provider, ask(provider, "openai") as (reader, _):
            await provider.wait_for_requests(1)
            await provider.aclose()
            assert await reader.read() == b""
        assert provider.drops == 0


async def test_a_call_past_the_script_is_refused_and_leaving_the_provider_raises_it() -> None:
    provider = SimulatedProvider([])
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(provider)
        answer = await fetch(provider, "anthropic")
        assert answer.status == 400
        assert b"invalid_request_error" in answer.body
        with pytest.raises(ScriptEnded):
            await stack.pop_all().aclose()


async def fail_after_the_script(provider: SimulatedProvider) -> None:
    async with provider:
        await fetch(provider, "anthropic")
        raise LookupError


async def test_an_error_of_the_test_is_not_hidden_by_a_script_that_ended() -> None:
    with pytest.raises(LookupError):
        await fail_after_the_script(SimulatedProvider([]))
