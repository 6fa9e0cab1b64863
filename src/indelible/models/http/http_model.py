"""A model behind HTTP: one streaming request, told as parts.

What is the same for every provider stands here: asking, errors before the stream and inside it, decoding events, the
end. What differs is a `WireFormat`: how a call is written (`write`), and a `ResponseReader` that turns one stream of
events into parts. Both are pure, so that they can be tested byte by byte; only this module touches the network.

*The end.* A reader says `complete` once the provider has given its own word that the reply is whole (SPEC 1.2). The
rest of the body is then still read, for a moment at most: usage may follow, and a connection that was read to its end
is used again for the next step. Only then comes the `Finish`. A stream that ends before that gives none, and the loop
calls it truncated.

*What is not a stream.* An error status is read, up to a limit, and judged by models/failures/classify.py. A 200 that is
JSON or HTML is no stream either: an error in disguise, or the page of a proxy.

Must stay true (tests/models/test_contract.py, for every wire): a stream that is cut at any byte is complete or
truncated, never a silent success; whatever the provider sends, nothing but `ModelFailed`, a transport error or a
decoding error comes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

import aiohttp
import msgspec

from indelible.clock import Clock
from indelible.content import Finish, KeepAlive, Part, StreamWarning, Usage
from indelible.errors import ModelFailed
from indelible.models.failures.classify import classify_response, garbled
from indelible.models.http.recording_hook import HttpRequest, HttpResponse, Sender
from indelible.models.http.sse import EventTooLarge, SseDecoder, SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call

MAX_ERROR_BYTES: Final = 64 * 1024
_ERROR_BODY_S: Final = 10.0
_SHORTEST_KEY: Final = 8
_USAGE_S: Final = 5.0
_LAST_BYTES_S: Final = 0.25
_ALIVE: Final = KeepAlive()
_NO_STREAMS: Final = ("application/json", "application/problem+json", "text/html")
_BROKEN_TRANSPORT: Final = (aiohttp.ClientError, OSError, EOFError, TimeoutError)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call as its provider wants it. `warnings` tell of what had to be left out."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = {}
    warnings: list[str] = []


class ResponseReader(Protocol):
    """One reply on its way."""

    @property
    def complete(self) -> bool:
        """The provider has said that the reply is whole."""

    @property
    def over(self) -> bool:
        """It has also said that nothing more follows, not even usage."""

    def read(self, event: SseEvent) -> Sequence[Part]:
        """What this event says. Raises `ModelFailed` if it says that the reply failed."""

    def finish(self) -> Finish:
        """The end, once the reply is complete."""

    def take_up(self) -> Call | None:
        """The call to ask next, if the provider only paused: the same reply goes on with its answer."""


class WireFormat(Protocol):
    """How one provider is spoken to. `name` is the wire's: anthropic, openai, openai-chat."""

    name: str

    def write(self, call: Call, model: str, profile: Profile) -> WireRequest:
        """The call, written. Raises `ModelFailed` (config) if it can not be."""

    def authorise(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""

    def open_reader(self, call: Call, profile: Profile) -> ResponseReader: ...


class HttpModel:
    """A model of a provider. It satisfies the loop's port (models/protocol.py); the catalog makes it (catalog.py).

    `headers` go with every request; the key is one of them. `asked_as` is the model's name at its provider, where
    that is not the name by which we tell it from others.
    """

    def __init__(
        self,
        wire: WireFormat,
        *,
        provider: str,
        name: str,
        asked_as: str | None = None,
        base_url: str,
        headers: Mapping[str, str],
        profile: Profile,
        http: Sender,
        clock: Clock,
    ) -> None:
        self.provider = provider
        self.name = name
        self._asked_as = asked_as or name
        self.context_limit = profile.context_limit
        self.inline_thinking = profile.inline_thinking
        self.thinks_first = profile.thinks_first
        self.continues_prefix = profile.continues_prefix
        self.chains = profile.chains
        self._wire = wire
        self.base_url = base_url.rstrip("/")
        self.headers = headers
        self._profile = profile
        self._http = http
        self._clock = clock

    def price(self, usage: Usage) -> int | None:
        """What this usage costs, in billionths of a dollar; None if the price is not known."""
        return self._profile.price(usage)

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        reader = self._wire.open_reader(call, self._profile)
        asked: Call | None = call
        while asked is not None:
            written = self._wire.write(asked, self._asked_as, self._profile)
            for warning in written.warnings if asked is call else ():
                yield StreamWarning(warning)
            async with self._http.send(self._make_request(written)) as response:
                await self._check_head(response)
                decoder = SseDecoder()
                while not reader.complete and (chunk := await response.read()):
                    told = False
                    for event in self._decode(decoder, chunk):
                        for part in self._read(reader, event):
                            yield part
                            told = True
                    if not told:
                        yield _ALIVE  # half an event, or a comment: whoever sends those is not silent
                if not reader.complete:
                    return
                response.settle()
                await self._read_rest(response, decoder, reader)
            asked = reader.take_up()
        yield reader.finish()

    def _make_request(self, written: WireRequest) -> HttpRequest:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "user-agent": "indelible",
            **written.headers,
            **self.headers,
        }
        try:
            body = msgspec.json.encode(written.body)
        except (TypeError, UnicodeEncodeError) as error:
            raise ModelFailed(f"The request can not be written as JSON: {error}.", kind="config") from error
        return HttpRequest(url=self.base_url + written.path, headers=headers, body=body)

    # --- reading ---

    def _decode(self, decoder: SseDecoder, chunk: bytes) -> list[SseEvent]:
        try:
            return decoder.feed(chunk)
        except EventTooLarge as error:
            raise garbled(self.provider, str(error)) from error

    def _read(self, reader: ResponseReader, event: SseEvent) -> Sequence[Part]:
        """What an event says. Behind a complete reply, whatever it says makes that no less complete."""
        was_complete = reader.complete
        try:
            return reader.read(event)
        except ModelFailed as failure:
            if was_complete:
                return ()
            failure.detail = failure.detail and self._hide_key(failure.detail.encode()).decode()
            raise
        except _UNREADABLE as error:
            if was_complete:
                return ()
            raise garbled(self.provider, "It sent something that is no event of its stream.") from error

    async def _read_rest(self, response: HttpResponse, decoder: SseDecoder, reader: ResponseReader) -> None:
        """What follows a complete reply. Nothing that goes wrong here makes it less complete."""
        try:
            async with asyncio.timeout(_USAGE_S):
                while not reader.over:
                    chunk = await response.read()
                    if not chunk:
                        return
                    for event in decoder.feed(chunk):
                        self._read(reader, event)
            async with asyncio.timeout(_LAST_BYTES_S):
                while await response.read():
                    pass
        except (*_BROKEN_TRANSPORT, EventTooLarge):
            return

    # --- errors ---

    async def _check_head(self, response: HttpResponse) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status == 200 and media_type not in _NO_STREAMS:
            return
        body = await self._read_error(response)
        if response.status == 200 and b"error" not in body:
            raise garbled(self.provider, f"It answered with {media_type} instead of a stream. Is its address right?")
        raise classify_response(
            provider=self.provider,
            status=response.status if response.status != 200 else None,
            headers=response.headers,
            body=body,
            now=self._clock.now(),
        )

    async def _read_error(self, response: HttpResponse) -> bytes:
        """The body, or its beginning: what came of it until it was too long, too slow, or cut."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                while sum(map(len, pieces)) < MAX_ERROR_BYTES and (piece := await response.read()):
                    pieces.append(piece)
        except _BROKEN_TRANSPORT:
            pass
        return self._hide_key(b"".join(pieces)[:MAX_ERROR_BYTES])

    def _hide_key(self, body: bytes) -> bytes:
        """Some providers repeat the key that they refuse, and what they say is shown to people."""
        for value in self.headers.values():
            key = value.rpartition(" ")[2].encode()
            body = body.replace(key, b"[removed]") if len(key) >= _SHORTEST_KEY else body
        return body
