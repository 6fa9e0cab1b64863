"""Anthropic Messages: a call, written as the body of a request. response.py reads the response.

The prompt arrives legal and in order, one entry per message (rule 5.3); this wire format wants it in another shape.
System texts form a field of their own, wherever they occurred. User and tool messages share the role `user`, adjacent
messages of one role are merged, and a message with tool results begins with them. A cache marker belongs to an entry,
so it is set before merging, on the entry's last block that can carry one (rule 5.5).

What a provider's block needs beyond our fields comes from `metadata`, where response.py stored it. Metadata of another
shape belongs to another provider: reasoning is then left out, and a provider's own call or result becomes a short note.

*Thinking* follows the profile: newer models get a level and decide how much they think, older ones get a budget out of
the tokens of the reply. A thinking model accepts neither a forced tool nor most sampling parameters, and newer models
accept no sampling parameters at all. What cannot be sent is left out with a warning, never silently.

The same call always gives the same bytes, because prompt caches depend on it.

Must stay true (tests/models/test_anthropic_request.py): for any prompt the body is valid by the official SDK's types;
cache markers are where rule 5.5 says; calls, signatures and citations go back unchanged.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from indelible.content import Block, File, Metadata, Reasoning, Source, Text, ToolCall, ToolResult, ToolSpec
from indelible.models.http.http_model import WireRequest
from indelible.models.profile import Profile
from indelible.models.protocol import Call, Parameters, PromptMessage

Json = dict[str, Any]
_PATH: Final = "/v1/messages"
_BINDING: Final = "thinking-binding-controls-2026-08-01"
_VERSION: Final = "2023-06-01"
_EPHEMERAL: Final = {"type": "ephemeral"}
_LEVELS: Final = {"minimal": "low"}
"""Efforts that have another name at Anthropic."""

_BUDGETS: Final = {"low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
_MIN_BUDGET: Final = 1024
_MIN_TOP_P_THINKING: Final = 0.95
_IMAGES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_TEXTUAL: Final = frozenset({"application/json", "application/xml", "application/yaml", "application/toml"})
_MAX_TITLE_CHARS: Final = 200


class PausedCall(Call, frozen=True, kw_only=True):
    """A call that resumes a paused reply. `container` is the one that the provider's tools have used so far."""

    container: str | None = None


def write_call(call: Call, model: str, profile: Profile) -> WireRequest:
    """Write the body of this call, and a warning for what it cannot express."""
    parameters = Parameters(call.parameters)
    warnings: list[str] = []
    body: Json = {
        "model": model,
        "max_tokens": parameters.pop("max_tokens", int) or profile.max_output_tokens,
        "stream": True,
    }
    system = [block for message in call.messages if message.role == "system" for block in _write_content(message)]
    if system:
        body["system"] = system
    body["messages"] = _write_messages(call.messages)
    if call.tools:
        body["tools"] = [_write_tool(tool) for tool in call.tools]
    _add_thinking(body, parameters.pop_effort(), profile, warnings)
    _add_sampling(body, parameters, profile, warnings)
    _add_tool_choice(body, parameters, profile, warnings)
    _add_stop(body, parameters.pop_texts("stop"), warnings)
    if (wanted := parameters.pop("format", dict)) and wanted.get("type") == "json_schema":
        written = {"type": "json_schema", "schema": wanted.get("schema")}
        body["output_config"] = {**body.get("output_config", {}), "format": written}
    if user := parameters.pop("user", str):
        body["metadata"] = {"user_id": user}
    if tier := parameters.pop("service_tier", str):
        body["service_tier"] = tier
    if isinstance(call, PausedCall) and call.container:
        body["container"] = call.container
    return WireRequest(
        path=_PATH,
        body=body,
        headers=_bind_thinking(body, profile),
        warnings=[*warnings, *parameters.warn("Anthropic")],
    )


# --- messages ----------------------------------------------------------------------------


def _write_messages(prompt: Sequence[PromptMessage]) -> list[Json]:
    merged: list[Json] = []
    for message in prompt:
        content = _write_content(message) if message.role != "system" else []
        if not content:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if merged and merged[-1]["role"] == role:
            merged[-1]["content"] += content
        else:
            merged.append({"role": role, "content": content})
    for turn in merged:
        if turn["role"] == "user":
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    if merged and merged[-1]["role"] == "assistant" and (last := merged[-1]["content"][-1])["type"] == "text":
        last["text"] = last["text"].rstrip()  # a reply to be continued may not end with whitespace
    return merged


def _write_content(message: PromptMessage) -> list[Json]:
    content = list(_write_blocks(message.blocks, by_assistant=message.role == "assistant"))
    if message.cache:
        carriers = [block for block in content if block["type"] not in {"thinking", "redacted_thinking"}]
        for block in carriers[-1:]:
            block["cache_control"] = _EPHEMERAL
    return content


def _write_blocks(blocks: Sequence[Block], *, by_assistant: bool) -> Iterator[Json]:
    """Anthropic's own blocks go back only in the assistant's messages: a user may not name its files."""
    returnable = _find_returnable(blocks) if by_assistant else frozenset[str]()
    for block in blocks:
        match block:
            case Text() if block.text.strip():
                yield _write_text(block)
            case Reasoning():
                yield from _write_reasoning(block)
            case ToolCall(provider_executed=False):
                yield _write_call(block)
            case ToolResult(provider_executed=False):
                yield _write_result(block)
            case ToolCall():
                yield _write_own_call(block) if block.id in returnable else _note(f"[Used the tool {block.name}.]")
            case ToolResult():
                yield _write_own_result(block) if block.call_id in returnable else _describe_own_result(block)
            case File() if by_assistant and _has_kind(block.metadata, "container_upload"):
                yield {**(block.metadata or {})}
            case File():
                yield _write_file(block)
            case Text() | Source():
                continue


def _write_text(block: Text) -> Json:
    written: Json = {"type": "text", "text": block.text}
    citations = (block.metadata or {}).get("citations")
    if isinstance(citations, list) and citations and all(map(_is_typed, citations)):
        written["citations"] = [  # Anthropic sends `file_id`, and does not accept it
            {name: value for name, value in citation.items() if name != "file_id"} for citation in citations
        ]
    return written


def _write_reasoning(block: Reasoning) -> Iterator[Json]:
    redacted = (block.metadata or {}).get("redacted_thinking")
    if isinstance(redacted, str):
        yield {"type": "redacted_thinking", "data": redacted}
    elif block.signature:
        yield {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _note(text: str) -> Json:
    return {"type": "text", "text": text}


# --- calls and results -------------------------------------------------------------------


def _write_call(call: ToolCall) -> Json:
    written: Json = {"type": "tool_use", "id": call.id, "name": call.name, "input": _read_input(call)}
    metadata = call.metadata or {}
    if _is_typed(metadata.get("caller")):
        written["caller"] = metadata["caller"]
    if isinstance(metadata.get("toolset_name"), str):
        written["toolset_name"] = metadata["toolset_name"]
    return written


def _write_result(result: ToolResult) -> Json:
    """Anthropic rejects an empty error, so it gets a text."""
    written: Json = {"type": "tool_result", "tool_use_id": result.call_id}
    output = result.output if isinstance(result.output, str) else msgspec.json.encode(result.output).decode()
    shown = [_write_file(file) for file in result.files if file.data]
    if shown and not result.is_error:
        written["content"] = [*([_note(output)] if output.strip() else []), *shown]
    elif output.strip():
        written["content"] = output
    elif result.is_error:
        written["content"] = "The tool failed without a message."
    if result.is_error:
        written["is_error"] = True
    return written


def _find_returnable(blocks: Sequence[Block]) -> frozenset[str]:
    """The ids of the provider's own calls that go back unchanged, with their results."""
    calls = {
        block.id
        for block in blocks
        if isinstance(block, ToolCall) and block.provider_executed and _has_kind(block.metadata, "_tool_use")
    }
    unusable = {
        block.call_id
        for block in blocks
        if isinstance(block, ToolResult) and not _has_kind(block.metadata, "_tool_result")
    }
    return frozenset(calls - unusable)


def _write_own_call(call: ToolCall) -> Json:
    return {**(call.metadata or {}), "id": call.id, "name": call.name, "input": _read_input(call)}


def _write_own_result(result: ToolResult) -> Json:
    return {**(result.metadata or {}), "tool_use_id": result.call_id, "content": result.output}


def _describe_own_result(result: ToolResult) -> Json:
    if isinstance(result.output, str) and result.output.strip():
        return _note(f"[The tool {result.name} returned: {result.output}]")
    return _note(f"[The tool {result.name} returned something that cannot be shown.]")


def _read_input(call: ToolCall) -> Json:
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_typed(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


def _has_kind(metadata: Metadata | None, ending: str) -> bool:
    kind = (metadata or {}).get("type")
    return isinstance(kind, str) and kind.endswith(ending)


# --- files -------------------------------------------------------------------------------


def _write_file(file: File) -> Json:
    kind = file.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    remote = file.url if file.url and file.url.startswith(("https://", "http://")) else None
    if kind in _IMAGES and file.data:
        return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": _to_base64(file.data)}}
    if kind.startswith("image/") and remote:
        return {"type": "image", "source": {"type": "url", "url": remote}}
    if kind == "application/pdf" and file.data:
        return _write_document({"type": "base64", "media_type": kind, "data": _to_base64(file.data)}, file)
    if kind == "application/pdf" and remote:
        return _write_document({"type": "url", "url": remote}, file)
    if (kind.startswith("text/") or kind in _TEXTUAL) and file.data and file.data.strip():
        text = file.data.decode("utf-8", "replace")
        return _write_document({"type": "text", "media_type": "text/plain", "data": text}, file)
    place = f" at {remote}" if remote else ""
    return _note(f"[A file that cannot be sent: {file.name or 'unnamed'} ({file.media_type}){place}]")


def _write_document(source: Json, file: File) -> Json:
    document: Json = {"type": "document", "source": source}
    if file.name and file.name.strip():
        document["title"] = file.name[:_MAX_TITLE_CHARS]
    return document


def _to_base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


# --- tools and parameters ----------------------------------------------------------------


def _write_tool(tool: ToolSpec) -> Json:
    if tool.provider_executed:
        return tool.options
    written: Json = {"name": tool.name}
    if tool.description:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", "properties": {}, **tool.input_schema}
    return written


def _add_thinking(body: Json, effort: str | None, profile: Profile, warnings: list[str]) -> None:
    if effort is None:
        return
    if profile.effort == "level":
        if effort == "none" and not profile.always_thinks:
            body["thinking"] = {"type": "disabled"}
            return
        if effort == "none":
            effort = "low"
            warnings.append("The parameter effort was sent as low: this model always thinks.")
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        body["output_config"] = {"effort": _LEVELS.get(effort, effort)}
    elif profile.effort == "budget":
        if effort in _BUDGETS and _may_start_thinking(body["messages"]):
            budget, body["max_tokens"] = _fit_budget(_BUDGETS[effort], body["max_tokens"])
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
        elif effort in _BUDGETS:
            warnings.append(_explain_unsent("effort", "this reply began without thinking"))
    elif effort != "none":
        warnings.append(_explain_unsent("effort", "this model does not think before it replies"))


def _bind_thinking(body: Json, profile: Profile) -> dict[str, str]:
    """The headers. Thinking that no longer fits the conversation is dropped by the provider instead of rejected."""
    headers = {"anthropic-version": _VERSION}
    blocks = (block for message in body["messages"] for block in message["content"])
    if not profile.binds_thinking or body.get("thinking", {}).get("type") == "disabled":
        return headers
    if not any(block["type"] in {"thinking", "redacted_thinking"} for block in blocks):
        return headers
    body.setdefault("thinking", {"type": "adaptive"})["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    return {**headers, "anthropic-beta": _BINDING}


def _fit_budget(wanted: int, max_tokens: int) -> tuple[int, int]:
    """The thinking budget and the limit of the whole reply. A limit without room for an answer is raised."""
    if max_tokens >= 2 * _MIN_BUDGET:
        return min(wanted, max_tokens - _MIN_BUDGET), max_tokens
    return _MIN_BUDGET, max_tokens + _MIN_BUDGET


def _may_start_thinking(messages: Sequence[Json]) -> bool:
    """Whether a budget is accepted: not while a reply continues that began without thinking."""
    question_at = next((at for at in reversed(range(len(messages))) if _is_question(messages[at])), -1)
    begun = next((message for message in messages[question_at + 1 :] if message["role"] == "assistant"), None)
    return begun is None or begun["content"][0]["type"] in {"thinking", "redacted_thinking"}


def _is_question(message: Json) -> bool:
    """Whether the user asks something new here. Text after tool results belongs to the reply that made the calls."""
    return bool(message["role"] == "user" and message["content"][0]["type"] != "tool_result")


def _add_sampling(body: Json, parameters: Parameters, profile: Profile, warnings: list[str]) -> None:
    given = {name: parameters.pop(name, float) for name in ("temperature", "top_p")}
    given["top_k"] = parameters.pop("top_k", int)
    for name, value in given.items():
        if value is None:
            continue
        if not profile.samples:
            warnings.append(_explain_unsent(name, "newer Anthropic models do not accept it"))
        elif _thinks(body) and (name != "top_p" or value < _MIN_TOP_P_THINKING):
            warnings.append(_explain_unsent(name, "Anthropic does not accept it while the model thinks"))
        elif name == "top_p" and "temperature" in body:
            warnings.append(_explain_unsent(name, "Anthropic does not accept it together with temperature"))
        else:
            body[name] = value


def _add_tool_choice(body: Json, parameters: Parameters, profile: Profile, warnings: list[str]) -> None:
    wanted_choice = parameters.pop("tool_choice", str)
    sequential = parameters.pop("parallel_tool_calls", bool) is False
    forced = wanted_choice not in {None, "auto", "none"}
    is_thinking = body.get("thinking", {}).get("type") == "enabled" or profile.always_thinks
    if forced and ("tools" not in body or is_thinking):
        why = "Anthropic cannot force a tool while the model thinks" if "tools" in body else "there are no tools"
        warnings.append(_explain_unsent("tool_choice", why))
        wanted_choice = None
    if "tools" not in body or (wanted_choice is None and not sequential):
        return
    choice: Json
    match wanted_choice:
        case None | "auto" | "none":
            choice = {"type": wanted_choice or "auto"}
        case "required":
            choice = {"type": "any"}
        case _:
            choice = {"type": "tool", "name": wanted_choice}
    if sequential and wanted_choice != "none":
        choice["disable_parallel_tool_use"] = True
    body["tool_choice"] = choice


def _add_stop(body: Json, stop: list[str] | None, warnings: list[str]) -> None:
    usable = [text for text in stop or [] if text.strip()]
    if usable:
        body["stop_sequences"] = usable
    if len(usable) < len(stop or []):
        warnings.append("A blank text of the parameter stop was not sent: Anthropic rejects blank ones.")


def _thinks(body: Json) -> bool:
    return body.get("thinking", {}).get("type") in {"adaptive", "enabled"}


def _explain_unsent(name: str, why: str) -> str:
    return f"The parameter {name} was not sent: {why}."
