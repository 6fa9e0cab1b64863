"""Anthropic Messages, the provider's side: writing a reply.

    message_start, ping, then per block: content_block_start, content_block_delta…, content_block_stop;
    message_delta with the stop reason and all usage; message_stop

A thinking block starts only with its first content, because only then it is known whether it is redacted:
`metadata={"redacted_thinking": data}` before any text makes it so. Its signature comes right before its stop. A source
becomes a citation of the open text; its metadata are fields of the citation. A `Finish` may name Anthropic's own stop
reason: `metadata={"stop_reason": "pause_turn"}`.

Usage is known when the model has finished, so message_start reports 0, and message_delta, which replaces those counts,
reports the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from indelible.content import (
    File,
    Finish,
    KeepAlive,
    Part,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    TextDelta,
    TextEnd,
    TextStart,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    UsageUpdate,
)
from indelible.testing.provider.events import encode_json, write_event
from indelible.testing.provider.order import PartOrder
from indelible.testing.provider.refusals import Refusal, show_anthropic

_STOP_REASONS: Final = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_PING: Final = write_event({"type": "ping"}, "ping")
_STOP: Final = write_event({"type": "message_stop"}, "message_stop")
_DELTA_HEAD: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
)
_DELTA_TAIL: Final = b"}}\n\n"


class _Block:
    """A content block that is being written. `body` is its complete form."""

    __slots__ = ("body", "field", "head", "index", "pieces")

    def __init__(self, index: int, body: dict[str, Any], delta: bytes, field: bytes) -> None:
        self.index = index
        self.body = body
        self.field = field.decode()
        self.head = _DELTA_HEAD % (index, delta, field)
        self.pieces: list[str] = []

    def write_delta(self, delta: str) -> bytes:
        self.pieces.append(delta)
        return self.head + encode_json(delta) + _DELTA_TAIL


class AnthropicReply:
    def __init__(self, *, model: str, id: str) -> None:
        self._id = id
        self._model = model
        self._order = PartOrder()
        self._has_begun = False
        self._content: list[dict[str, Any]] = []
        self._texts: dict[str, _Block] = {}
        self._last_text: _Block | None = None
        self._thinking: dict[str, _Block] = {}
        self._redacted: set[str] = set()
        self._signatures: dict[str, str | None] = {}
        self._calls: dict[str, _Block] = {}
        self._delta: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._usage = _show_usage(Usage())

    def write(self, part: Part) -> list[bytes]:
        events: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            if isinstance(part, UsageUpdate):
                self._usage = _show_usage(part.usage)
            events += [write_event({"type": "message_start", "message": self.build_whole()}, "message_start"), _PING]
        for each in self._order.feed(part):
            if type(each) is TextDelta:
                events.append(self._texts[each.id].write_delta(each.delta))
            else:
                events += self._write(each)
        return events

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        return [self.write_error(show_anthropic(refusal, f"req_{self._id}"))]

    def write_error(self, body: Any) -> bytes:
        if body is None:
            body = show_anthropic(Refusal("Overloaded", type="overloaded_error"), f"req_{self._id}")
        return write_event(body, "error")

    def build_whole(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": self._content,
            **self._delta,
            "usage": self._usage,
        }

    # --- one case per kind of part ---

    def _write(self, part: Part) -> Iterator[bytes]:
        match part:
            case TextStart():
                self._last_text = block = self._add({"type": "text", "text": ""}, b"text_delta", b"text")
                self._texts[part.id] = block
                yield self._start(block)
            case TextEnd():
                yield self._stop(self._texts.pop(part.id))
            case Source():
                yield from self._cite(part)
            case ReasoningStart() | ReasoningDelta() | ReasoningEnd():
                yield from self._think(part)
            case ToolInputStart():
                kind = "server_tool_use" if part.provider_executed else "tool_use"
                body = {"type": kind, "id": part.id, "name": part.name, "input": {}}
                self._calls[part.id] = self._add(body, b"input_json_delta", b"partial_json")
                yield self._start(self._calls[part.id])
            case ToolInputDelta():
                yield self._calls[part.id].write_delta(part.delta)
            case ToolInputEnd():
                yield self._stop(self._calls.pop(part.id))
            case ToolResult(provider_executed=True):
                yield from self._write_whole(_show_result(part))
            case File(file_id=str(file_id)):
                yield from self._write_whole({"type": "container_upload", "file_id": file_id})
            case KeepAlive():
                yield _PING
            case Finish():
                yield from self._finish(part)
            case _:
                return

    def _think(self, part: ReasoningStart | ReasoningDelta | ReasoningEnd) -> Iterator[bytes]:
        redacted = (part.metadata or {}).get("redacted_thinking")
        block = self._thinking.get(part.id)
        if block is None and redacted is not None:
            self._redacted.add(part.id)
            yield from self._write_whole({"type": "redacted_thinking", "data": redacted})
        elif block is None and part.id not in self._redacted and not isinstance(part, ReasoningStart):
            body = {"type": "thinking", "thinking": "", "signature": ""}
            block = self._thinking[part.id] = self._add(body, b"thinking_delta", b"thinking")
            yield self._start(block)
        self._signatures[part.id] = part.signature or self._signatures.get(part.id)
        if block is not None and isinstance(part, ReasoningDelta) and part.delta:
            yield block.write_delta(part.delta)
        if isinstance(part, ReasoningEnd):
            yield from self._end_thinking(part.id)

    def _end_thinking(self, id: str) -> Iterator[bytes]:
        self._redacted.discard(id)
        signature = self._signatures.pop(id)
        block = self._thinking.pop(id, None)
        if block is None:
            return
        if signature:
            block.body["signature"] = signature
            yield self._delta_event(block, {"type": "signature_delta", "signature": signature})
        yield self._stop(block)

    def _cite(self, source: Source) -> Iterator[bytes]:
        assert self._last_text is not None, "PartOrder lets no source come without a text"
        citation = _show_citation(source)
        self._last_text.body.setdefault("citations", []).append(citation)
        yield self._delta_event(self._last_text, {"type": "citations_delta", "citation": citation})

    def _finish(self, finish: Finish) -> Iterator[bytes]:
        named = finish.metadata or {}
        self._delta = {
            "stop_reason": named.get("stop_reason", _STOP_REASONS[finish.reason]),
            "stop_sequence": named.get("stop_sequence"),
        }
        self._usage = _show_usage(finish.usage or Usage())
        yield write_event({"type": "message_delta", "delta": self._delta, "usage": self._usage}, "message_delta")
        yield _STOP

    # --- blocks ---

    def _add(self, body: dict[str, Any], delta: bytes, field: bytes) -> _Block:
        self._content.append(body)
        return _Block(len(self._content) - 1, body, delta, field)

    def _start(self, block: _Block) -> bytes:
        event = {"type": "content_block_start", "index": block.index, "content_block": block.body}
        return write_event(event, "content_block_start")

    def _stop(self, block: _Block) -> bytes:
        whole = "".join(block.pieces)
        if block.field == "partial_json":
            block.body["input"] = _read_object(whole)
        else:
            block.body[block.field] = whole
        return write_event({"type": "content_block_stop", "index": block.index}, "content_block_stop")

    def _write_whole(self, body: dict[str, Any]) -> Iterator[bytes]:
        self._content.append(body)
        index = len(self._content) - 1
        yield write_event({"type": "content_block_start", "index": index, "content_block": body}, "content_block_start")
        yield write_event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _delta_event(self, block: _Block, delta: dict[str, Any]) -> bytes:
        event = {"type": "content_block_delta", "index": block.index, "delta": delta}
        return write_event(event, "content_block_delta")


def _show_usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts cache reads and cache writes separately from the other input."""
    return {
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _show_result(result: ToolResult) -> dict[str, Any]:
    """`web_search` gives a `web_search_tool_result`; a plain-text error gets the shape of an error."""
    family = "tool_search_tool" if result.name.startswith("tool_search_tool") else result.name
    content = result.output
    if result.is_error and not isinstance(content, dict):
        content = {"type": f"{family}_tool_result_error", "error_code": "unavailable"}
    return {"type": f"{family}_tool_result", "tool_use_id": result.call_id, "content": content}


def _show_citation(source: Source) -> dict[str, Any]:
    shown: dict[str, Any] = {"cited_text": source.quote or ""}
    if source.url is not None:
        shown |= {"type": "web_search_result_location", "url": source.url, "title": source.title}
        shown["encrypted_index"] = source.id or "simulated"
    else:
        shown |= {"type": "char_location", "document_title": source.title, "document_index": 0}
        shown |= {"start_char_index": 0, "end_char_index": len(source.quote or "")}
    return shown | (source.metadata or {})


def _read_object(arguments: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return {}
