"""One request to the simulated provider, and its response; a whole reply as bytes, for tests that need no network.

The head is sent with the first event, not before. So a model that fails before its first part is an error status, and
one that fails later is an error event; a model that hangs leaves the stream hanging, and one that ends without a finish
ends the body without the wire format's final event. A fault that replaces the response (a status, a hang) takes effect
before the model is called, so it does not use up a script.

A stored response (OpenAI's `store`) is kept as the history that it ends: a request that names it gets that history
before its own messages. It is stored before its last event is sent, because the next request may follow at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec
from aiohttp import web

from indelible.content import Finish, Part, StreamError
from indelible.content.assemble import assemble
from indelible.errors import ModelFailed
from indelible.models.failures.classify import classify
from indelible.models.protocol import Call, Model, PromptMessage
from indelible.testing.provider.anthropic import AnthropicDialect
from indelible.testing.provider.dialect import Dialect, ParsedRequest, ReplyWriter, encode_json
from indelible.testing.provider.faults import Body, ContentType, Fault, Hang, Refusal, Severed, SlowHead, Status, bend
from indelible.testing.provider.openai_chat import ChatDialect
from indelible.testing.provider.openai_responses import ResponsesDialect

WireName = Literal["anthropic", "openai", "openai-chat"]

DIALECTS: Final[dict[WireName, Dialect]] = {
    "anthropic": AnthropicDialect(),
    "openai": ResponsesDialect(),
    "openai-chat": ChatDialect(),
}

_EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
_JSON: Final = "application/json"
_WIRES: Final[dict[str, WireName]] = {dialect.path: wire for wire, dialect in DIALECTS.items()}
_SHAPE_ERRORS: Final = (TypeError, AttributeError, LookupError, ValueError)
"""What parsing raises for JSON of an unexpected shape."""


def write_reply(wire: WireName, parts: Iterable[Part], *, model: str = "simulated") -> list[bytes]:
    """The events of a reply with these parts. Usage is included; an error part becomes an error event."""
    parts = list(parts)
    dialect = DIALECTS[wire]
    body = {"model": model, "stream_options": {"include_usage": True}}
    named = next((part.response_id for part in parts if isinstance(part, Finish)), None)
    reply = dialect.open_reply(
        ParsedRequest(model=model, body=body, messages=[]), named or f"{dialect.reply_prefix}simulated"
    )
    events: list[bytes] = []
    for part in parts:
        if isinstance(part, StreamError):
            return events + reply.write_failure(dialect.refuse_failure(classify(part)))
        events += reply.write(part)
    return events


class Tally:
    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def add(self) -> None:
        self.count += 1
        for wanted, waiter in self._waiting:
            if wanted <= self.count and not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, wanted: int) -> None:
        """Wait until the count reaches `wanted`."""
        if self.count >= wanted:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (wanted, waiter)
        self._waiting.append(entry)
        try:
            await waiter
        finally:
            self._waiting.remove(entry)


class SeenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client sent. Header names are in lower case; `body` and `call` are None if they could not be parsed."""

    wire: WireName
    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any] | None = None
    call: Call | None = None


class ProviderState:
    """What all exchanges share: the model, the scheduled faults, the requests and the stored responses."""

    def __init__(self, model: Model, faults: Iterable[Fault | None], require_key: str | None) -> None:
        self.model = model
        self.faults: deque[Fault | None] = deque(faults)
        self.require_key = require_key
        self.requests: list[SeenRequest] = []
        self.seen = Tally()
        self.stored: dict[str, list[PromptMessage]] = {}


class ProviderExchange:
    """`response` is set once its head was sent."""

    def __init__(self, state: ProviderState, request: web.Request) -> None:
        self.response: web.StreamResponse | None = None
        self._state = state
        self._request = request
        self._wire = _WIRES[request.path]
        self._dialect = DIALECTS[self._wire]
        self._id = "0"

    async def answer(self) -> web.StreamResponse:
        raw = await self._request.read()
        fault = self._state.faults.popleft() if self._state.faults else None
        headers = {name.lower(): value for name, value in self._request.headers.items()}
        body = _read_object(raw)
        outcome = self._parse_request(body, headers)
        call = None if isinstance(outcome, Refusal) else outcome[1]
        self._note(
            SeenRequest(wire=self._wire, path=self._request.path, headers=headers, raw=raw, body=body, call=call)
        )
        match fault:
            case Status():
                return await self._answer_with_status(fault)
            case Hang():
                await asyncio.Event().wait()
            case SlowHead():
                await fault.until.wait()
        if isinstance(outcome, Refusal):
            return await self.refuse(outcome)
        try:
            return await self._send_reply(*outcome, fault)
        except ModelFailed as failure:
            return await self.refuse(self._dialect.refuse_failure(failure))

    async def refuse(self, refusal: Refusal) -> web.StreamResponse:
        body = encode_json(self._dialect.show(refusal, f"req_{self._id}"))
        return await self._send(_yield_once(body), _JSON, status=refusal.status, headers=refusal.headers)

    # --- the request ---

    def _note(self, seen: SeenRequest) -> None:
        self._state.requests.append(seen)
        self._state.seen.add()
        self._id = f"{self._state.seen.count:012d}"

    def _parse_request(
        self, body: dict[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[ParsedRequest, Call] | Refusal:
        key = self._dialect.find_key(headers)
        if self._state.require_key not in {None, key}:
            return self._dialect.refuse_key(key)
        if body is None:
            return Refusal("We could not parse the JSON body of your request.")
        try:
            parsed = self._dialect.read(body, headers)
            call = parsed.build_call(self._find_history(parsed.options.previous_response_id))
            self._dialect.check(call)
        except Refusal as refusal:
            return refusal
        except _SHAPE_ERRORS as error:
            return Refusal(f"The request has an unknown shape: {error!r}")
        return parsed, call

    def _find_history(self, response_id: str | None) -> list[PromptMessage]:
        if response_id is None:
            return []
        history = self._state.stored.get(response_id)
        if history is None:
            message = f"Previous response with id '{response_id}' not found."
            raise Refusal(message, code="previous_response_not_found", param="previous_response_id")
        return history

    # --- the answer ---

    async def _answer_with_status(self, fault: Status) -> web.StreamResponse:
        body = fault.body
        if body is None:
            refusal = self._dialect.refuse(fault.status, f"Simulated status {fault.status}.")
            body = self._dialect.show(refusal, f"req_{self._id}")
        raw = body if isinstance(body, bytes) else encode_json(body)
        return await self._send(_yield_once(raw), _JSON, status=fault.status, headers=fault.headers)

    async def _send_reply(self, parsed: ParsedRequest, call: Call, fault: Fault | None) -> web.StreamResponse:
        reply_id = f"{self._dialect.reply_prefix}{self._id}"
        reply = self._dialect.open_reply(parsed, reply_id)
        content_type = fault.value if isinstance(fault, ContentType) else _EVENT_STREAM if parsed.streams else _JSON
        reply_body = (
            self._stream(parsed, call, reply, reply_id)
            if parsed.streams
            else self._gather(parsed, call, reply, reply_id)
        )
        bent = bend(fault, reply_body, reply.write_error)
        async with aclosing(reply_body), aclosing(bent):
            return await self._send(bent, content_type)

    async def _stream(self, parsed: ParsedRequest, call: Call, reply: ReplyWriter, reply_id: str) -> Body:
        has_begun = False
        try:
            async with aclosing(self._run_model(parsed, call, reply_id)) as parts:
                async for part in parts:
                    for event in reply.write(part):
                        has_begun = True
                        yield event
        except ModelFailed as failure:
            if not has_begun:
                raise
            for event in reply.write_failure(self._dialect.refuse_failure(failure)):
                yield event

    async def _gather(self, parsed: ParsedRequest, call: Call, reply: ReplyWriter, reply_id: str) -> Body:
        """The whole reply as one object, for a request that does not stream."""
        part: Part | None = None
        async with aclosing(self._run_model(parsed, call, reply_id)) as parts:
            async for part in parts:
                reply.write(part)
        if not isinstance(part, Finish):
            raise ModelFailed("The model stopped in the middle of its reply.", kind="server_error")
        yield encode_json(reply.build_whole())

    async def _run_model(self, parsed: ParsedRequest, call: Call, reply_id: str) -> AsyncGenerator[Part, None]:
        """The model's parts, up to its finish. Any exception becomes a `ModelFailed`."""
        received: list[Part] = []
        try:
            stream = self._state.model.stream(call)
            try:
                async for part in stream:
                    if isinstance(part, StreamError):
                        raise classify(part)
                    if parsed.options.store:
                        received.append(part)
                        self._store(parsed, call, received, reply_id)
                    yield part
                    if isinstance(part, Finish):
                        return
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except Exception as error:
            failure = classify(error)
            if failure is error:
                raise
            raise failure from error

    def _store(self, parsed: ParsedRequest, call: Call, received: list[Part], reply_id: str) -> None:
        """Store a complete response: the conversation without the instructions, which apply to one request only."""
        finish = received[-1]
        if isinstance(finish, Finish):
            reply = PromptMessage(role="assistant", blocks=assemble(received))
            history = [*call.messages[len(parsed.instructions) :], reply]
            self._state.stored[finish.response_id or reply_id] = history

    async def _send(
        self, body: Body, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """Send the head together with the first piece of the body, then the rest as it comes."""
        named = {"content-type": content_type, "request-id": f"req_{self._id}", "x-request-id": f"req_{self._id}"}
        response = web.StreamResponse(status=status, headers={**named, **(headers or {})})
        response.enable_chunked_encoding()
        try:
            async for piece in body:
                if self.response is None:
                    await response.prepare(self._request)
                    self.response = response
                await response.write(piece)
        except Severed:
            assert self._request.transport is not None
            self._request.transport.close()
            return response
        if self.response is None:
            await response.prepare(self._request)
            self.response = response
        await response.write_eof()
        return response


async def _yield_once(body: bytes) -> Body:
    yield body


def _read_object(raw: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
