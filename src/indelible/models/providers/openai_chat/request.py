"""Writing a call for OpenAI Chat Completions, in the form that most dialects accept.

Dozens of servers speak this format, and each rejects something else. So the body uses only what all of them know: text
is a plain string wherever possible (DeepSeek rejects a list of parts), adjacent messages of one role are merged (many
chat templates reject a second system message, or two user messages in a row), and a field without a value is omitted.
Two things differ between OpenAI (`official`) and the rest: the name of the output limit, and what only others have
(`top_k`, extra fields of an assistant's message).

What must go back to its server is in the metadata that response.py stored: `field` of a reasoning block is the field
that its text came from and goes back to; `extra_content` and `reasoning_details` of a tool call are signatures, without
which Gemini rejects the next request, and `given_id` is the id by which the server knows a call. Metadata of any other
shape belongs to another wire format and is left out.

Files: images, PDFs and audio have fields of their own; text files are inlined. For any other file the model gets a
note: a request that contained it would be rejected, and so would every later request of the chat.

Must stay true (tests/models/test_openai_chat_request.py): for any history, the body is valid by the SDK's own request
type; the same call gives the same bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from indelible.content import Block, File, Metadata, Reasoning, Text, ToolCall, ToolResult, ToolSpec
from indelible.models.profile import Profile
from indelible.models.protocol import Call, Parameters, PromptMessage
from indelible.models.providers.openai_chat.tool_calls import GIVEN_ID

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""The fields in which dialects send the model's thinking, and expect it back."""

_PLAIN_PARAMETERS: Final[tuple[tuple[str, type], ...]] = (
    ("temperature", float),
    ("top_p", float),
    ("seed", int),
    ("frequency_penalty", float),
    ("presence_penalty", float),
    ("verbosity", str),
    ("service_tier", str),
    ("user", str),
)
_FILED_UNDER: Final = ("prompt_cache_key", "safety_identifier")
"""What only OpenAI knows. Its `metadata` belong to completions that it stores, and these are not."""
_TOOL_CHOICES: Final = frozenset({"auto", "none", "required"})
_NO_ARGUMENTS: Final = {"type": "object", "properties": {}}
_OFFICIAL_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_SOUNDS: Final = {
    "audio/wav": "wav",
    "audio/wave": "wav",
    "audio/x-wav": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml"}
    | {"application/javascript", "application/typescript", "application/sql", "application/x-sh"}
)
_TEXT_ENDINGS: Final = ("+json", "+xml", "+yaml")
_SHOWN: Final = Text("[Files that the tools returned:]")
_REMOTE: Final = ("https://", "http://")


def write_body(call: Call, *, model: str, profile: Profile, official: bool) -> tuple[dict[str, Any], list[str]]:
    """The request body, and a warning for each parameter that it cannot express."""
    body: dict[str, Any] = {
        "model": model,
        "messages": write_messages(call.messages, profile=profile, official=official),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if call.tools:
        body["tools"] = [_write_tool(tool) for tool in call.tools]
    parameters = Parameters(call.parameters)
    body |= _write_parameters(parameters, profile=profile, official=official, with_tools=bool(call.tools))
    return body, parameters.warn("OpenAI" if official else "the provider")


def write_messages(messages: Sequence[PromptMessage], *, profile: Profile, official: bool) -> list[dict[str, Any]]:
    """The conversation. Adjacent messages of one role are merged, except tool results."""
    written: list[dict[str, Any]] = []
    given_ids: dict[str, str] = {}
    shown: list[Block] = []  # by tools, whose messages hold text only: a message of the user shows it after them
    for message in (*messages, PromptMessage(role="notice")):
        if shown and message.role != "tool":
            written.append({"role": "user", "content": _write_given([_SHOWN, *shown], official=official)})
            shown = []
        match message.role:
            case "tool":
                results = [block for block in message.blocks if isinstance(block, ToolResult)]
                written += [_write_result(result, given_ids) for result in results]
                shown += [file for result in results for file in result.files if file.data]
                continue
            case "notice":
                continue
            case "assistant":
                entry = _write_reply(message.blocks, profile=profile, official=official)
                given_ids = {} if official else _list_given_ids(message.blocks)
            case role:
                entry = {"role": role, "content": _write_given(message.blocks, official=official)}
        if not entry["content"] and "tool_calls" not in entry:
            continue
        last = written[-1] if written else {}
        if last.get("role") == entry["role"] and "tool_calls" not in last:
            written[-1] = {**last, **entry, "content": last["content"] + entry["content"]}
        else:
            written.append(entry)
    return [{**entry, "content": _flatten(entry["content"])} for entry in written]


# --- parameters and tools ----------------------------------------------------------------


def _write_parameters(parameters: Parameters, *, profile: Profile, official: bool, with_tools: bool) -> dict[str, Any]:
    written: dict[str, Any] = {name: parameters.pop(name, kind) for name, kind in _PLAIN_PARAMETERS}
    written["max_completion_tokens" if official else "max_tokens"] = parameters.pop("max_tokens", int)
    written["stop"] = parameters.pop_texts("stop") or None
    if official:
        written |= {name: parameters.pop(name, str) for name in _FILED_UNDER}
    else:
        written["top_k"] = parameters.pop("top_k", int)
    if profile.effort != "none":
        written["reasoning_effort"] = parameters.pop_effort()
    written["response_format"] = _write_format(parameters.pop("format", dict))
    choice = parameters.pop("tool_choice", str)
    parallel = parameters.pop("parallel_tool_calls", bool)
    if with_tools:  # without tools, servers reject both
        written["tool_choice"] = _write_choice(choice)
        written["parallel_tool_calls"] = parallel
    return {name: value for name, value in written.items() if value is not None}


def _write_format(given: dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


def _write_choice(choice: str | None) -> str | dict[str, Any] | None:
    if choice is None or choice in _TOOL_CHOICES:
        return choice
    return {"type": "function", "function": {"name": choice}}


def _write_tool(tool: ToolSpec) -> dict[str, Any]:
    if tool.provider_executed:
        return tool.options
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema or _NO_ARGUMENTS}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


# --- messages ----------------------------------------------------------------------------


def _write_result(result: ToolResult, given_ids: dict[str, str]) -> dict[str, Any]:
    id_ = given_ids.get(result.call_id, result.call_id)
    return {"role": "tool", "tool_call_id": id_, "content": str(result.output)}


def _list_given_ids(blocks: Sequence[Block]) -> dict[str, str]:
    """The ids by which the server knows the calls of a reply, where they are not ours."""
    calls = [block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]
    given = {call.id: (call.metadata or {}).get(GIVEN_ID) for call in calls}
    return {id_: known for id_, known in given.items() if isinstance(known, str) and known}


def _write_reply(blocks: Sequence[Block], *, profile: Profile, official: bool) -> dict[str, Any]:
    """An assistant message. A provider's own calls cannot be sent; loop/prompt/clean.py replaced them by notes."""
    entry: dict[str, Any] = {"role": "assistant", "content": _write_texts(blocks)}
    calls = [block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]
    if not calls:
        return entry
    given_ids = {} if official else _list_given_ids(calls)
    entry["tool_calls"] = [_write_call(call, given_ids, official=official) for call in calls]
    if official:
        return entry
    details = [detail for call in calls for detail in _read_list(call.metadata, "reasoning_details")]
    if details:
        entry["reasoning_details"] = details
    elif profile.returns_reasoning:
        entry |= _write_reasoning(blocks)
    return entry


def _write_call(call: ToolCall, given_ids: dict[str, str], *, official: bool) -> dict[str, Any]:
    written: dict[str, Any] = {
        "id": given_ids.get(call.id, call.id),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    extra = (call.metadata or {}).get("extra_content")
    if not official and isinstance(extra, dict):
        written["extra_content"] = extra
    return written


def _write_reasoning(blocks: Sequence[Block]) -> dict[str, str]:
    """The thinking, in the field that it came from."""
    written: dict[str, str] = {}
    for block in blocks:
        field = (block.metadata or {}).get("field") if isinstance(block, Reasoning) else None
        if field in REASONING_FIELDS:
            written[field] = written.get(field, "") + block.text
    return written


def _write_texts(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """The text of a reply. Adjacent text blocks form one text; any other block between them separates them."""
    runs = groupby(blocks, key=lambda block: isinstance(block, Text))
    texts = ["".join(block.text for block in run) for is_text, run in runs if is_text]
    return [_write_text(text) for text in texts if text]


def _flatten(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """Content in its simplest form: null if empty, a string if it is all text."""
    if isinstance(content, str) or any(part["type"] != "text" for part in content):
        return content
    return "\n\n".join(part["text"] for part in content) or None


def _read_list(metadata: Metadata | None, key: str) -> list[dict[str, Any]]:
    value = (metadata or {}).get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# --- user content ------------------------------------------------------------------------


def _write_given(blocks: Sequence[Block], *, official: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Text) and block.text:
            parts.append(_write_text(block.text))
        elif isinstance(block, File):
            parts.append(_write_file(block, official=official) or _describe_file(block))
    return parts


def _write_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _write_file(file: File, *, official: bool) -> dict[str, Any] | None:
    """The file in this format; None if it has no form for it."""
    media_type = file.media_type.partition(";")[0].strip().lower()
    if file.data and _is_text(media_type):
        return _write_text(f'<file name="{file.name or "unnamed"}">\n{file.data.decode("utf-8", "replace")}\n</file>')
    if file.data and media_type in _SOUNDS:
        sound = {"data": base64.b64encode(file.data).decode(), "format": _SOUNDS[media_type]}
        return {"type": "input_audio", "input_audio": sound}
    address = _find_address(file, media_type)
    if address is None:
        return None
    if media_type in _OFFICIAL_IMAGES or (media_type.startswith("image/") and not official):
        return {"type": "image_url", "image_url": {"url": address}}
    if media_type == "application/pdf" and (file.data or not official):
        return {"type": "file", "file": {"filename": file.name or "document.pdf", "file_data": address}}
    return None


def _is_text(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type in _TEXT_TYPES or media_type.endswith(_TEXT_ENDINGS)


def _find_address(file: File, media_type: str) -> str | None:
    """The address of the file for the provider: a data URL, or a URL that it can reach."""
    if file.data:
        return f"data:{media_type};base64,{base64.b64encode(file.data).decode()}"
    return file.url if file.url is not None and file.url.startswith(_REMOTE) else None


def _describe_file(file: File) -> dict[str, Any]:
    place = f", {file.url}" if file.url is not None and file.url.startswith(_REMOTE) else ""
    return _write_text(f"[A file that cannot be sent: {file.name or 'unnamed'} ({file.media_type}){place}]")
