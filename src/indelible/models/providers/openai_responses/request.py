"""Writing a call for OpenAI's Responses API: `instructions`, a list of `input` items, tools.

A reply is not one message here but a list of items: reasoning, text, function calls, and the provider's own tool calls,
each with an id. They go back in their original order. The provider links the items of one response by their ids and
rejects a request that breaks a link: reasoning without the item that followed it, or an item without its reasoning. So
*ids travel with their reasoning or not at all*. Reasoning is held back until an item follows under its own id. If
something else follows (interrupted text, a note), the reasoning is left out, and what comes after it is sent without
ids, like text of any other origin. Reasoning goes back only with its encrypted content: without it, the provider would
have to remember the item, and may have forgotten it.

The provider's own tool calls go back as they came (`metadata["item"]`, stored by the reader), reduced to the fields
that are legal in a request: responses have a few more. Calls that a client would have to answer (computer, shell…), and
interrupted ones, become a short note.

Encrypted reasoning is requested by the model's name, because models that do not reason reject the request for it.

Must stay true (tests/models/test_openai_responses_request.py): every body is valid by the official SDK's types, with no
extra field; the same call gives the same bytes. response.py reads the response.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from indelible.content import Block, File, Reasoning, Text, ToolCall, ToolResult, ToolSpec
from indelible.models.http.http_model import WireRequest
from indelible.models.protocol import Call, Parameters, PromptMessage

Item = dict[str, Any]
CUSTOM_INPUT: Final = "input"
"""The one argument of a custom tool, whose input is plain text, not JSON."""

_REASONS: Final = re.compile(r"(?:.*[/:])?(?:o[1-9]|gpt-(?:[5-9]|\d\d)|codex)(?!.*-chat)", re.IGNORECASE)
_HELD_RESULTS: Final = {
    "file_search": "file_search_call.results",
    "code_interpreter": "code_interpreter_call.outputs",
}
"""Tools whose results the provider sends only on request."""

_CHOICES: Final = frozenset({"auto", "none", "required"})
_PHASES: Final = frozenset({"commentary", "final_answer"})
_IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_PDF: Final = "application/pdf"
_READABLE: Final = re.compile(r"text/.+|application/(?:.+\+)?(?:json|xml|yaml)|application/(?:javascript|x-yaml|toml)")
_ADDRESSES: Final = ("https://", "http://")


def get_text(values: Mapping[str, Any] | None, name: str) -> str | None:
    """The non-empty text of this name; None for anything else."""
    value = values.get(name) if values else None
    return value if isinstance(value, str) and value else None


def _write_reasoning_options(effort: str | None, summary: str | None) -> dict[str, Any] | None:
    """An effort implies a summary. Accounts that OpenAI has not verified must set the summary to `none`."""
    wanted = summary or ("auto" if effort else "none")
    reasoning = {"effort": effort, "summary": None if wanted == "none" else wanted}
    return {name: value for name, value in reasoning.items() if value} or None


def write_call(call: Call, model: str) -> WireRequest:
    """Write the request."""
    parameters = Parameters(call.parameters)
    leading = next((at for at, message in enumerate(call.messages) if message.role != "system"), len(call.messages))
    effort = parameters.pop_effort()
    text = {"verbosity": parameters.pop("verbosity", str), "format": parameters.pop("format", dict)}
    tool_choice = parameters.pop("tool_choice", str)
    user, safety_identifier = parameters.pop("user", str), parameters.pop("safety_identifier", str)
    optional: dict[str, Any] = {
        "previous_response_id": call.options.previous_response_id,
        "instructions": "\n\n".join(filter(None, map(_join_texts, call.messages[:leading]))) or None,
        "tools": [_write_tool(tool) for tool in call.tools] or None,
        "tool_choice": _write_choice(tool_choice, call.tools) if tool_choice and call.tools else None,
        "parallel_tool_calls": parameters.pop("parallel_tool_calls", bool),
        "max_output_tokens": parameters.pop("max_tokens", int),
        "temperature": parameters.pop("temperature", float),
        "top_p": parameters.pop("top_p", float),
        "reasoning": _write_reasoning_options(effort, parameters.pop("summary", str)),
        "text": {name: value for name, value in text.items() if value} or None,
        "service_tier": parameters.pop("service_tier", str),
        "metadata": parameters.pop("metadata", dict) or None,
        "prompt_cache_key": parameters.pop("prompt_cache_key", str),
        "safety_identifier": safety_identifier or user,
        "include": _list_includes(call.tools, reasons=bool(effort or _REASONS.match(model))) or None,
    }
    body = {
        "model": model,
        "stream": True,
        "store": call.options.store,
        **{name: value for name, value in optional.items() if value is not None},
        "input": _write_input(call.messages[leading:]),
    }
    return WireRequest(path="/responses", body=body, warnings=parameters.warn("OpenAI's Responses API"))


# --- tools -------------------------------------------------------------------------------


def _write_tool(tool: ToolSpec) -> Item:
    if tool.provider_executed:
        return {"type": tool.name, **tool.options}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema or {"type": "object", "properties": {}},
        "strict": False,
    }


def _write_choice(choice: str, tools: Sequence[ToolSpec]) -> str | Item:
    if choice in _CHOICES:
        return choice
    own = next((tool for tool in tools if tool.provider_executed and tool.name == choice), None)
    if own is None:
        return {"type": "function", "name": choice}
    named = {name: value for name, value in _write_tool(own).items() if name in {"type", "server_label"}}
    return {"type": "allowed_tools", "mode": "required", "tools": [named]}


def _list_includes(tools: Sequence[ToolSpec], *, reasons: bool) -> list[str]:
    offered = {_write_tool(tool)["type"] for tool in tools if tool.provider_executed}
    results = [include for tool, include in _HELD_RESULTS.items() if tool in offered]
    return ["reasoning.encrypted_content", *results] if reasons else results


# --- input -------------------------------------------------------------------------------


def _write_input(messages: Sequence[PromptMessage]) -> list[Item]:
    items: list[Item] = []
    custom_calls: set[str] = set()
    for message in messages:
        match message.role:
            case "system":
                items.append({"role": "developer", "content": _join_texts(message)})
            case "user":
                items.append({"role": "user", "content": [_write_content(block) for block in message.blocks]})
            case "assistant":
                items += _Reply(custom_calls).write(message.blocks)
            case "tool":
                items += _write_results(message.blocks, custom_calls)
            case "notice":
                pass
    return items


def _join_texts(message: PromptMessage) -> str:
    return "\n\n".join(block.text for block in message.blocks if isinstance(block, Text))


def _write_content(block: Block) -> Item:
    match block:
        case File():
            return _write_file(block)
        case _:
            return {"type": "input_text", "text": block.text}


def _write_file(file: File) -> Item:
    media_type = file.media_type.partition(";")[0].strip().lower()
    url = file.url if file.url and file.url.lower().startswith(_ADDRESSES) else None
    if media_type in _IMAGES and (file.data or url):
        return {"type": "input_image", "detail": "auto", "image_url": _to_data_url(file.data, media_type) or url}
    if media_type == _PDF and file.data:
        name = file.name or "document.pdf"
        return {"type": "input_file", "filename": name, "file_data": _to_data_url(file.data, media_type)}
    if media_type == _PDF and url:
        return {"type": "input_file", "file_url": url}
    name = file.name or "unnamed"
    if file.data and _READABLE.fullmatch(media_type):
        return {"type": "input_text", "text": f"[The file {name}]\n{file.data.decode('utf-8', 'replace')}"}
    return {"type": "input_text", "text": f"[A file that cannot be sent: {name} ({file.media_type})]"}


def _to_data_url(data: bytes | None, media_type: str) -> str | None:
    return f"data:{media_type};base64,{b64encode(data).decode()}" if data else None


def _write_results(blocks: Sequence[Block], custom_calls: set[str]) -> Iterator[Item]:
    for block in blocks:
        if isinstance(block, ToolResult):
            kind = "custom_tool_call_output" if block.call_id in custom_calls else "function_call_output"
            output = block.output if isinstance(block.output, str) else msgspec.json.encode(block.output).decode()
            shown = [_write_file(file) for file in block.files if file.data]
            whole = [{"type": "input_text", "text": output}, *shown] if shown else output
            yield {"type": kind, "call_id": block.call_id, "output": whole}


# --- replies -----------------------------------------------------------------------------


class _Reply:
    """The items of one reply. The module header explains how ids stay together.

    `_waiting` is reasoning that no item has followed yet. `_linked`: the latest reasoning was sent; `_broken`: it was
    left out.
    """

    def __init__(self, custom_calls: set[str]) -> None:
        self._items: list[Item] = []
        self._custom_calls = custom_calls
        self._waiting: list[Item] = []
        self._linked = False
        self._broken = False

    def write(self, blocks: Sequence[Block]) -> list[Item]:
        for block in blocks:
            match block:
                case Reasoning():
                    self._waiting += _write_reasoning(block)
                case Text():
                    self._add_text(block)
                case ToolCall(provider_executed=False):
                    self._add_call(block)
                case ToolCall():
                    self._add_own_call(block)
                case _:  # Sources and results of the provider's own tools are part of earlier items.
                    pass
        return self._items

    def _link(self, id: str | None) -> bool:
        """Whether the next item keeps its id. Reasoning that waited for it is sent now or never."""
        if self._waiting:
            self._linked = id is not None
            self._broken = not self._linked
            self._items += self._waiting if self._linked else []
            self._waiting = []
        return self._linked and id is not None

    def _add_text(self, block: Text) -> None:
        id_ = get_text(block.metadata, "id")
        phase = get_text(block.metadata, "phase")
        labels = {"phase": phase} if phase in _PHASES else {}
        if not self._link(id_):
            self._items.append({"role": "assistant", "content": block.text, **labels})
            return
        content = {"type": "output_text", "text": block.text, "annotations": []}
        if self._items[-1].get("id") == id_:
            self._items[-1]["content"].append(content)
            return
        message = {"type": "message", "id": id_, "role": "assistant", "status": "completed", "content": [content]}
        self._items.append({**message, **labels})

    def _add_call(self, call: ToolCall) -> None:
        id_ = get_text(call.metadata, "id")
        ids = {"id": id_, "call_id": call.id} if self._link(id_) else {"call_id": call.id}
        if call.metadata and call.metadata.get("custom") is True:
            self._custom_calls.add(call.id)
            given = get_text(msgspec.json.decode(call.arguments), CUSTOM_INPUT) or ""
            self._items.append({"type": "custom_tool_call", **ids, "name": call.name, "input": given})
        else:
            self._items.append({"type": "function_call", **ids, "name": call.name, "arguments": call.arguments})

    def _add_own_call(self, call: ToolCall) -> None:
        item = _clean_item((call.metadata or {}).get("item"))
        if item is not None and (self._waiting or not self._broken):
            self._link(item["id"])
            self._items.append(item)
            return
        self._link(None)
        details = f": {call.arguments}" if call.arguments not in {"", "{}"} else ""
        self._items.append({"role": "assistant", "content": f"[Used the tool {call.name}{details}]"})


def _write_reasoning(block: Reasoning) -> Iterator[Item]:
    id_, encrypted = get_text(block.metadata, "id"), get_text(block.metadata, "encrypted_content")
    if id_ and encrypted:
        summary = [{"type": "summary_text", "text": block.text}] if block.text else []
        yield {"type": "reasoning", "id": id_, "summary": summary, "encrypted_content": encrypted}


# --- the provider's own calls ------------------------------------------------------------


class _OwnCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """A call that is legal in a request, with its legal fields. The provider needs its id."""

    id: str


class _WebSearch(_OwnCall, tag="web_search_call", frozen=True, kw_only=True):
    status: str
    action: dict[str, Any]


class _FileSearch(_OwnCall, tag="file_search_call", frozen=True, kw_only=True):
    status: str
    queries: list[str]
    results: list[dict[str, Any]] | None = None


class _CodeInterpreter(_OwnCall, tag="code_interpreter_call", frozen=True, kw_only=True):
    status: str
    container_id: str
    code: str | None
    outputs: list[dict[str, Any]] | None


class _ImageGeneration(_OwnCall, tag="image_generation_call", frozen=True, kw_only=True):
    status: str
    result: str | None
    action: str | None = None
    background: str | None = None
    error: dict[str, Any] | None = None
    output_format: str | None = None
    quality: str | None = None
    revised_prompt: str | None = None
    size: str | None = None
    svg_usage: dict[str, Any] | None = None


class _McpCall(_OwnCall, tag="mcp_call", frozen=True, kw_only=True):
    server_label: str
    name: str
    arguments: str
    approval_request_id: str | None = None
    error: dict[str, Any] | None = None
    output: str | None = None
    status: str | None = None


class _McpListTools(_OwnCall, tag="mcp_list_tools", frozen=True, kw_only=True):
    server_label: str
    tools: list[dict[str, Any]]
    error: str | None = None


_Known = _WebSearch | _FileSearch | _CodeInterpreter | _ImageGeneration | _McpCall | _McpListTools


def _clean_item(item: object) -> Item | None:
    """The item reduced to the legal fields of a request; None if it is not legal there."""
    try:
        cleaned: Item = msgspec.to_builtins(msgspec.convert(item, _Known))
    except msgspec.ValidationError:
        return None
    return cleaned if cleaned["id"] else None
