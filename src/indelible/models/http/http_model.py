"""A model behind HTTP: one streaming request, read as parts.

Everything that all providers share is here: sending, errors before the stream and inside it, decoding events, the end.
What differs is a `WireFormat`: how a call is written (`write`), and a `ResponseReader` that turns one stream of events
into parts. Both are pure, so tests can drive them byte by byte; only this module touches the network.

*The end.* A reader is `complete` once the provider has declared the reply complete (rule 1.2). The rest of the body is
then still read, for a moment at most: usage may follow, and a connection that was read to its end is reused for the
next step. Only then comes the `Finish`. A stream that ends earlier yields none, and the loop treats it as truncated.

*Not a stream.* The body of an error status is read, up to a limit, and classified (models/failures/classify.py). A 200
with JSON or HTML is not a stream either: it is an error in disguise, or the page of a proxy.

*Decoding.* msgspec decodes an event ten times faster than `json` and keeps only the declared fields. It rejects half of
a surrogate pair, which JSON can escape and which some hosts send when they split a text between two events. Those few
events take the slow path, and the loop joins the halves (loop/normalize.py).

Must stay true (tests/models/test_contract.py, for every wire format): a stream that is cut at any byte is complete or
truncated, never a silent success; whatever the provider sends, only `ModelFailed`, a transport error or a decoding
error (msgspec's) is raised.

How to add a wire format is docs/where-things-go.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

import aiohttp
import msgspec

from indelible.clock import Clock
from indelible.content import Finish, KeepAlive, Part, StreamWarning
from indelible.content.parts import merge_deltas
from indelible.errors import ModelFailed
from indelible.models.failures.classify import classify, classify_response, garbled
from indelible.models.http.hooks import Answer, HttpRequest, HttpResponse, Sender, reading_pace
from indelible.models.http.sse import EventTooLarge, SseDecoder, SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call
from indelible.redaction.secrets import list_forms

MAX_ERROR_BYTES: Final = 64 * 1024
_ERROR_BODY_S: Final = 10.0
_SHORTEST_KEY: Final = 8
"""A key that is an ordinary word is hidden, too: a text about an error loses little by it (unlike a conversation)."""
_USAGE_S: Final = 5.0
_LAST_BYTES_S: Final = 0.25
_ALIVE: Final = KeepAlive()
_NOT_STREAMS: Final = ("application/json", "application/problem+json", "text/html")
_BROKEN_TRANSPORT: Final = (aiohttp.ClientError, OSError, EOFError, TimeoutError)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the provider's format. `warnings` name what had to be left out."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = {}
    warnings: list[str] = []


class ResponseReader(Protocol):
    """Reads one reply."""

    @property
    def complete(self) -> bool:
        """Whether the provider has declared the reply complete."""

    @property
    def over(self) -> bool:
        """Whether nothing more follows, not even usage."""

    def read(self, event: SseEvent) -> Sequence[Part]:
        """The parts of this event. Raises `ModelFailed` if the event reports a failure."""

    def finish(self) -> Finish:
        """The finish of a complete reply."""

    def resume(self) -> Call | None:
        """The call that resumes the reply, if the provider only paused it; None if the reply is over."""


class WireFormat(Protocol):
    """The request and response format of a provider. `name` is anthropic, openai or openai-chat."""

    name: str

    def write(self, call: Call, model: str, profile: Profile) -> WireRequest:
        """Write the call. Raises `ModelFailed` (config) if this format cannot express it."""

    def authorise(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""

    def open_reader(self, call: Call, profile: Profile) -> ResponseReader: ...


class HttpModel:
    """A model of a provider. It satisfies the loop's port (models/protocol.py); the catalog makes it (catalog.py).

    `headers` are sent with every request and include the key. `remote_name` is the model's name at its provider, if
    that differs from the name by which we distinguish it.
    """

    def __init__(
        self,
        wire: WireFormat,
        *,
        provider: str,
        name: str,
        remote_name: str | None = None,
        base_url: str,
        headers: Mapping[str, str],
        profile: Profile,
        http: Sender,
        clock: Clock,
    ) -> None:
        self.provider = provider
        self.name = name
        self._remote_name = remote_name or name
        self.context_limit = profile.context_limit
        self.traits = profile
        self._wire = wire
        self.base_url = base_url.rstrip("/")
        self.headers = headers
        self._http = http
        self._clock = clock

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        reader = self._wire.open_reader(call, self.traits)
        next_call: Call | None = call
        while next_call is not None:
            written = self._wire.write(next_call, self._remote_name, self.traits)
            for warning in written.warnings if next_call is call else ():
                yield StreamWarning(warning)
            async with self._send(self._make_request(written)) as response:
                await self._check_head(response)
                decoder = SseDecoder()
                pace = reading_pace.get()
                while not reader.complete:
                    if pace is not None and (pause := pace()) is not None:
                        await pause
                    if not (chunk := await response.read()):
                        break
                    parts, failure = self._read_all(reader, self._decode(decoder, chunk))
                    for part in parts:
                        yield part
                    if failure is not None:
                        raise failure
                    if not parts:
                        yield _ALIVE  # half an event, or a comment: the provider is alive
                if not reader.complete:
                    return
                response.settle()
                await self._read_rest(response, decoder, reader)
            next_call = reader.resume()
        yield reader.finish()

    @asynccontextmanager
    async def _send(self, request: HttpRequest) -> AsyncIterator[Answer]:
        """Send the request. An error quotes what could not be parsed, and that may quote the key."""
        try:
            async with self._http.send(request) as response:
                yield response
        except ModelFailed:
            raise
        except Exception as error:
            failure = classify(error, provider=self.provider, now=self._clock.now())
            hidden = self._hide_key((failure.detail or "").encode()).decode()
            if hidden == (failure.detail or ""):
                raise
            failure.detail = hidden
            raise failure from None

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
            raise ModelFailed(f"The request cannot be encoded as JSON: {error}.", kind="config") from error
        return HttpRequest(url=self.base_url + written.path, headers=headers, body=body)

    # --- reading ---

    def _decode(self, decoder: SseDecoder, chunk: bytes) -> list[SseEvent]:
        try:
            return decoder.feed(chunk)
        except EventTooLarge as error:
            raise garbled(self.provider, str(error)) from error

    def _read_all(
        self, reader: ResponseReader, events: Sequence[SseEvent]
    ) -> tuple[Sequence[Part], ModelFailed | None]:
        """The parts of these events, and the failure that one of them reports. The parts before it count."""
        parts: list[Part] = []
        try:
            for event in events:
                parts += self._read(reader, event)
        except ModelFailed as failure:
            return merge_deltas(parts), failure
        return merge_deltas(parts) if len(parts) > 1 else parts, None

    def _read(self, reader: ResponseReader, event: SseEvent) -> Sequence[Part]:
        """The parts of an event. After the reply is complete, errors are ignored: the reply stays complete."""
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
            raise garbled(self.provider, "It sent an event that cannot be decoded.") from error

    async def _read_rest(self, response: HttpResponse, decoder: SseDecoder, reader: ResponseReader) -> None:
        """Read what follows a complete reply. Errors are ignored: the reply stays complete."""
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
        if response.status == 200 and media_type not in _NOT_STREAMS:
            return
        body = await self._read_error(response)
        if response.status == 200 and b"error" not in body:
            raise garbled(self.provider, f"It sent {media_type} instead of a stream. Check the base URL.")
        raise classify_response(
            provider=self.provider,
            status=response.status if response.status != 200 else None,
            headers=response.headers,
            body=body,
            now=self._clock.now(),
        )

    async def _read_error(self, response: HttpResponse) -> bytes:
        """The body, or as much as arrived before it was too long, too slow or interrupted."""
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(_ERROR_BODY_S):
                while sum(map(len, pieces)) < MAX_ERROR_BYTES and (piece := await response.read()):
                    pieces.append(piece)
        except _BROKEN_TRANSPORT:
            pass
        return self._hide_key(b"".join(pieces)[:MAX_ERROR_BYTES])

    def _hide_key(self, body: bytes) -> bytes:
        """Remove the key: some providers quote the key that they reject, and users see their messages."""
        for value in self.headers.values():
            key = value.rpartition(" ")[2]
            forms = sorted(list_forms(key), key=len, reverse=True) if len(key) >= _SHORTEST_KEY else []
            for form in forms:
                body = body.replace(form.encode(), b"[removed]")
        return body


T = TypeVar("T")


def make_decoder(kind: type[T] | Any) -> Callable[[bytes], T]:
    """Make a decoder for JSON of this type."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_event(data: bytes) -> T:
        try:
            found: T = decode(data)
        except msgspec.DecodeError:
            if b"\\ud" not in data.lower():
                raise
        except RecursionError as error:
            raise msgspec.DecodeError("The JSON is nested too deeply.") from error
        else:
            return found
        try:
            converted: T = msgspec.convert(json.loads(data), kind)
        except msgspec.MsgspecError:
            raise
        except (ValueError, RecursionError) as error:
            raise msgspec.DecodeError(str(error)) from error
        return converted

    return decode_event
