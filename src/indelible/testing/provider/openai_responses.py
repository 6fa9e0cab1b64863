"""OpenAI Responses, the provider's side: parsing a request.

A reply comes back as a list of items (text, reasoning, calls), which form one assistant message here. The history is
checked as OpenAI checks it: every function call has its output somewhere, every output its call, and reasoning is
followed by the item that it led to. `store` is on unless it is turned off.

Chaining (`previous_response_id`) needs a memory, which exchange.py has. So instructions are kept apart from the rest,
because a stored response does not keep them. openai_responses_reply.py writes the reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from indelible.content import Block, File, Reasoning, Text, ToolCall, ToolResult, ToolSpec
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing.provider import dialect
from indelible.testing.provider.faults import Refusal
from indelible.testing.provider.openai_chat import OpenAI, refuse_missing
from indelible.testing.provider.openai_responses_reply import ResponsesReply

_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "max_tokens",
    "parallel_tool_calls": "parallel_tool_calls",
    "service_tier": "service_tier",
}

_TEXTS: Final = frozenset({"input_text", "output_text", "text"})


class ResponsesDialect(OpenAI):
    name = "openai"
    path = "/v1/responses"
    reply_prefix = "resp_"

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> dialect.ParsedRequest:  # noqa: ARG002  (none matters)
        for field in ("model", "input"):
            if field not in body:
                raise refuse_missing(field)
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if not isinstance(items, list):
            raise Refusal("Invalid type for 'input': expected a string or a list.", code="invalid_type", param="input")
        transcript = dialect.Transcript()
        for at, item in enumerate(items):
            _read_item(transcript, item, f"input[{at}]")
        _check_reasoning(items)
        parameters = {ours: body[theirs] for theirs, ours in _PARAMETERS.items() if body.get(theirs) is not None}
        effort = (body.get("reasoning") or {}).get("effort")
        instructions = body.get("instructions")
        return dialect.ParsedRequest(
            model=str(body["model"]),
            body=body,
            instructions=[PromptMessage(role="system", blocks=[Text(instructions)])] if instructions else [],
            messages=transcript.messages,
            tools=[_read_tool(tool) for tool in body.get("tools") or []],
            options=CallOptions(
                store=body.get("store") is not False,
                previous_response_id=body.get("previous_response_id"),
                parameters=parameters | ({"effort": effort} if effort else {}),
            ),
            streams=body.get("stream") is True,
        )

    def check(self, call: Call) -> None:
        for call_id in dialect.find_unanswered(call.messages, at_once=False):
            raise Refusal(f"No tool output found for function call {call_id}.", param="input")
        for call_id in dialect.find_orphans(call.messages, at_once=False):
            raise Refusal(f"No tool call found for function call output with call_id {call_id}.", param="input")

    def open_reply(self, parsed: dialect.ParsedRequest, id: str) -> dialect.ReplyWriter:
        return ResponsesReply(parsed.body, id=id)


def _check_reasoning(items: Sequence[dict[str, Any]]) -> None:
    for item, following in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") == "reasoning" and not _is_from_assistant(following):
            named = f"Item '{item.get('id')}' of type 'reasoning'"
            raise Refusal(f"{named} was provided without its required following item.", param="input")


def _is_from_assistant(item: dict[str, Any]) -> bool:
    kind = item.get("type", "message")
    if kind == "message":
        return item.get("role") == "assistant"
    return not kind.endswith("_output")


def _read_item(transcript: dialect.Transcript, item: Any, place: str) -> None:
    if not isinstance(item, dict):
        raise Refusal(f"Invalid type for '{place}': expected an object.", code="invalid_type", param=place)
    kind = item.get("type", "message")
    try:
        match kind:
            case "message":
                _read_message(transcript, item, place)
            case "reasoning":
                transcript.add("assistant", _read_reasoning(item))
            case "function_call":
                transcript.add("assistant", ToolCall(item["call_id"], item["name"], item["arguments"]))
            case "custom_tool_call":
                arguments = dialect.encode_json({"input": item["input"]}).decode()
                transcript.add("assistant", ToolCall(item["call_id"], item["name"], arguments))
            case "function_call_output" | "custom_tool_call_output":
                output, files = item["output"], _read_shown(item["output"], place)
                transcript.add("tool", ToolResult(item["call_id"], "", dialect.join_texts(output), files=files))
            case str() if kind.endswith("_call") or kind == "mcp_list_tools":
                name = item.get("name") or kind.removesuffix("_call")
                call = ToolCall(item["id"], name, provider_executed=True, standalone=True, metadata={"item": item})
                transcript.add("assistant", call)
            case _:
                raise Refusal(f"Invalid value: '{kind}'.", code="invalid_value", param=f"{place}.type")
    except KeyError as error:
        raise refuse_missing(f"{place}.{error.args[0]}") from error


def _read_message(transcript: dialect.Transcript, item: dict[str, Any], place: str) -> None:
    content = item["content"]
    for block in _read_content(content, place):
        match item["role"]:
            case "user" | "assistant" as role:
                transcript.add(role, block)
            case "system" | "developer":
                transcript.add("system", block)
            case role:
                raise Refusal(f"Invalid value: '{role}'.", code="invalid_value", param=f"{place}.role")


def _read_content(content: Any, place: str) -> Iterator[Block]:
    for at, part in enumerate([{"type": "input_text", "text": content}] if isinstance(content, str) else content):
        kind = part.get("type")
        if kind in _TEXTS:
            yield Text(part["text"])
        elif kind == "refusal":
            yield Text(part["refusal"])
        elif kind == "input_image":
            yield _read_file(part, part.get("image_url"), "image/*")
        elif kind == "input_file":
            yield _read_file(part, part.get("file_data") or part.get("file_url"), "application/pdf")
        else:
            raise Refusal(f"Invalid value: '{kind}'.", code="invalid_value", param=f"{place}.content[{at}].type")


def _read_shown(output: Any, place: str) -> list[File]:
    """The pictures and documents in the result of a tool."""
    content = output if isinstance(output, list) else []
    return [block for block in _read_content(content, place) if isinstance(block, File)]


def _read_file(part: dict[str, Any], address: str | None, media_type: str) -> File:
    if address is None:
        return File(media_type=media_type, file_id=part["file_id"])
    return dialect.read_file(address, name=part.get("filename"), media_type=media_type)


def _read_reasoning(item: dict[str, Any]) -> Reasoning:
    text = "\n\n".join(part["text"] for part in item["summary"])
    kept = {"id": item.get("id"), "encrypted_content": item.get("encrypted_content")}
    return Reasoning(text=text, metadata={name: value for name, value in kept.items() if value} or None)


def _read_tool(raw: dict[str, Any]) -> ToolSpec:
    if raw.get("type") != "function":
        return ToolSpec(name=raw.get("name") or str(raw.get("type")), provider_executed=True, options=raw)
    return ToolSpec(
        name=raw["name"], description=raw.get("description") or "", input_schema=raw.get("parameters") or {}
    )
