"""The provider's side of a wire format: parsing requests and writing replies, and what all three do alike.

The client's side of the same formats is models/http/http_model.py, and the two share no code: a mistake there must not
be hidden by the same mistake here. A `Dialect` is pure. It parses the JSON of a request into a `ParsedRequest`, checks
whether the real provider would accept such a history, and opens a `ReplyWriter` that turns parts into events, one by
one. The writer remembers what it wrote, so it also builds the whole reply for a request that does not stream. What a
format cannot express (a model's warnings, a provider's own tools in Chat Completions) is left out.

Formats merge and split messages; `Transcript` is the one place that decides what the model sees: each text of a user is
a message of its own (files join the text before them), consecutive assistant content is one message, and consecutive
results are one tool message. A result gets the name of its call, which no format repeats.

A model's parts may be loose: omit a start or an end, send a call in pieces or whole, a source after its text.
`PartOrder` puts them into the strict order that formats need: every delta belongs to a started block, a call is
started, continued and ended before it comes whole, a source comes while a text is open (its end is held back until the
next part), and at the finish everything is ended. Every event is one `data` line, because JSON contains no raw line
break.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from indelible import content
from indelible.errors import ModelFailed
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing.provider.faults import Refusal

CREATED_AT: Final = 1_767_225_600
"""The time of every reply, fixed so that the same script gives the same bytes."""


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `instructions` apply to this request only; a stored response does not keep them."""

    model: str
    body: dict[str, Any]
    instructions: Sequence[PromptMessage] = ()
    messages: Sequence[PromptMessage]
    tools: list[content.ToolSpec] = []
    options: CallOptions = CallOptions()
    streams: bool = False

    def build_call(self, history: Sequence[PromptMessage] = ()) -> Call:
        """The call for the model. `history` is the stored conversation of a chained request."""
        messages = [*self.instructions, *history, *self.messages]
        return Call(messages=messages, tools=self.tools, options=self.options)


class ReplyWriter(Protocol):
    """Writes one reply."""

    def write(self, part: content.Part) -> list[bytes]:
        """The events of this part, each complete."""

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        """The events that end a reply that failed midway."""

    def write_error(self, body: Any) -> bytes:
        """One error event with this body, or with the provider's default."""

    def build_whole(self) -> dict[str, Any]:
        """The whole reply, after its finish was written."""


class Dialect(Protocol):
    name: str
    path: str
    reply_prefix: str
    """The prefix of reply ids."""

    def find_key(self, headers: Mapping[str, str]) -> str | None:
        """The key of a request."""

    def refuse_key(self, key: str | None) -> Refusal:
        """The response to a wrong or missing key."""

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Parse a request, or raise a `Refusal`."""

    def check(self, call: Call) -> None:
        """Raise a `Refusal` if the provider would reject this history."""

    def refuse(self, status: int, message: str) -> Refusal: ...

    def refuse_failure(self, failure: ModelFailed) -> Refusal:
        """The response that stands for a model's failure."""

    def show(self, refusal: Refusal, request_id: str) -> dict[str, Any]:
        """The body of the response."""

    def open_reply(self, parsed: ParsedRequest, id: str) -> ReplyWriter: ...

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        """The response to GET /v1/models."""


# --- parts in strict order ---


_HOME_OF_SOURCES: Final = "sources"


class PartOrder:
    """Orders the parts of one reply."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._reasonings: dict[str, None] = {}
        self._calls: dict[str, list[str]] = {}
        self._ended_calls: set[str] = set()
        self._held: content.TextEnd | None = None

    def feed(self, part: content.Part) -> Sequence[content.Part]:
        """The parts to write for this part."""
        if self._held is None:
            if type(part) is content.TextDelta and part.id in self._texts:
                return (part,)
        elif not isinstance(part, content.Source):
            held, self._held = self._held, None
            return (held, *self.feed(part))
        match part:
            case content.TextStart() | content.TextDelta() | content.TextEnd():
                return self._feed_text(part)
            case content.ReasoningStart() | content.ReasoningDelta() | content.ReasoningEnd():
                return self._feed_reasoning(part)
            case content.ToolInputStart() | content.ToolInputDelta() | content.ToolInputEnd():
                return self._feed_input(part)
            case content.ToolCall():
                return self._feed_call(part)
            case content.Source():
                return self._feed_source(part)
            case content.Finish():
                return (*self._end_all(), part)
            case _:
                return (part,)

    def _feed_text(self, part: content.TextStart | content.TextDelta | content.TextEnd) -> Sequence[content.Part]:
        started = [] if part.id in self._texts else [content.TextStart(part.id)]
        self._texts[part.id] = None
        match part:
            case content.TextStart():
                return started
            case content.TextDelta():
                return (*started, part)
            case content.TextEnd():
                del self._texts[part.id]
                self._held = part
                return started

    def _feed_reasoning(
        self, part: content.ReasoningStart | content.ReasoningDelta | content.ReasoningEnd
    ) -> Sequence[content.Part]:
        is_open = part.id in self._reasonings
        self._reasonings[part.id] = None
        if isinstance(part, content.ReasoningEnd):
            del self._reasonings[part.id]
        if isinstance(part, content.ReasoningStart):
            return () if is_open else (part,)
        return (part,) if is_open else (content.ReasoningStart(part.id), part)

    def _feed_input(
        self, part: content.ToolInputStart | content.ToolInputDelta | content.ToolInputEnd
    ) -> Sequence[content.Part]:
        is_open = part.id in self._calls
        pieces = self._calls.setdefault(part.id, [])
        match part:
            case content.ToolInputStart():
                self._ended_calls.discard(part.id)
                return () if is_open else (part,)
            case content.ToolInputDelta():
                pieces.append(part.delta)
            case content.ToolInputEnd():
                del self._calls[part.id]
                self._ended_calls.add(part.id)
        return (part,) if is_open else (content.ToolInputStart(part.id, ""), part)

    def _feed_call(self, call: content.ToolCall) -> Sequence[content.Part]:
        """The whole call, after the deltas that were not yet sent."""
        if call.id in self._ended_calls:
            self._ended_calls.remove(call.id)
            return (call,)
        missing: list[content.Part] = []
        if call.id not in self._calls:
            missing.append(content.ToolInputStart(call.id, call.name, call.provider_executed, call.standalone))
        sent = "".join(self._calls.pop(call.id, ()))
        if len(call.arguments) > len(sent) and call.arguments.startswith(sent):
            missing.append(content.ToolInputDelta(call.id, call.arguments[len(sent) :]))
        return (*missing, content.ToolInputEnd(call.id), call)

    def _feed_source(self, source: content.Source) -> Sequence[content.Part]:
        if self._held is not None or self._texts:
            return (source,)
        self._held = content.TextEnd(_HOME_OF_SOURCES)
        return (content.TextStart(_HOME_OF_SOURCES), source)

    def _end_all(self) -> list[content.Part]:
        ends: list[content.Part] = [content.ReasoningEnd(id_) for id_ in self._reasonings]
        ends += [content.TextEnd(id_) for id_ in self._texts]
        ends += [content.ToolInputEnd(id_) for id_ in self._calls]
        self._reasonings.clear()
        self._texts.clear()
        self._calls.clear()
        return ends


# --- events ---


_encode: Final = msgspec.json.Encoder().encode


def encode_json(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def read_object(arguments: str) -> dict[str, Any]:
    """The arguments of a call; empty if they are no JSON object."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return {}


def write_event(data: Any, name: str | None = None) -> bytes:
    """One event with this JSON as its data."""
    if name is None:
        return b"data: %b\n\n" % encode_json(data)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json(data))


# --- histories ---


_ONE_MESSAGE: Final = frozenset({"assistant", "tool"})


class Transcript:
    """Add blocks in conversation order; `messages` is what the model will read."""

    def __init__(self) -> None:
        self.messages: list[PromptMessage] = []
        self._names: dict[str, str] = {}

    def add(self, role: content.Role, block: content.Block, *, cache: bool = False) -> None:
        if isinstance(block, content.ToolCall):
            self._names[block.id] = block.name
        if isinstance(block, content.ToolResult):
            block = replace(block, name=self._names.get(block.call_id, ""))
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == role and (role in _ONE_MESSAGE or not isinstance(block, content.Text)):
            self.messages[-1] = replace(last, blocks=[*last.blocks, block], cache=last.cache or cache)
        else:
            self.messages.append(PromptMessage(role=role, blocks=[block], cache=cache))


def join_texts(given: Any) -> str:
    """The text of a tool's result, which is a string or a list of blocks."""
    if not isinstance(given, list):
        return given or ""
    return "".join(block.get("text", f"[{block.get('type')}]") for block in given)


def read_file(url: str, *, name: str | None = None, media_type: str = "image/*") -> content.File:
    """A file from its URL, which may be a data URL."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and comma):
        return content.File(media_type=media_type, name=name, url=url)
    media_type = head.removeprefix("data:").partition(";")[0]
    return content.File(media_type=media_type, name=name, data=decode_base64(data))


def decode_base64(data: Any) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Refusal("Invalid base64 data.", code="invalid_base64") from error


def find_unanswered(messages: Sequence[PromptMessage], *, at_once: bool) -> list[str]:
    """The calls without a result: `at_once` in the very next message, else anywhere."""
    answered = _list_results(messages)
    missing: list[str] = []
    for at, message in enumerate(messages):
        calls = _list_calls([message])
        if calls and at_once:
            answered = _list_results(messages[at + 1 : at + 2])
        missing += [call_id for call_id in calls if call_id not in answered]
    return missing


def find_orphans(messages: Sequence[PromptMessage], *, at_once: bool) -> list[str]:
    """The results without a call: `at_once` in the message right before, else anywhere."""
    called = _list_calls(messages)
    orphans: list[str] = []
    for at, message in enumerate(messages):
        results = _list_results([message])
        if results and at_once:
            called = _list_calls(messages[max(at - 1, 0) : at])
        orphans += [call_id for call_id in results if call_id not in called]
    return orphans


def _list_calls(messages: Sequence[PromptMessage]) -> dict[str, content.ToolCall]:
    blocks = [block for message in messages for block in message.blocks]
    return {block.id: block for block in blocks if isinstance(block, content.ToolCall) and not block.provider_executed}


def _list_results(messages: Sequence[PromptMessage]) -> dict[str, content.ToolResult]:
    blocks = [block for message in messages for block in message.blocks]
    return {
        block.call_id: block
        for block in blocks
        if isinstance(block, content.ToolResult) and not block.provider_executed
    }
