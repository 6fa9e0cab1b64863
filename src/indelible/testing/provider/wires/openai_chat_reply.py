"""OpenAI Chat Completions, the provider's side: writing a reply.

A chunk with the role, a chunk per delta, a chunk with the finish reason, one with usage if the request asked for it and
the model reported any, and `[DONE]`. Blocks have no start and no end here; a call is identified by its index. Thinking
goes into `reasoning_content`, sources into `annotations`, and files into `images`, as in the servers that have them. A
provider's own tools cannot be expressed and are left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from indelible.content import (
    File,
    Finish,
    KeepAlive,
    Part,
    ReasoningDelta,
    Source,
    TextDelta,
    ToolInputDelta,
    ToolInputStart,
    Usage,
    UsageUpdate,
)
from indelible.testing.provider.events import encode_json, write_event
from indelible.testing.provider.order import PartOrder
from indelible.testing.provider.refusals import Refusal, show_openai
from indelible.testing.provider.wires.dialect import CREATED_AT
from indelible.testing.provider.wires.openai import locate_quote

_DONE: Final = b"data: [DONE]\n\n"
_FINGERPRINT: Final = "fp_simulated"


class _Call:
    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int, id: str, name: str) -> None:
        self.index = index
        self.id = id
        self.name = name
        self.arguments: list[str] = []

    def show(self, arguments: str) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


class ChatReply:
    def __init__(self, *, model: str, id: str, include_usage: bool) -> None:
        self._head = {"id": id, "created": CREATED_AT, "model": model, "service_tier": "default"}
        self._head["system_fingerprint"] = _FINGERPRINT
        self._include_usage = include_usage
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}
        self._order = PartOrder()
        self._has_begun = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._open_calls: dict[str, _Call] = {}
        self._extras: dict[str, list[dict[str, Any]]] = {}
        self._finish: Finish | None = None
        before, after = self._chunk({"content": "\0"}).split(rb'"\u0000"')
        self._before_text, self._after_text = before, after

    def write(self, part: Part) -> list[bytes]:
        events: list[bytes] = []
        if not self._has_begun:
            self._has_begun = True
            events.append(self._chunk({"role": "assistant", "content": "", "refusal": None}))
        for each in self._order.feed(part):
            if type(each) is TextDelta:
                self._text.append(each.delta)
                events.append(self._before_text + encode_json(each.delta) + self._after_text)
            else:
                events += self._write(each)
        return events

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        return [self.write_error(show_openai(refusal))]

    def write_error(self, body: Any) -> bytes:
        if body is None:
            body = show_openai(Refusal("The server had an error while processing your request.", type="server_error"))
        return write_event(body)

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

    def _write(self, part: Part) -> Iterator[bytes]:
        match part:
            case ReasoningDelta(delta=str(delta)) if delta:
                self._reasoning.append(delta)
                yield self._chunk({"reasoning_content": delta})
            case ToolInputStart(provider_executed=False):
                yield self._start_call(part)
            case ToolInputDelta() if part.id in self._open_calls:
                call = self._open_calls[part.id]
                call.arguments.append(part.delta)
                yield self._chunk({"tool_calls": [{"index": call.index, "function": {"arguments": part.delta}}]})
            case Source(url=str()):
                yield self._add("annotations", _show_annotation(part, "".join(self._text)))
            case File(data=bytes()) | File(url=str()):
                yield self._add("images", {"type": "image_url", "image_url": {"url": _show_address(part)}})
            case UsageUpdate():
                chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
                yield write_event({**chunk, "usage": _show_usage(part.usage)})
            case KeepAlive():
                yield self._chunk({})
            case Finish():
                yield from self._end(part)
            case _:
                return

    def _start_call(self, part: ToolInputStart) -> bytes:
        call = self._open_calls[part.id] = _Call(len(self._calls), part.id, part.name)
        self._calls.append(call)
        return self._chunk({"tool_calls": [{"index": call.index, **call.show("")}]})

    def _add(self, field: str, value: dict[str, Any]) -> bytes:
        self._extras.setdefault(field, []).append(value)
        return self._chunk({field: [value]})

    def _end(self, finish: Finish) -> Iterator[bytes]:
        self._finish = finish
        reason = (finish.metadata or {}).get("finish_reason", finish.reason)
        yield self._chunk({}, reason)
        if self._include_usage and finish.usage is not None:
            chunk = {**self._head, "object": "chat.completion.chunk", "choices": []}
            yield write_event({**chunk, "usage": _show_usage(finish.usage)})
        yield _DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return write_event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **self._no_usage})


def _show_usage(usage: Usage) -> dict[str, Any]:
    cached = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": cached,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _show_annotation(source: Source, text: str) -> dict[str, Any]:
    citation = {"url": source.url, "title": source.title or "", "content": source.quote or ""}
    return {"type": "url_citation", "url_citation": {**citation, **locate_quote(text, source.quote)}}


def _show_address(file: File) -> str:
    if file.data is None:
        return file.url or ""
    return f"data:{file.media_type};base64,{base64.b64encode(file.data).decode()}"
