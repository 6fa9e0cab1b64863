"""OpenAI Responses, the provider's side: writing a reply, with the tools that OpenAI runs itself.

    response.created, response.in_progress, then per item: output_item.added, its content, output_item.done;
    response.completed (or response.incomplete) with the whole response; all events are numbered

A text is a message with one content part, reasoning has one summary, a source is an annotation of the open text, a file
is a generated image. Reasoning goes back by its `encrypted_content`: that of its metadata, else its signature.

A call that the provider runs has a name, arguments and, later, a result; each of OpenAI's tools has its own fields for
them. It stays open until its result arrives, because OpenAI sends both in one item. A tool that is not built in is sent
as a call to an MCP server, which may have any name. An item in the script (`metadata={"item": …}`, where the client's
side keeps it, too) is sent unchanged.
"""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator
from typing import Any, Final

from indelible import content
from indelible.testing.provider.dialect import CREATED_AT, PartOrder, encode_json, read_object, write_event
from indelible.testing.provider.faults import Refusal
from indelible.testing.provider.openai_chat import locate_quote

_BUILT_IN: Final = {"web_search": "searching", "file_search": "searching", "code_interpreter": "interpreting"}
"""The tools by name, and the progress event of each."""

Report = tuple[str, dict[str, Any]]
"""An event about the call: its name without `response.`, and its fields."""


class OwnCall:
    """One call in progress."""

    def __init__(self, id: str, name: str) -> None:
        self.item_id = id
        self._name = name
        self._kind = f"{name}_call" if name in _BUILT_IN else "mcp_call"
        self._arguments = ""
        self._item: dict[str, Any] = {}

    def set_item(self, metadata: content.Metadata | None) -> None:
        """Use the item from the script, if there is one."""
        self._item = (metadata or {}).get("item") or {}

    # --- progress events ---

    def report_start(self) -> Iterator[Report]:
        yield f"{self._kind}.in_progress", {}

    def report_input(self, delta: str) -> Iterator[Report]:
        self._arguments += delta
        if self._kind == "mcp_call":
            yield "mcp_call_arguments.delta", {"delta": delta}

    def report_work(self) -> Iterator[Report]:
        if self._kind == "mcp_call":
            yield "mcp_call_arguments.done", {"arguments": self._arguments}
            return
        if self._kind == "code_interpreter_call":
            code = read_object(self._arguments).get("code", "")
            yield "code_interpreter_call_code.delta", {"delta": code}
            yield "code_interpreter_call_code.done", {"code": code}
        yield f"{self._kind}.{_BUILT_IN[self._name]}", {}

    def report_end(self, result: content.ToolResult | None) -> Iterator[Report]:
        failed = result is not None and result.is_error and self._kind == "mcp_call"
        yield f"{self._kind}.{'failed' if failed else 'completed'}", {}

    # --- the item ---

    def build(self, *, status: str, result: content.ToolResult | None = None) -> dict[str, Any]:
        head = {"id": self.item_id, "type": self._kind, "status": status}
        return {**head, **self._describe(result), **self._item}

    def _describe(self, result: content.ToolResult | None) -> dict[str, Any]:
        output = result.output if result is not None else None
        arguments = read_object(self._arguments)
        match self._kind:
            case "web_search_call":
                sources = [{"type": "url", "url": page["url"]} for page in _list_objects(output) if "url" in page]
                return {
                    "action": {"type": "search", "query": "", **arguments, **({"sources": sources} if sources else {})}
                }
            case "file_search_call":
                queries = arguments.get("queries") or [str(arguments.get("query", ""))]
                return {"queries": queries, "results": _list_objects(output) or None}
            case "code_interpreter_call":
                logs = [{"type": "logs", "logs": _show(output)}] if output else None
                made = {"code": arguments.get("code", ""), "outputs": _list_objects(output) or logs}
                return {"container_id": "cntr_simulated", **made}
            case _:
                failed = result is not None and result.is_error
                error = {"type": "mcp_tool_execution_error", "content": _show(output)} if failed else None
                outcome = {"output": None if failed or result is None else _show(output), "error": error}
                return {"server_label": "simulated", "name": self._name, "arguments": self._arguments, **outcome}


def _list_objects(output: Any) -> list[dict[str, Any]]:
    return [each for each in output if isinstance(each, dict)] if isinstance(output, list) else []


def _show(output: Any) -> str:
    return output if isinstance(output, str) else encode_json(output).decode()


# --- the reply ---


_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}

_ECHOED: Final[dict[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""The request fields that a response repeats, with their defaults."""

_DELTA: Final = (
    b'event: %b\ndata: {"type":"%b","item_id":%b,"output_index":%d,%b"delta":',
    b',"sequence_number":%d}\n\n',
)


class _Item:
    """An output item that is being written. `body` is its complete form."""

    __slots__ = ("body", "head", "index", "pieces", "place", "tail")

    def __init__(
        self, index: int, body: dict[str, Any], event: bytes, place: dict[str, int], extra: bytes = b""
    ) -> None:
        self.index = index
        self.body = body
        self.pieces: list[str] = []
        self.place = {"item_id": body["id"], "output_index": index, **place}
        inner = b"".join(b'"%b":%d,' % (name.encode(), number) for name, number in place.items())
        self.head = _DELTA[0] % (event, event, encode_json(body["id"]), index, inner)
        self.tail = extra + _DELTA[1]

    def write_delta(self, delta: str, number: int) -> bytes:
        self.pieces.append(delta)
        return self.head + encode_json(delta) + self.tail % number

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponsesReply:
    def __init__(self, request: dict[str, Any], *, id: str) -> None:
        self._id = id
        self._stem = id.partition("_")[2] or id
        self._order = PartOrder()
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._texts: dict[str, _Item] = {}
        self._last_text: _Item | None = None
        self._reasonings: dict[str, _Item] = {}
        self._calls: dict[str, _Item] = {}
        self._own_calls: dict[str, tuple[int, OwnCall]] = {}
        echoed = {name: default if request.get(name) is None else request[name] for name, default in _ECHOED.items()}
        self._whole: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": CREATED_AT,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": request.get("model", "simulated"),
            **echoed,
            "output": [],
            "usage": None,
        }

    def write(self, part: content.Part) -> list[bytes]:
        events: list[bytes] = []
        if self._number == 0:
            if isinstance(part, content.UsageUpdate):
                self._whole["usage"] = _show_usage(part.usage)
            events += [
                self._make_event(f"response.{state}", response=self._whole) for state in ("created", "in_progress")
            ]
        for each in self._order.feed(part):
            if type(each) is content.TextDelta:
                events.append(self._texts[each.id].write_delta(each.delta, self._next_number()))
            else:
                events += self._write(each)
        return events

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        self._whole["status"] = "failed"
        self._whole["error"] = {"code": refusal.code or "server_error", "message": refusal.message}
        return [self._make_event("response.failed", response=self._whole)]

    def write_error(self, body: Any) -> bytes:
        if body is not None:
            return write_event(body, "error")
        message = "The server had an error while processing your request."
        error = {"type": "server_error", "code": "server_error", "message": message, "param": None}
        return self._make_event("error", error=error)

    def build_whole(self) -> dict[str, Any]:
        return self._whole

    # --- one case per kind of part ---

    def _write(self, part: content.Part) -> Iterator[bytes]:
        match part:
            case content.TextStart():
                yield from self._start_text(part.id)
            case content.TextEnd():
                yield from self._end_text(part.id)
            case content.Source():
                yield from self._annotate(part)
            case content.ReasoningStart() | content.ReasoningDelta() | content.ReasoningEnd():
                yield from self._reason(part)
            case content.ToolInputStart(provider_executed=True):
                own = OwnCall(part.id, part.name)
                self._own_calls[part.id] = (yield from self._add(own.build(status="in_progress"))), own
                yield from self._report(part.id, *own.report_start())
            case content.ToolInputStart():
                yield from self._start_call(part)
            case content.ToolInputDelta() if part.id in self._own_calls:
                yield from self._report(part.id, *self._own_calls[part.id][1].report_input(part.delta))
            case content.ToolInputDelta() if part.id in self._calls:
                yield self._calls[part.id].write_delta(part.delta, self._next_number())
            case content.ToolInputEnd() if part.id in self._own_calls:
                yield from self._report(part.id, *self._own_calls[part.id][1].report_work())
            case content.ToolInputEnd() if part.id in self._calls:
                yield from self._end_call(self._calls.pop(part.id))
            case content.ToolCall() if part.id in self._own_calls:
                self._own_calls[part.id][1].set_item(part.metadata)
            case content.ToolResult(provider_executed=True) if part.call_id in self._own_calls:
                yield from self._end_own_call(part.call_id, part)
            case content.File(data=bytes(data)):
                yield from self._show_image(data, part.media_type)
            case content.KeepAlive():
                yield self._make_event("keepalive")
            case content.Finish():
                yield from self._finish(part)
            case _:
                return

    def _start_text(self, id: str) -> Iterator[bytes]:
        body: dict[str, Any] = {"id": self._name("msg"), "type": "message", "role": "assistant", "content": []}
        body["status"] = "in_progress"
        index = yield from self._add(body)
        item = _Item(index, body, b"response.output_text.delta", {"content_index": 0}, b',"logprobs":[]')
        self._texts[id] = self._last_text = item
        body["content"] = [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]
        yield self._make_event("response.content_part.added", **item.place, part=body["content"][0])

    def _annotate(self, source: content.Source) -> Iterator[bytes]:
        assert self._last_text is not None, "PartOrder lets no source come without a text"
        item = self._last_text
        annotations = item.body["content"][0]["annotations"]
        annotations.append(_show_annotation(source, item.text))
        place = {**item.place, "annotation_index": len(annotations) - 1}
        yield self._make_event("response.output_text.annotation.added", **place, annotation=annotations[-1])

    def _end_text(self, id: str) -> Iterator[bytes]:
        item = self._texts.pop(id)
        part = item.body["content"][0]
        part["text"] = item.text
        yield self._make_event("response.output_text.done", **item.place, text=item.text, logprobs=[])
        yield self._make_event("response.content_part.done", **item.place, part=part)
        yield self._end(item.index, {**item.body, "status": "completed"})

    def _reason(self, part: content.ReasoningStart | content.ReasoningDelta | content.ReasoningEnd) -> Iterator[bytes]:
        if isinstance(part, content.ReasoningStart):
            body: dict[str, Any] = {"id": self._name("rs"), "type": "reasoning", "summary": []}
            index = yield from self._add(body)
            event = b"response.reasoning_summary_text.delta"
            self._reasonings[part.id] = _Item(index, body, event, {"summary_index": 0})
        item = self._reasonings[part.id]
        if encrypted := (part.metadata or {}).get("encrypted_content") or part.signature:
            item.body["encrypted_content"] = encrypted
        if isinstance(part, content.ReasoningDelta) and part.delta:
            if not item.pieces:
                place = {"part": {"type": "summary_text", "text": ""}, **item.place}
                yield self._make_event("response.reasoning_summary_part.added", **place)
            yield item.write_delta(part.delta, self._next_number())
        if isinstance(part, content.ReasoningEnd):
            del self._reasonings[part.id]
            if item.pieces:
                summary = {"type": "summary_text", "text": item.text}
                item.body["summary"] = [summary]
                yield self._make_event("response.reasoning_summary_text.done", **item.place, text=item.text)
                yield self._make_event("response.reasoning_summary_part.done", **item.place, part=summary)
            yield self._end(item.index, item.body)

    def _start_call(self, part: content.ToolInputStart) -> Iterator[bytes]:
        named = {"call_id": part.id, "name": part.name}
        body = {"id": self._name("fc"), "type": "function_call", "status": "in_progress", "arguments": "", **named}
        index = yield from self._add(body)
        self._calls[part.id] = _Item(index, body, b"response.function_call_arguments.delta", {})

    def _end_call(self, item: _Item) -> Iterator[bytes]:
        done = {"name": item.body["name"], "arguments": item.text}
        yield self._make_event("response.function_call_arguments.done", **item.place, **done)
        yield self._end(item.index, {**item.body, "arguments": item.text, "status": "completed"})

    def _end_own_call(self, id: str, result: content.ToolResult | None) -> Iterator[bytes]:
        index, own = self._own_calls[id]
        yield from self._report(id, *own.report_end(result))
        del self._own_calls[id]
        yield self._end(index, own.build(status="completed", result=result))

    def _show_image(self, data: bytes, media_type: str) -> Iterator[bytes]:
        body: dict[str, Any] = {"id": self._name("ig"), "type": "image_generation_call", "result": None}
        index = yield from self._add({**body, "status": "in_progress"})
        for state in ("in_progress", "generating", "completed"):
            yield self._make_event(f"response.image_generation_call.{state}", item_id=body["id"], output_index=index)
        made = {"result": base64.b64encode(data).decode(), "output_format": media_type.rpartition("/")[2]}
        yield self._end(index, {**body, **made, "status": "completed"})

    def _finish(self, finish: content.Finish) -> Iterator[bytes]:
        for id_ in list(self._own_calls):
            yield from self._end_own_call(id_, None)
        incomplete = _INCOMPLETE.get(finish.reason)
        status = "incomplete" if incomplete else "completed"
        self._whole |= {
            "id": finish.response_id or self._id,
            "status": status,
            "incomplete_details": {"reason": incomplete} if incomplete else None,
            "output": self._output,
            "usage": _show_usage(finish.usage) if finish.usage is not None else None,
        }
        yield self._make_event(f"response.{status}", response=self._whole)

    # --- items and events ---

    def _name(self, prefix: str) -> str:
        return f"{prefix}_{self._stem}_{len(self._output)}"

    def _add(self, body: dict[str, Any]) -> Generator[bytes, None, int]:
        self._output.append(body)
        index = len(self._output) - 1
        yield self._make_event("response.output_item.added", output_index=index, item=body)
        return index

    def _end(self, index: int, body: dict[str, Any]) -> bytes:
        self._output[index] = body
        return self._make_event("response.output_item.done", output_index=index, item=body)

    def _report(self, id: str, *reports: tuple[str, dict[str, Any]]) -> Iterator[bytes]:
        index, own = self._own_calls[id]
        for state, more in reports:
            yield self._make_event(f"response.{state}", output_index=index, item_id=own.item_id, **more)

    def _make_event(self, type: str, **fields: Any) -> bytes:
        return write_event({"type": type, "sequence_number": self._next_number(), **fields}, type)

    def _next_number(self) -> int:
        number = self._number
        self._number += 1
        return number


def _show_usage(usage: content.Usage) -> dict[str, Any]:
    details = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": details,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _show_annotation(source: content.Source, text: str) -> dict[str, Any]:
    if source.url is None:
        found = {"type": "file_citation", "file_id": source.id or "file_simulated", "filename": source.title or "file"}
        return {**found, "index": len(text)} | (source.metadata or {})
    found = {"type": "url_citation", "url": source.url, "title": source.title or source.url}
    return {**found, **locate_quote(text, source.quote)} | (source.metadata or {})
