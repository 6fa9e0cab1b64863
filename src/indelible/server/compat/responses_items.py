"""The output items of a response while they are written, and the events of each.

An item opens at the next `output_index`, grows, and is closed exactly once, as `completed` or as `incomplete`: an index
is never used again, because the official SDK fails on that. A crash or a stop closes the open items as incomplete; the
continuation is a new item.

    text            message         output_text.delta
    reasoning       reasoning       reasoning_summary_text.delta
    client's call   function_call   function_call_arguments.delta
    our own call    mcp_call        mcp_call_arguments.delta, then its output

A tool that the server runs is an `mcp_call`: the SDKs know it as a call that somebody else has run. As a
`function_call`, clients would try to run it. A delta is the hot path: everything of it but text and number is written
once per item.

projection.py decides when items open and close.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from indelible.content import encode

Event = tuple[str, dict[str, Any]]
Status = Literal["completed", "incomplete", "failed"]
OWN: Final = "indelible"
"""The `server_label` of tools that the server runs."""


class Item:
    """See the module header. `id` and `index` name it in every event."""

    kind: str
    delta_event: str
    more = ""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.index = index
        self.is_open = True
        self.done: dict[str, Any] | None = None
        self._chunks: list[str] = []
        self.delta_head = (
            f'event: {self.delta_event}\ndata: {{"type":"{self.delta_event}","item_id":"{id}",'
            f'"output_index":{index},{self.more}"delta":'
        ).encode()

    @property
    def text(self) -> str:
        return "".join(self._chunks)

    def grow(self, delta: str) -> None:
        self._chunks.append(delta)

    def open(self) -> Iterator[Event]:
        yield "response.output_item.added", {"output_index": self.index, "item": self.show("in_progress")}

    def close(self, status: Status) -> Iterator[Event]:
        self.is_open = False
        self.done = self.show(status)
        yield from self.settle(status)
        yield "response.output_item.done", {"output_index": self.index, "item": self.done}

    def settle(self, status: Status) -> Iterator[Event]:  # noqa: ARG002 - some items close with more events
        yield from ()

    def show(self, status: str) -> dict[str, Any]:
        raise AssertionError(status)

    def place(self, **more: Any) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, **more}


class TextItem(Item):
    kind = "message"
    delta_event = "response.output_text.delta"
    more = '"content_index":0,"logprobs":[],'

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index)
        self.annotations: list[dict[str, Any]] = []

    def open(self) -> Iterator[Event]:
        yield from super().open()
        yield "response.content_part.added", self.place(content_index=0, part=self._part(""))

    def cite(self, url: str, title: str | None) -> Event:
        end = len(self.text)
        annotation = {"type": "url_citation", "url": url, "title": title or url, "start_index": end, "end_index": end}
        self.annotations.append(annotation)
        index = len(self.annotations) - 1
        placed = self.place(content_index=0, annotation_index=index, annotation=annotation)
        return "response.output_text.annotation.added", placed

    def settle(self, status: Status) -> Iterator[Event]:  # noqa: ARG002 - the text is what there is
        text = self.text
        yield "response.output_text.done", self.place(content_index=0, text=text, logprobs=[])
        yield "response.content_part.done", self.place(content_index=0, part=self._part(text))

    def show(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part(self.text)]
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        annotations = list(self.annotations) if text else []
        return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


class ReasoningItem(Item):
    kind = "reasoning"
    delta_event = "response.reasoning_summary_text.delta"
    more = '"summary_index":0,'

    def open(self) -> Iterator[Event]:
        yield from super().open()
        yield "response.reasoning_summary_part.added", self.place(summary_index=0, part=_summarize(""))

    def settle(self, status: Status) -> Iterator[Event]:  # noqa: ARG002 - as above
        text = self.text
        yield "response.reasoning_summary_text.done", self.place(summary_index=0, text=text)
        yield "response.reasoning_summary_part.done", self.place(summary_index=0, part=_summarize(text))

    def show(self, status: str) -> dict[str, Any]:
        summary = [] if status == "in_progress" else [_summarize(self.text)]
        return {"type": "reasoning", "id": self.id, "summary": summary, "status": status}


def _summarize(text: str) -> dict[str, Any]:
    return {"type": "summary_text", "text": text}


class CallItem(Item):
    """A call that the client runs."""

    kind = "function_call"
    delta_event = "response.function_call_arguments.delta"

    def __init__(self, id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(id, index)
        self.call_id = call_id
        self.name = name

    def settle(self, status: Status) -> Iterator[Event]:
        if status != "incomplete":
            placed = self.place(name=self.name, arguments=self.text)
            yield "response.function_call_arguments.done", placed

    def show(self, status: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": self.id,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "" if status == "in_progress" else self.text,
            "status": status,
        }


class OwnCallItem(Item):
    """A call that the server, or the provider, runs."""

    kind = "mcp_call"
    delta_event = "response.mcp_call_arguments.delta"

    def __init__(self, id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(id, index)
        self.call_id = call_id
        self.name = name
        self.has_arguments = False
        self._output: str | None = None

    def open(self) -> Iterator[Event]:
        yield from super().open()
        yield "response.mcp_call.in_progress", self.place()

    def complete_arguments(self) -> Iterator[Event]:
        if not self.has_arguments:
            self.has_arguments = True
            yield "response.mcp_call_arguments.done", self.place(arguments=self.text)

    def set_output(self, output: Any) -> None:
        self._output = output if isinstance(output, str) else encode(output).decode()

    def settle(self, status: Status) -> Iterator[Event]:
        if status != "incomplete":
            yield from self.complete_arguments()
            yield f"response.mcp_call.{status}", self.place()

    def show(self, status: str) -> dict[str, Any]:
        return {
            "type": "mcp_call",
            "id": self.id,
            "server_label": OWN,
            "name": self.name,
            "arguments": "" if status == "in_progress" else self.text,
            "approval_request_id": None,
            "output": self._output if status == "completed" else None,
            "error": _describe_failure(self._output) if status == "failed" else None,
            "status": status,
        }


def _describe_failure(output: str | None) -> dict[str, Any]:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": output or ""}]}
