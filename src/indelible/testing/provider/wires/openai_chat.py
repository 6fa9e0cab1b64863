"""OpenAI Chat Completions, the provider's side: parsing a request.

The history is checked as OpenAI checks it: tool messages directly follow the assistant's calls that they answer, and
occur nowhere else. openai_chat_reply.py writes the reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from indelible.content import Block, File, Reasoning, Text, ToolCall, ToolResult, ToolSpec
from indelible.models.protocol import Call, CallOptions
from indelible.testing.provider.refusals import Refusal
from indelible.testing.provider.transcript import Transcript, decode_base64, find_orphans, find_unanswered, read_file
from indelible.testing.provider.wires.dialect import ParsedRequest, ReplyWriter
from indelible.testing.provider.wires.openai import OpenAI, refuse_missing
from indelible.testing.provider.wires.openai_chat_reply import ChatReply

_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop": "stop",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "parallel_tool_calls": "parallel_tool_calls",
    "reasoning_effort": "effort",
    "verbosity": "verbosity",
    "service_tier": "service_tier",
    "user": "user",
}


class ChatDialect(OpenAI):
    name = "openai-chat"
    path = "/v1/chat/completions"
    reply_prefix = "chatcmpl-"

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:  # noqa: ARG002  (none matters)
        for field in ("model", "messages"):
            if field not in body:
                raise refuse_missing(field)
        if not isinstance(body["messages"], list) or not body["messages"]:
            message = (
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
            )
            raise Refusal(message, code="empty_array", param="messages")
        transcript = Transcript()
        for at, message in enumerate(body["messages"]):
            _read_message(transcript, message, f"messages.[{at}]")
        parameters = {ours: body[theirs] for theirs, ours in _PARAMETERS.items() if body.get(theirs) is not None}
        return ParsedRequest(
            model=str(body["model"]),
            body=body,
            messages=transcript.messages,
            tools=[_read_tool(tool) for tool in body.get("tools") or []],
            options=CallOptions(parameters=parameters),
            streams=body.get("stream") is True,
        )

    def check(self, call: Call) -> None:
        if missing := find_unanswered(call.messages, at_once=True):
            raise Refusal(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}",
                param="messages",
            )
        if find_orphans(call.messages, at_once=True):
            raise Refusal(
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'.",
                param="messages",
            )

    def open_reply(self, parsed: ParsedRequest, id: str) -> ReplyWriter:
        include_usage = (parsed.body.get("stream_options") or {}).get("include_usage") is True
        return ChatReply(model=parsed.model, id=id, include_usage=include_usage)


# --- messages ----------------------------------------------------------------------------


def _read_message(transcript: Transcript, message: Any, place: str) -> None:
    if not isinstance(message, dict):
        raise Refusal(f"Invalid type for '{place}': expected an object.", code="invalid_type", param=place)
    try:
        match message.get("role"):
            case "system" | "developer":
                for block in _read_content(message["content"], place):
                    transcript.add("system", block)
            case "user":
                for block in _read_content(message["content"], place):
                    transcript.add("user", block)
            case "assistant":
                for block in _read_reply(message, place):
                    transcript.add("assistant", block)
            case "tool":
                output = "".join(block.text for block in _read_content(message["content"], place))
                transcript.add("tool", ToolResult(message["tool_call_id"], "", output))
            case role:
                raise Refusal(f"Invalid value: '{role}'.", code="invalid_value", param=f"{place}.role")
    except KeyError as error:
        raise refuse_missing(f"{place}.{error.args[0]}") from error


def _read_reply(message: dict[str, Any], place: str) -> Iterator[Block]:
    for field in ("reasoning_content", "reasoning"):
        if message.get(field):
            yield Reasoning(text=message[field], metadata={"field": field})
    if message.get("content"):
        yield from _read_content(message["content"], place)
    for call in message.get("tool_calls") or []:
        yield ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])


def _read_content(content: Any, place: str) -> Iterator[Block]:
    for at, part in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
        match part.get("type"):
            case "text":
                yield Text(part["text"])
            case "refusal":
                yield Text(part["refusal"])
            case "image_url":
                yield read_file(part["image_url"]["url"])
            case "input_audio":
                sound = part["input_audio"]
                yield File(media_type=f"audio/{sound['format']}", data=decode_base64(sound["data"]))
            case "file":
                file = part["file"]
                address = file.get("file_data")
                if address is None:
                    yield File(media_type="application/octet-stream", file_id=file["file_id"])
                else:
                    yield read_file(address, name=file.get("filename"), media_type="application/pdf")
            case kind:
                raise Refusal(f"Invalid value: '{kind}'.", code="invalid_value", param=f"{place}.content.[{at}].type")


def _read_tool(raw: dict[str, Any]) -> ToolSpec:
    function = raw.get("function")
    if raw.get("type") != "function" or not isinstance(function, dict):
        return ToolSpec(name=str(raw.get("type")), provider_executed=True, options=raw)
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        input_schema=function.get("parameters") or {},
    )
