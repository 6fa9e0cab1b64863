"""Anthropic Messages: the stream of events, read as parts. request.py writes the request.

A reply is a list of content blocks; each is opened, extended by deltas, and closed. The reader keeps one small object
per open block, so an event costs one lookup; only deltas, which are nearly all events, are decoded into types. What
only Anthropic needs back is kept in `metadata` under Anthropic's own names: the `citations` of a text,
`redacted_thinking`, and every field of the provider's own tool blocks that we have no field for.

*The end* is a stop reason and `message_stop`; one without the other does not end the reply (rule 1.2). *A pause*
(`pause_turn`) does not end it either: the provider has worked long on its own tools and expects another request with
the reply so far. The next response continues the same reply: ids continue, and usage adds up.

Everything without content counts as a sign of life: pings, unknown events, unknown blocks. A delta for a block that was
not opened opens it, so that its text is not lost.

Must stay true (tests/models/test_anthropic.py): for any event, `read` returns parts or raises `ModelFailed` or a
decoding error; every id is used once in a reply; what goes back is what came (test_anthropic_request.py beside it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

import msgspec

from indelible import content
from indelible.content.assemble import PartAssembler
from indelible.content.parts import MAX_TOKENS
from indelible.content.unicode import clean_value
from indelible.models.failures.classify import classify_response
from indelible.models.http.http_model import WireRequest, make_decoder
from indelible.models.http.sse import SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call, PromptMessage
from indelible.models.providers.anthropic.request import PausedCall, write_call

MAX_RESUMES: Final = 10
"""How often a paused reply is resumed. After that, the reply so far is the reply."""

_NAME: Final = "anthropic"
_DELTA: Final = "content_block_delta"
_UNNAMED: Final = "message"
_ALIVE: Final[Sequence[content.Part]] = (content.KeepAlive(),)
_REASONS: Final[dict[str, content.FinishReason]] = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_PLAIN_STOPS: Final = frozenset({"end_turn", "tool_use", "max_tokens"})
"""Stop reasons that add nothing to our own finish reason."""

_COUNTERS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
_SHOWN_OF_CITATION: Final = frozenset({"url", "title", "document_title", "cited_text", "encrypted_index"})


class AnthropicWire:
    """The wire format of Anthropic and of compatible servers."""

    name: str = _NAME

    def write(self, call: Call, model: str, profile: Profile) -> WireRequest:
        return write_call(call, model, profile)

    def authorise(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def open_reader(self, call: Call, profile: Profile) -> AnthropicReader:  # noqa: ARG002  (the same for every model)
        return AnthropicReader(call)


# --- events ------------------------------------------------------------------------------


class _Delta(msgspec.Struct):
    """Any delta: the field that is set tells its kind."""

    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citation: Any = None


class _DeltaEvent(msgspec.Struct):
    delta: _Delta | None = None
    index: int | None = None


class _Unnamed(msgspec.Struct):
    """An event without a name has its type in the data; some proxies send an error without even that."""

    type: str | None = None
    error: Any = None


_decode_delta: Final[Callable[[bytes], _DeltaEvent]] = make_decoder(_DeltaEvent)
_decode_unnamed: Final[Callable[[bytes], _Unnamed]] = make_decoder(_Unnamed)
_decode_any: Final[Callable[[bytes], Any]] = make_decoder(Any)


class AnthropicReader:
    """Reads one reply, across all its pauses."""

    def __init__(self, call: Call) -> None:
        self._call = call
        provider_tools = any(tool.provider_executed for tool in call.tools)
        self._assembler = PartAssembler() if provider_tools else None
        self._blocks: dict[int | None, _Block] = {}
        self._names: dict[str, str] = {}
        self._next_id = 0
        self._resumes = 0
        self._spent = content.Usage()
        self._counts: dict[str, int] = {}
        self._stop: content.Metadata = {}
        self._stopped = False

    @property
    def complete(self) -> bool:
        return self._stopped and "stop_reason" in self._stop

    @property
    def over(self) -> bool:
        return self.complete

    def read(self, event: SseEvent) -> Sequence[content.Part]:
        parts = self._read_delta(event.data) if event.event == _DELTA else self._read_other(event)
        if self._assembler is not None:
            for part in parts:
                self._assembler.add(part)
        return parts

    def finish(self) -> content.Finish:
        reason = self._stop["stop_reason"]
        plain = {"stop_reason"} if reason in _PLAIN_STOPS else set[str]()
        return content.Finish(
            reason=_REASONS.get(reason, "stop"),
            usage=self._spent + self._add_up_usage(),
            metadata=_keep_rest(self._stop, plain),
        )

    def resume(self) -> Call | None:
        paused = self._stop.get("stop_reason") == "pause_turn"
        if not paused or self._assembler is None or self._resumes >= MAX_RESUMES:
            return None
        reply = PromptMessage(role="assistant", blocks=content.decode_blocks(content.encode(self._assembler.blocks())))
        container = _read_object(self._stop, "container")
        self._resumes += 1
        self._spent += self._add_up_usage()
        self._blocks, self._counts, self._stopped = {}, {}, False
        self._stop = {"container": container} if container else {}
        return PausedCall(
            messages=[*self._call.messages, reply],
            tools=self._call.tools,
            options=self._call.options,
            container=_read_text(container, "id"),
        )

    # --- one method per kind of event ---

    def _read_other(self, event: SseEvent) -> Sequence[content.Part]:
        if self.complete:
            return ()
        match _find_name(event.data) if event.event == _UNNAMED else event.event:
            case "content_block_delta":
                return self._read_delta(event.data)
            case "content_block_start":
                return self._read_block_start(_decode_object(event.data))
            case "content_block_stop":
                return self._close(_read_index(_decode_object(event.data)))
            case "message_start":
                message = _read_object(_decode_object(event.data), "message")
                self._note_end(message)
                self._count(message.get("usage"))
                counted = self._spent + self._add_up_usage()
                if counted.input_tokens:
                    return (content.UsageUpdate(counted),)
            case "message_delta":
                changed = _decode_object(event.data)
                self._note_end(_read_object(changed, "delta"))
                self._count(changed.get("usage"))
            case "message_stop":
                self._stopped = True
                if self._blocks and "stop_reason" in self._stop:
                    return [part for index in list(self._blocks) for part in self._close(index)]
            case "error":
                raise classify_response(provider=_NAME, status=None, body=event.data)
        return _ALIVE

    def _read_delta(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_delta(data)
        delta = event.delta
        if delta is None:
            return _ALIVE
        block = self._blocks.get(event.index)
        if block is None:
            return self._read_unannounced(event.index, delta)
        return block.read(delta)

    def _read_unannounced(self, index: int | None, delta: _Delta) -> Sequence[content.Part]:
        kind = "text" if delta.text else "thinking" if delta.thinking else None
        if kind is None:
            return _ALIVE
        return (*self._open(index, {"type": kind}), *self._blocks[index].read(delta))

    def _read_block_start(self, event: content.Metadata) -> Sequence[content.Part]:
        index = _read_index(event)
        closed = self._close(index) if index in self._blocks else ()
        return (*closed, *self._open(index, _read_object(event, "content_block")))

    # --- blocks ---

    def _open(self, index: int | None, body: content.Metadata) -> Sequence[content.Part]:
        """Open a block; one that arrives in a single piece is emitted at once."""
        kind = _read_text(body, "type") or ""
        block: _Block = _SilentBlock()
        parts: Sequence[content.Part] = _ALIVE
        match kind:
            case "text":
                block = _TextBlock(self._give_id)
                parts = (content.TextStart(block.id), *block.read_first(body))
            case "thinking":
                block = _ThinkingBlock(self._give_id())
                parts = (content.ReasoningStart(id=block.id), *block.read_first(body))
            case "redacted_thinking":
                parts = self._emit_redacted(body)
            case "container_upload":
                # It exists only in the provider's container, and its id is not one of ours.
                name = _read_text(body, "file_id")
                parts = (content.File(media_type="application/octet-stream", name=name, metadata=body),)
            case _ if kind.endswith("tool_use"):
                block = _CallBlock(body, kind=kind, spare_id=f"call_{self._give_id()}")
                self._names[block.id] = block.name
                parts = (block.start(),)
            case _ if kind.endswith("_tool_result"):
                parts = self._emit_result(body, kind=kind)
        self._blocks[index] = block
        return parts

    def _close(self, index: int | None) -> Sequence[content.Part]:
        block = self._blocks.pop(index, None)
        return block.stop() if block is not None else _ALIVE

    def _emit_redacted(self, body: content.Metadata) -> Sequence[content.Part]:
        encrypted = _read_text(body, "data")
        if encrypted is None:
            return _ALIVE
        id_ = self._give_id()
        return content.ReasoningStart(id=id_, metadata={"redacted_thinking": encrypted}), content.ReasoningEnd(id=id_)

    def _emit_result(self, body: content.Metadata, *, kind: str) -> Sequence[content.Part]:
        call_id = _read_text(body, "tool_use_id")
        if call_id is None:
            return _ALIVE
        output = body.get("content")
        return (
            content.ToolResult(
                call_id=call_id,
                name=self._names.get(call_id) or kind.removesuffix("_tool_result"),
                output=output,
                is_error=body.get("is_error") is True or _is_error(output),
                provider_executed=True,
                metadata=_keep_rest(body, {"tool_use_id", "content"}),
            ),
        )

    def _give_id(self) -> str:
        given = str(self._next_id)
        self._next_id += 1
        return given

    # --- the end ---

    def _note_end(self, change: content.Metadata) -> None:
        """Record the fields of the end. A value of the wrong type is ignored."""
        for name, kind in (("stop_reason", str), ("stop_sequence", str), ("stop_details", dict), ("container", dict)):
            if change.get(name) and isinstance(change[name], kind):
                self._stop[name] = clean_value(change[name])

    def _count(self, usage: Any) -> None:
        """Counters are totals of this response: a later one replaces an earlier one."""
        if not isinstance(usage, dict):
            return
        given = {name: usage.get(name) for name in _COUNTERS}
        given["thinking_tokens"] = _read_object(usage, "output_tokens_details").get("thinking_tokens")
        self._counts |= {
            name: count for name, count in given.items() if type(count) is int and 0 <= count <= MAX_TOKENS
        }

    def _add_up_usage(self) -> content.Usage:
        fresh, written, read, output = (self._counts.get(name, 0) for name in _COUNTERS)
        return content.Usage(
            input_tokens=fresh + written + read,
            output_tokens=output,
            reasoning_tokens=min(self._counts.get("thinking_tokens", 0), output),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )


# --- open blocks -------------------------------------------------------------------------


class _Block(Protocol):
    def read(self, delta: _Delta) -> Sequence[content.Part]: ...

    def stop(self) -> Sequence[content.Part]: ...


class _TextBlock:
    """Text and its citations. A citation is emitted as a source when it arrives."""

    def __init__(self, give_id: Callable[[], str]) -> None:
        self.id = give_id()
        self._give_id = give_id
        self._citations: list[content.Metadata] = []

    def read_first(self, body: content.Metadata) -> Sequence[content.Part]:
        """The content that the block was opened with: usually none."""
        text = _read_text(body, "text")
        citations = body.get("citations")
        listed = citations if isinstance(citations, list) else []
        cited = [self._cite(each) for each in listed if isinstance(each, dict)]
        return (content.TextDelta(self.id, text), *cited) if text else cited

    def read(self, delta: _Delta) -> Sequence[content.Part]:
        if delta.text:
            return (content.TextDelta(self.id, delta.text),)
        if isinstance(delta.citation, dict):
            return (self._cite(delta.citation),)
        return _ALIVE

    def stop(self) -> Sequence[content.Part]:
        return (content.TextEnd(self.id, metadata={"citations": self._citations} if self._citations else None),)

    def _cite(self, citation: content.Metadata) -> content.Source:
        self._citations.append(citation)
        return content.Source(
            id=self._give_id(),
            url=_read_text(citation, "url"),
            title=_read_text(citation, "title") or _read_text(citation, "document_title"),
            quote=_read_text(citation, "cited_text"),
            metadata=_keep_rest(citation, _SHOWN_OF_CITATION),
        )


class _ThinkingBlock:
    """Thinking. Its signature arrives last and in one piece."""

    def __init__(self, id_: str) -> None:
        self.id = id_
        self._signature: str | None = None

    def read_first(self, body: content.Metadata) -> Sequence[content.Part]:
        self._signature = _read_text(body, "signature") or None
        thinking = _read_text(body, "thinking")
        return (content.ReasoningDelta(id=self.id, delta=thinking),) if thinking else ()

    def read(self, delta: _Delta) -> Sequence[content.Part]:
        if delta.thinking:
            return (content.ReasoningDelta(self.id, delta.thinking),)
        self._signature = delta.signature or self._signature
        return _ALIVE

    def stop(self) -> Sequence[content.Part]:
        return (content.ReasoningEnd(id=self.id, signature=self._signature),)


class _CallBlock:
    """A call of our tools or of the provider's own. Its input stays raw text, because it may not be valid JSON."""

    def __init__(self, body: content.Metadata, *, kind: str, spare_id: str) -> None:
        self.id = _read_text(body, "id") or spare_id
        self.name = _read_text(body, "name") or ""
        self._executed = kind != "tool_use"
        self._input = body.get("input")
        self._chunks: list[str] = []
        mapped = {"id", "name", "input"} if self._executed else {"id", "name", "input", "type"}
        self._metadata = _keep_rest(body, mapped)

    def start(self) -> content.Part:
        return content.ToolInputStart(id=self.id, name=self.name, provider_executed=self._executed)

    def read(self, delta: _Delta) -> Sequence[content.Part]:
        if not delta.partial_json:
            return _ALIVE
        self._chunks.append(delta.partial_json)
        return (content.ToolInputDelta(self.id, delta.partial_json),)

    def stop(self) -> Sequence[content.Part]:
        whole = content.ToolCall(
            id=self.id,
            name=self.name,
            arguments="".join(self._chunks) or self._write_first_input(),
            provider_executed=self._executed,
            metadata=self._metadata,
        )
        return content.ToolInputEnd(self.id), whole

    def _write_first_input(self) -> str:
        """The input that the block was opened with, for servers that send it in one piece."""
        return content.encode(self._input).decode() if isinstance(self._input, dict) else "{}"


class _SilentBlock:
    """A block that was emitted when it opened, or one of an unknown kind."""

    def read(self, delta: _Delta) -> Sequence[content.Part]:  # noqa: ARG002  (its deltas are ignored)
        return _ALIVE

    def stop(self) -> Sequence[content.Part]:
        return _ALIVE


# --- reading JSON that may be anything ---------------------------------------------------


def _decode_object(data: bytes) -> content.Metadata:
    value = _decode_any(data)
    return value if isinstance(value, dict) else {}


def _find_name(data: bytes) -> str:
    unnamed = _decode_unnamed(data)
    return unnamed.type or ("error" if unnamed.error else "")


def _read_object(value: content.Metadata, name: str) -> content.Metadata:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def _read_text(value: content.Metadata, name: str) -> str | None:
    text = value.get(name)
    return text if isinstance(text, str) else None


def _read_index(event: content.Metadata) -> int | None:
    index = event.get("index")
    return index if isinstance(index, int) else None


def _keep_rest(value: content.Metadata, mapped: AbstractSet[str]) -> content.Metadata | None:
    """The fields that we have no field for, without nulls: requests do not accept all of them."""
    return {name: each for name, each in value.items() if name not in mapped and each is not None} or None


def _is_error(output: Any) -> bool:
    return isinstance(output, dict) and ("error_code" in output or str(output.get("type")).endswith("_error"))
