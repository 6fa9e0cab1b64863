"""Anthropic Messages, the provider's side: parsing a request.

The history is checked by the rules that Anthropic really enforces, with its own error messages: every `tool_use` is
answered in the next message, no text is blank, no message is empty, and a final assistant message does not end with
whitespace. anthropic_reply.py writes the reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from indelible.content import Block, File, Reasoning, Role, Text, ToolCall, ToolResult, ToolSpec
from indelible.errors import ModelFailed
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing.provider.events import encode_json
from indelible.testing.provider.refusals import Refusal, find_anthropic_type, refuse_as_anthropic, show_anthropic
from indelible.testing.provider.transcript import Transcript, decode_base64, find_orphans, find_unanswered
from indelible.testing.provider.wires.anthropic_reply import AnthropicReply
from indelible.testing.provider.wires.dialect import CREATED_AT, ParsedRequest, ReplyWriter

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

    def find_key(self, headers: Mapping[str, str]) -> str | None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return headers.get("x-api-key") or bearer or None

    def refuse_key(self, key: str | None) -> Refusal:
        message = "invalid x-api-key" if key else "x-api-key header is required"
        return Refusal(message, status=401, type="authentication_error")

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        if "anthropic-version" not in headers:
            raise Refusal("anthropic-version: header is required")
        for field in _REQUIRED:
            if field not in body:
                raise Refusal(f"{field}: Field required")
        if not isinstance(body["messages"], list) or not body["messages"]:
            raise Refusal("messages: at least one message is required")
        transcript = Transcript()
        for text, cache in _read_texts(body.get("system") or [], "system"):
            transcript.add("system", text, cache=cache)
        for at, message in enumerate(body["messages"]):
            _read_message(transcript, message, f"messages.{at}")
        parameters = {ours: body[theirs] for theirs, ours in _PARAMETERS.items() if theirs in body}
        effort = (body.get("output_config") or {}).get("effort")
        return ParsedRequest(
            model=str(body["model"]),
            body=body,
            messages=transcript.messages,
            tools=[_read_tool(tool) for tool in body.get("tools") or []],
            options=CallOptions(parameters=parameters | ({"effort": effort} if effort else {})),
            streams=body.get("stream") is True,
        )

    def check(self, call: Call) -> None:
        if missing := find_unanswered(call.messages, at_once=True):
            raise Refusal(
                f"messages: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                f"next message."
            )
        if orphans := find_orphans(call.messages, at_once=True):
            raise Refusal(
                f"messages: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(orphans)}. Each "
                f"`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        _check_trailing_space(call.messages)

    def refuse(self, status: int, message: str) -> Refusal:
        return Refusal(message, status=status, type=find_anthropic_type(status))

    def refuse_failure(self, failure: ModelFailed) -> Refusal:
        return refuse_as_anthropic(failure)

    def show(self, refusal: Refusal, request_id: str) -> dict[str, Any]:
        return show_anthropic(refusal, request_id)

    def open_reply(self, parsed: ParsedRequest, id: str) -> ReplyWriter:
        return AnthropicReply(model=parsed.model, id=id)

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        created_at = datetime.fromtimestamp(CREATED_AT, UTC).isoformat()
        data = [
            {"type": "model", "id": name, "display_name": name, "created_at": created_at, "lifecycle": "active"}
            for name in names
        ]
        return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}


def _check_trailing_space(messages: Sequence[PromptMessage]) -> None:
    last = messages[-1].blocks[-1]
    if messages[-1].role == "assistant" and isinstance(last, Text) and last.text != last.text.rstrip():
        raise Refusal("messages: final assistant content cannot end with trailing whitespace")


# --- messages ----------------------------------------------------------------------------


def _read_message(transcript: Transcript, message: Any, place: str) -> None:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if role == "system":
        for text, cache in _read_texts(content, place):
            transcript.add("system", text, cache=cache)
        return
    if role not in {"user", "assistant"}:
        raise Refusal(f'{place}.role: Input should be "user" or "assistant"')
    if not content:
        raise Refusal(
            f"{place}: all messages must have non-empty content except for the optional final assistant message"
        )
    for at, raw in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
        block = _read_block(raw, f"{place}.content.{at}")
        author: Role = "tool" if isinstance(block, ToolResult) and not block.provider_executed else role
        transcript.add(author, block, cache=bool(raw.get("cache_control")))


def _read_texts(content: Any, place: str) -> Iterator[tuple[Text, bool]]:
    for raw in [{"text": content}] if isinstance(content, str) else content:
        yield _read_text(raw, place), bool(raw.get("cache_control"))


def _read_text(raw: dict[str, Any], place: str) -> Text:
    text = raw.get("text")
    if not isinstance(text, str) or not text.strip():
        raise Refusal(f"{place}: text content blocks must contain non-whitespace text")
    return Text(text)


def _read_block(raw: Any, place: str) -> Block:
    kind = raw.get("type") if isinstance(raw, dict) else None
    try:
        match kind:
            case "text":
                return _read_text(raw, place)
            case str() if kind in _SHOWN:
                return _read_file(raw)
            case "thinking":
                return Reasoning(text=raw["thinking"], signature=raw["signature"])
            case "redacted_thinking":
                return Reasoning(metadata={"redacted_thinking": raw["data"]})
            case "tool_use" | "server_tool_use":
                call = ToolCall(raw["id"], raw["name"], encode_json(raw["input"]).decode())
                return call if kind == "tool_use" else replace(call, provider_executed=True, metadata={"type": kind})
            case "tool_result":
                output = _join_texts(raw.get("content"))
                files, is_error = _read_shown(raw.get("content")), raw.get("is_error") is True
                return ToolResult(raw["tool_use_id"], "", output, is_error=is_error, files=files)
            case str() if kind.endswith(_RESULT):
                output, metadata = raw["content"], {"type": kind}
                return ToolResult(raw["tool_use_id"], "", output, provider_executed=True, metadata=metadata)
    except KeyError as error:
        raise Refusal(f"{place}.{kind}.{error.args[0]}: Field required") from error
    raise Refusal(f"{place}: Input tag '{kind}' found using 'type' does not match any of the expected tags")


def _read_file(raw: dict[str, Any]) -> Block:
    source, name = raw["source"], raw.get("title")
    match source.get("type"):
        case "base64":
            return File(media_type=source["media_type"], name=name, data=decode_base64(source["data"]))
        case "text":
            return File(media_type="text/plain", name=name, data=source["data"].encode())
        case "content":
            return Text(_join_texts(source["content"]))
        case "file":
            return File(media_type="application/octet-stream", name=name, file_id=source["file_id"])
        case _:
            media_type = "image/*" if raw["type"] == "image" else "application/pdf"
            return File(media_type=media_type, name=name, url=source["url"])


def _read_shown(content: Any) -> list[File]:
    """The pictures and documents in the result of a tool."""
    blocks = content if isinstance(content, list) else []
    files = [_read_file(block) for block in blocks if block.get("type") in _SHOWN]
    return [file for file in files if isinstance(file, File)]


def _join_texts(content: Any) -> str:
    """The text of a tool's result, which is a string or a list of blocks."""
    if not isinstance(content, list):
        return content or ""
    return "".join(block.get("text", f"[{block.get('type')}]") for block in content)


def _read_tool(raw: dict[str, Any]) -> ToolSpec:
    if raw.get("type", "custom") != "custom":
        return ToolSpec(name=raw["name"], provider_executed=True, options=raw)
    return ToolSpec(
        name=raw["name"], description=raw.get("description", ""), input_schema=raw.get("input_schema") or {}
    )
