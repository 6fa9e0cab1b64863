"""Anthropic Messages, the provider's side: parsing a request, and writing a reply.

The history is checked by the rules that Anthropic really enforces, with its own error messages: every `tool_use` is
answered in the next message, no text is blank, no message is empty, and a final assistant message does not end with
whitespace. A reply is

    message_start, ping, then per block: content_block_start, content_block_delta…, content_block_stop;
    message_delta with the stop reason and all usage; message_stop

A thinking block starts only with its first content, because only then it is known whether it is redacted:
`metadata={"redacted_thinking": data}` before any text makes it so. Its signature comes right before its stop. A source
becomes a citation of the open text; its metadata are fields of the citation. A `Finish` may name Anthropic's own stop
reason: `metadata={"stop_reason": "pause_turn"}`. Usage is known when the model has finished, so message_start reports
0, and message_delta, which replaces those counts, reports the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from indelible import content
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing.provider import dialect
from indelible.testing.provider.faults import Refusal, find_anthropic_type, refuse_as_anthropic, show_anthropic

_REQUIRED: Final = ("model", "max_tokens", "messages")

_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
    "service_tier": "service_tier",
}

_RESULT: Final = "_tool_result"
_SHOWN: Final = ("image", "document")


class AnthropicDialect:
    name = "anthropic"
    path = "/v1/messages"
    reply_prefix = "msg_"
    refuse_failure = staticmethod(refuse_as_anthropic)
    show = staticmethod(show_anthropic)

    def find_key(self, headers: Mapping[str, str]) -> str | None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return headers.get("x-api-key") or bearer or None

    def refuse_key(self, key: str | None) -> Refusal:
        message = "invalid x-api-key" if key else "x-api-key header is required"
        return Refusal(message, status=401, type="authentication_error")

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> dialect.ParsedRequest:
        if "anthropic-version" not in headers:
            raise Refusal("anthropic-version: header is required")
        for field in _REQUIRED:
            if field not in body:
                raise Refusal(f"{field}: Field required")
        if not isinstance(body["messages"], list) or not body["messages"]:
            raise Refusal("messages: at least one message is required")
        transcript = dialect.Transcript()
        for text, cache in _read_texts(body.get("system") or [], "system"):
            transcript.add("system", text, cache=cache)
        for at, message in enumerate(body["messages"]):
            _read_message(transcript, message, f"messages.{at}")
        parameters = {ours: body[theirs] for theirs, ours in _PARAMETERS.items() if theirs in body}
        effort = (body.get("output_config") or {}).get("effort")
        return dialect.ParsedRequest(
            model=str(body["model"]),
            body=body,
            messages=transcript.messages,
            tools=[_read_tool(tool) for tool in body.get("tools") or []],
            options=CallOptions(parameters=parameters | ({"effort": effort} if effort else {})),
            streams=body.get("stream") is True,
        )

    def check(self, call: Call) -> None:
        if missing := dialect.find_unanswered(call.messages, at_once=True):
            raise Refusal(
                f"messages: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                f"next message."
            )
        if orphans := dialect.find_orphans(call.messages, at_once=True):
            raise Refusal(
                f"messages: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(orphans)}. Each "
                f"`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        _check_trailing_space(call.messages)

    def refuse(self, status: int, message: str) -> Refusal:
        return Refusal(message, status=status, type=find_anthropic_type(status))

    def open_reply(self, parsed: dialect.ParsedRequest, id: str) -> dialect.ReplyWriter:
        return AnthropicReply(model=parsed.model, id=id)

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        created_at = datetime.fromtimestamp(dialect.CREATED_AT, UTC).isoformat()
        data = [
            {"type": "model", "id": name, "display_name": name, "created_at": created_at, "lifecycle": "active"}
            for name in names
        ]
        return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def _check_trailing_space(messages: Sequence[PromptMessage]) -> None:
    last = messages[-1].blocks[-1]
    if messages[-1].role == "assistant" and isinstance(last, content.Text) and last.text != last.text.rstrip():
        raise Refusal("messages: final assistant content cannot end with trailing whitespace")


def _read_message(transcript: dialect.Transcript, message: Any, place: str) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    given = message.get("content") if isinstance(message, dict) else None
    if role == "system":
        for text, cache in _read_texts(given, place):
            transcript.add("system", text, cache=cache)
        return
    if role not in {"user", "assistant"}:
        raise Refusal(f'{place}.role: Input should be "user" or "assistant"')
    if not given:
        raise Refusal(
            f"{place}: all messages must have non-empty content except for the optional final assistant message"
        )
    for at, raw in enumerate([{"type": "text", "text": given}] if isinstance(given, str) else given):
        block = _read_block(raw, f"{place}.content.{at}")
        author: content.Role = "tool" if isinstance(block, content.ToolResult) and not block.provider_executed else role
        transcript.add(author, block, cache=bool(raw.get("cache_control")))


def _read_texts(given: Any, place: str) -> Iterator[tuple[content.Text, bool]]:
    for raw in [{"text": given}] if isinstance(given, str) else given:
        yield _read_text(raw, place), bool(raw.get("cache_control"))


def _read_text(raw: dict[str, Any], place: str) -> content.Text:
    text = raw.get("text")
    if not isinstance(text, str) or not text.strip():
        raise Refusal(f"{place}: text content blocks must contain non-whitespace text")
    return content.Text(text)


def _read_block(raw: Any, place: str) -> content.Block:
    kind = raw.get("type") if isinstance(raw, dict) else None
    try:
        match kind:
            case "text":
                return _read_text(raw, place)
            case str() if kind in _SHOWN:
                return _read_file(raw)
            case "thinking":
                return content.Reasoning(text=raw["thinking"], signature=raw["signature"])
            case "redacted_thinking":
                return content.Reasoning(metadata={"redacted_thinking": raw["data"]})
            case "tool_use" | "server_tool_use":
                call = content.ToolCall(raw["id"], raw["name"], dialect.encode_json(raw["input"]).decode())
                return call if kind == "tool_use" else replace(call, provider_executed=True, metadata={"type": kind})
            case "tool_result":
                output = dialect.join_texts(raw.get("content"))
                files, is_error = _read_shown(raw.get("content")), raw.get("is_error") is True
                return content.ToolResult(raw["tool_use_id"], "", output, is_error=is_error, files=files)
            case str() if kind.endswith(_RESULT):
                output, metadata = raw["content"], {"type": kind}
                return content.ToolResult(raw["tool_use_id"], "", output, provider_executed=True, metadata=metadata)
    except KeyError as error:
        raise Refusal(f"{place}.{kind}.{error.args[0]}: Field required") from error
    raise Refusal(f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags")


def _read_file(raw: dict[str, Any]) -> content.Block:
    source, name = raw["source"], raw.get("title")
    match source.get("type"):
        case "base64":
            return content.File(media_type=source["media_type"], name=name, data=dialect.decode_base64(source["data"]))
        case "text":
            return content.File(media_type="text/plain", name=name, data=source["data"].encode())
        case "content":
            return content.Text(dialect.join_texts(source["content"]))
        case "file":
            return content.File(media_type="application/octet-stream", name=name, file_id=source["file_id"])
        case _:
            media_type = "image/*" if raw["type"] == "image" else "application/pdf"
            return content.File(media_type=media_type, name=name, url=source["url"])


def _read_shown(given: Any) -> list[content.File]:
    """The pictures and documents in the result of a tool."""
    blocks = given if isinstance(given, list) else []
    files = [_read_file(block) for block in blocks if block.get("type") in _SHOWN]
    return [file for file in files if isinstance(file, content.File)]


def _read_tool(raw: dict[str, Any]) -> content.ToolSpec:
    if raw.get("type", "custom") != "custom":
        return content.ToolSpec(name=raw["name"], provider_executed=True, options=raw)
    return content.ToolSpec(
        name=raw["name"], description=raw.get("description", ""), input_schema=raw.get("input_schema") or {}
    )


# --- the reply ---


_STOP_REASONS: Final = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}

_PING: Final = dialect.write_event({"type": "ping"}, "ping")
_STOP: Final = dialect.write_event({"type": "message_stop"}, "message_stop")

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
        return self.head + dialect.encode_json(delta) + _DELTA_TAIL


class AnthropicReply:
    def __init__(self, *, model: str, id: str) -> None:
        self._id = id
        self._model = model
        self._order = dialect.PartOrder()
        self._has_begun = False
        self._content: list[dict[str, Any]] = []
        self._texts: dict[str, _Block] = {}
        self._last_text: _Block | None = None
        self._thinking: dict[str, _Block] = {}
        self._redacted: set[str] = set()
        self._signatures: dict[str, str | None] = {}
        self._calls: dict[str, _Block] = {}
        self._delta: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._usage = _show_usage(content.Usage())

    def write(self, part: content.Part) -> list[bytes]:
        events: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            if isinstance(part, content.UsageUpdate):
                self._usage = _show_usage(part.usage)
            events += [
                dialect.write_event({"type": "message_start", "message": self.build_whole()}, "message_start"),
                _PING,
            ]
        for each in self._order.feed(part):
            if type(each) is content.TextDelta:
                events.append(self._texts[each.id].write_delta(each.delta))
            else:
                events += self._write(each)
        return events

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        return [self.write_error(show_anthropic(refusal, f"req_{self._id}"))]

    def write_error(self, body: Any) -> bytes:
        if body is None:
            body = show_anthropic(Refusal("Overloaded", type="overloaded_error"), f"req_{self._id}")
        return dialect.write_event(body, "error")

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

    def _write(self, part: content.Part) -> Iterator[bytes]:
        match part:
            case content.TextStart():
                self._last_text = block = self._add({"type": "text", "text": ""}, b"text_delta", b"text")
                self._texts[part.id] = block
                yield self._start(block)
            case content.TextEnd():
                yield self._stop(self._texts.pop(part.id))
            case content.Source():
                yield from self._cite(part)
            case content.ReasoningStart() | content.ReasoningDelta() | content.ReasoningEnd():
                yield from self._think(part)
            case content.ToolInputStart():
                kind = "server_tool_use" if part.provider_executed else "tool_use"
                body = {"type": kind, "id": part.id, "name": part.name, "input": {}}
                self._calls[part.id] = self._add(body, b"input_json_delta", b"partial_json")
                yield self._start(self._calls[part.id])
            case content.ToolInputDelta():
                yield self._calls[part.id].write_delta(part.delta)
            case content.ToolInputEnd():
                yield self._stop(self._calls.pop(part.id))
            case content.ToolResult(provider_executed=True):
                yield from self._write_whole(_show_result(part))
            case content.File(file_id=str(file_id)):
                yield from self._write_whole({"type": "container_upload", "file_id": file_id})
            case content.KeepAlive():
                yield _PING
            case content.Finish():
                yield from self._finish(part)
            case _:
                return

    def _think(self, part: content.ReasoningStart | content.ReasoningDelta | content.ReasoningEnd) -> Iterator[bytes]:
        redacted = (part.metadata or {}).get("redacted_thinking")
        block = self._thinking.get(part.id)
        if block is None and redacted is not None:
            self._redacted.add(part.id)
            yield from self._write_whole({"type": "redacted_thinking", "data": redacted})
        elif block is None and part.id not in self._redacted and not isinstance(part, content.ReasoningStart):
            body = {"type": "thinking", "thinking": "", "signature": ""}
            block = self._thinking[part.id] = self._add(body, b"thinking_delta", b"thinking")
            yield self._start(block)
        self._signatures[part.id] = part.signature or self._signatures.get(part.id)
        if block is not None and isinstance(part, content.ReasoningDelta) and part.delta:
            yield block.write_delta(part.delta)
        if isinstance(part, content.ReasoningEnd):
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

    def _cite(self, source: content.Source) -> Iterator[bytes]:
        assert self._last_text is not None, "PartOrder lets no source come without a text"
        citation = _show_citation(source)
        self._last_text.body.setdefault("citations", []).append(citation)
        yield self._delta_event(self._last_text, {"type": "citations_delta", "citation": citation})

    def _finish(self, finish: content.Finish) -> Iterator[bytes]:
        named = finish.metadata or {}
        self._delta = {
            "stop_reason": named.get("stop_reason", _STOP_REASONS[finish.reason]),
            "stop_sequence": named.get("stop_sequence"),
        }
        self._usage = _show_usage(finish.usage or content.Usage())
        yield dialect.write_event(
            {"type": "message_delta", "delta": self._delta, "usage": self._usage}, "message_delta"
        )
        yield _STOP

    # --- blocks ---

    def _add(self, body: dict[str, Any], delta: bytes, field: bytes) -> _Block:
        self._content.append(body)
        return _Block(len(self._content) - 1, body, delta, field)

    def _start(self, block: _Block) -> bytes:
        event = {"type": "content_block_start", "index": block.index, "content_block": block.body}
        return dialect.write_event(event, "content_block_start")

    def _stop(self, block: _Block) -> bytes:
        whole = "".join(block.pieces)
        if block.field == "partial_json":
            block.body["input"] = dialect.read_object(whole)
        else:
            block.body[block.field] = whole
        return dialect.write_event({"type": "content_block_stop", "index": block.index}, "content_block_stop")

    def _write_whole(self, body: dict[str, Any]) -> Iterator[bytes]:
        self._content.append(body)
        index = len(self._content) - 1
        yield dialect.write_event(
            {"type": "content_block_start", "index": index, "content_block": body}, "content_block_start"
        )
        yield dialect.write_event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _delta_event(self, block: _Block, delta: dict[str, Any]) -> bytes:
        event = {"type": "content_block_delta", "index": block.index, "delta": delta}
        return dialect.write_event(event, "content_block_delta")


def _show_usage(usage: content.Usage) -> dict[str, Any]:
    """Anthropic counts cache reads and cache writes separately from the other input."""
    return {
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _show_result(result: content.ToolResult) -> dict[str, Any]:
    """`web_search` gives a `web_search_tool_result`; a plain-text error gets the shape of an error."""
    family = "tool_search_tool" if result.name.startswith("tool_search_tool") else result.name
    given = result.output
    if result.is_error and not isinstance(given, dict):
        given = {"type": f"{family}_tool_result_error", "error_code": "unavailable"}
    return {"type": f"{family}_tool_result", "tool_use_id": result.call_id, "content": given}


def _show_citation(source: content.Source) -> dict[str, Any]:
    shown: dict[str, Any] = {"cited_text": source.quote or ""}
    if source.url is not None:
        shown |= {"type": "web_search_result_location", "url": source.url, "title": source.title}
        shown["encrypted_index"] = source.id or "simulated"
    else:
        shown |= {"type": "char_location", "document_title": source.title, "document_index": 0}
        shown |= {"start_char_index": 0, "end_char_index": len(source.quote or "")}
    return shown | (source.metadata or {})
