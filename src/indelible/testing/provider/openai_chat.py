"""OpenAI Chat Completions, the provider's side, and what it shares with Responses: keys, refusals, places of citations.

The history is checked as OpenAI checks it: tool messages directly follow the assistant's calls that they answer, and
occur nowhere else. A reply is a chunk with the role, a chunk per delta, a chunk with the finish reason, one with usage
if the request asked for it and the model reported any, and `[DONE]`. Blocks have no start and no end here; a call is
identified by its index. Thinking goes into `reasoning_content`, sources into `annotations`, and files into `images`, as
in the servers that have them. A provider's own tools cannot be expressed and are left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from indelible import content
from indelible.models.protocol import Call, CallOptions
from indelible.testing.provider import dialect
from indelible.testing.provider.faults import Refusal, find_openai_type, refuse_as_openai, show_openai


class OpenAI:
    refuse_failure = staticmethod(refuse_as_openai)

    def find_key(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("authorization", "").removeprefix("Bearer ") or None

    def refuse_key(self, key: str | None) -> Refusal:
        if key is None:
            return Refusal("You didn't provide an API key.", status=401)
        return Refusal(f"Incorrect API key provided: {key[:3]}****{key[-4:]}.", status=401, code="invalid_api_key")

    def refuse(self, status: int, message: str) -> Refusal:
        type_, code = find_openai_type(status)
        return Refusal(message, status=status, type=type_, code=code)

    def show(self, refusal: Refusal, request_id: str) -> dict[str, Any]:  # noqa: ARG002  (sent in a header)
        return show_openai(refusal)

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        data = [
            {"id": name, "object": "model", "created": dialect.CREATED_AT, "owned_by": "simulated"} for name in names
        ]
        return {"object": "list", "data": data}


def refuse_missing(param: str) -> Refusal:
    return Refusal(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def locate_quote(text: str, quote: str | None) -> dict[str, int]:
    """The place of a citation in the text so far: at its quote, or at the end."""
    start = text.rfind(quote) if quote else -1
    if quote is None or start < 0:
        return {"start_index": len(text), "end_index": len(text)}
    return {"start_index": start, "end_index": start + len(quote)}


# --- requests ---


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

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> dialect.ParsedRequest:  # noqa: ARG002  (none matters)
        for field in ("model", "messages"):
            if field not in body:
                raise refuse_missing(field)
        if not isinstance(body["messages"], list) or not body["messages"]:
            message = (
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
            )
            raise Refusal(message, code="empty_array", param="messages")
        transcript = dialect.Transcript()
        for at, message in enumerate(body["messages"]):
            _read_message(transcript, message, f"messages.[{at}]")
        parameters = {ours: body[theirs] for theirs, ours in _PARAMETERS.items() if body.get(theirs) is not None}
        return dialect.ParsedRequest(
            model=str(body["model"]),
            body=body,
            messages=transcript.messages,
            tools=[_read_tool(tool) for tool in body.get("tools") or []],
            options=CallOptions(parameters=parameters),
            streams=body.get("stream") is True,
        )

    def check(self, call: Call) -> None:
        if missing := dialect.find_unanswered(call.messages, at_once=True):
            raise Refusal(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(missing)}",
                param="messages",
            )
        if dialect.find_orphans(call.messages, at_once=True):
            raise Refusal(
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'.",
                param="messages",
            )

    def open_reply(self, parsed: dialect.ParsedRequest, id: str) -> dialect.ReplyWriter:
        include_usage = (parsed.body.get("stream_options") or {}).get("include_usage") is True
        return ChatReply(model=parsed.model, id=id, include_usage=include_usage)


def _read_message(transcript: dialect.Transcript, message: Any, place: str) -> None:
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
                transcript.add("tool", content.ToolResult(message["tool_call_id"], "", output))
            case role:
                raise Refusal(f"Invalid value: '{role}'.", code="invalid_value", param=f"{place}.role")
    except KeyError as error:
        raise refuse_missing(f"{place}.{error.args[0]}") from error


def _read_reply(message: dict[str, Any], place: str) -> Iterator[content.Block]:
    for field in ("reasoning_content", "reasoning"):
        if message.get(field):
            yield content.Reasoning(text=message[field], metadata={"field": field})
    if message.get("content"):
        yield from _read_content(message["content"], place)
    for call in message.get("tool_calls") or []:
        yield content.ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])


def _read_content(given: Any, place: str) -> Iterator[content.Block]:
    for at, part in enumerate([{"type": "text", "text": given}] if isinstance(given, str) else given):
        match part.get("type"):
            case "text":
                yield content.Text(part["text"])
            case "refusal":
                yield content.Text(part["refusal"])
            case "image_url":
                yield dialect.read_file(part["image_url"]["url"])
            case "input_audio":
                sound = part["input_audio"]
                yield content.File(media_type=f"audio/{sound['format']}", data=dialect.decode_base64(sound["data"]))
            case "file":
                file = part["file"]
                address = file.get("file_data")
                if address is None:
                    yield content.File(media_type="application/octet-stream", file_id=file["file_id"])
                else:
                    yield dialect.read_file(address, name=file.get("filename"), media_type="application/pdf")
            case kind:
                raise Refusal(f"Invalid value: '{kind}'.", code="invalid_value", param=f"{place}.content.[{at}].type")


def _read_tool(raw: dict[str, Any]) -> content.ToolSpec:
    function = raw.get("function")
    if raw.get("type") != "function" or not isinstance(function, dict):
        return content.ToolSpec(name=str(raw.get("type")), provider_executed=True, options=raw)
    return content.ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        input_schema=function.get("parameters") or {},
    )


# --- the reply ---


_DONE: Final = b"data: [DONE]\n\n"
_FINGERPRINT: Final = "fp_simulated"


class _Call(msgspec.Struct):
    index: int
    id: str
    name: str
    arguments: list[str] = []

    def show(self, arguments: str) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class ChatReply:
    def __init__(self, *, model: str, id: str, include_usage: bool) -> None:
        self._head = {"id": id, "created": dialect.CREATED_AT, "model": model, "service_tier": "default"}
        self._head["system_fingerprint"] = _FINGERPRINT
        self._include_usage = include_usage
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}
        self._order = dialect.PartOrder()
        self._has_begun = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._open_calls: dict[str, _Call] = {}
        self._extras: dict[str, list[dict[str, Any]]] = {}
        self._finish: content.Finish | None = None
        before, after = self._chunk({"content": "\0"}).split(rb'"\u0000"')
        self._before_text, self._after_text = before, after

    def write(self, part: content.Part) -> list[bytes]:
        events: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            events.append(self._chunk({"role": "assistant", "content": "", "refusal": None}))
        for each in self._order.feed(part):
            if type(each) is content.TextDelta:
                self._text.append(each.delta)
                events.append(self._before_text + dialect.encode_json(each.delta) + self._after_text)
            else:
                events += self._write(each)
        return events

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        return [self.write_error(show_openai(refusal))]

    def write_error(self, body: Any) -> bytes:
        if body is None:
            body = show_openai(Refusal("The server had an error while processing your request.", type="server_error"))
        return dialect.write_event(body)

    def build_whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text) or None, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [call.show("".join(call.arguments)) for call in self._calls]
        reason = self._finish.reason if self._finish is not None else None
        choice = {"index": 0, "message": {**message, **self._extras}, "logprobs": None, "finish_reason": reason}
        usage = self._finish.usage if self._finish is not None else None
        whole = {**self._head, "object": "chat.completion", "choices": [choice]}
        return {**whole, "usage": _show_usage(usage)} if usage is not None else whole

    # --- one case per kind of part ---

    def _write(self, part: content.Part) -> Iterator[bytes]:
        match part:
            case content.ReasoningDelta(delta=str(delta)) if delta:
                self._reasoning.append(delta)
                yield self._chunk({"reasoning_content": delta})
            case content.ToolInputStart(provider_executed=False):
                yield self._start_call(part)
            case content.ToolInputDelta() if part.id in self._open_calls:
                call = self._open_calls[part.id]
                call.arguments.append(part.delta)
                yield self._chunk({"tool_calls": [{"index": call.index, "function": {"arguments": part.delta}}]})
            case content.Source(url=str()):
                yield self._add("annotations", _show_annotation(part, "".join(self._text)))
            case content.File(data=bytes()) | content.File(url=str()):
                yield self._add("images", {"type": "image_url", "image_url": {"url": _show_address(part)}})
            case content.UsageUpdate():
                chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
                yield dialect.write_event({**chunk, "usage": _show_usage(part.usage)})
            case content.KeepAlive():
                yield self._chunk({})
            case content.Finish():
                yield from self._end(part)
            case _:
                return

    def _start_call(self, part: content.ToolInputStart) -> bytes:
        call = self._open_calls[part.id] = _Call(len(self._calls), part.id, part.name)
        self._calls.append(call)
        return self._chunk({"tool_calls": [{"index": call.index, **call.show("")}]})

    def _add(self, field: str, value: dict[str, Any]) -> bytes:
        self._extras.setdefault(field, []).append(value)
        return self._chunk({field: [value]})

    def _end(self, finish: content.Finish) -> Iterator[bytes]:
        self._finish = finish
        reason = (finish.metadata or {}).get("finish_reason", finish.reason)
        yield self._chunk({}, reason)
        if self._include_usage and finish.usage is not None:
            chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield dialect.write_event({**chunk, "usage": _show_usage(finish.usage)})
        yield _DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return dialect.write_event(
            {**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._no_usage}
        )


def _show_usage(usage: content.Usage) -> dict[str, Any]:
    cached = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": cached,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _show_annotation(source: content.Source, text: str) -> dict[str, Any]:
    citation = {"url": source.url, "title": source.title or "", "content": source.quote or ""}
    return {"type": "url_citation", "url_citation": {**citation, **locate_quote(text, source.quote)}}


def _show_address(file: content.File) -> str:
    if file.data is None:
        return file.url or ""
    return f"data:{file.media_type};base64,{base64.b64encode(file.data).decode()}"
