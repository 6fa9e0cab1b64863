"""One turn as a response of OpenAI's Responses API: its events in order, and the response object at any moment.

The rules of this API were found by running the official SDK against it (issue 17, point 4):

* `sequence_number` counts from 0 without gaps, and is the same in every replay;
* the first event is `response.created`;
* `output_index` only grows; what a crash cut is closed as `incomplete`, and its continuation is a new item;
* a stopped response ends with `response.incomplete`, its status `cancelled` and the partial text in its output: the SDK
  reads `response.cancelled` as a class of something else;
* no event and no item has a type that the SDK does not know.

Clients act on the calls in the output of a completed response. So it holds only the calls that are awaited; one that
was cut and answered by the server stays in the stream, closed as incomplete, and in no completed output. The SDK also
refuses two calls with one id in a response: a later one gets a number behind its id (`#2`), which `read_call_id`
removes.

Must stay true (tests/server/compat/test_projections.py): all of the above at every prefix of every turn, judged by
the SDK's own accumulator.

responses_items.py has the items; responses.py the routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from indelible import content
from indelible.content import encode
from indelible.server.compat.openai import RunningUsage, name_response_item
from indelible.server.compat.projection import PartHandlers, TurnProjection
from indelible.server.compat.responses_items import CallItem, Event, Item, OwnCallItem, ReasoningItem, TextItem

_AGAIN: Final = re.compile(r"#\d+$")
_LIMITS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_DEFAULTS: Final[dict[str, Any]] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def read_call_id(call_id: str) -> str:
    """The id of the call, as the provider gave it."""
    return _AGAIN.sub("", call_id)


class Written(NamedTuple):
    """A message of the turn as it was stored, and the first item of its step."""

    first_item: int
    message: dict[str, Any]


class ResponseProjection(TurnProjection):
    """See the module header. `request` is what the response repeats; the client runs `client_tools`."""

    def __init__(
        self,
        id: str,
        *,
        request: dict[str, Any],
        model: str,
        created_at: datetime,
        client_tools: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.id = id
        self.request = {**_DEFAULTS, **request}
        self._model = model
        self._created_at = int(created_at.timestamp())
        self._client_tools = client_tools
        self._status = "in_progress"
        self._sequence = 0
        self.items: list[Item] = []
        self.written: list[Written] = []
        self._open: dict[tuple[str, str], Item] = {}
        self._step_from = 0
        self._completed_at: int | None = None
        self._call_ids: set[str] = set()
        self._awaited: set[str] = set()
        self._usage = RunningUsage()

    # --- the response ---

    def show(self) -> dict[str, Any]:
        """The response object as of now."""
        return {
            **self.request,
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": self._completed_at if self._status == "completed" else None,
            "status": self._status,
            "error": self._describe_error(),
            "incomplete_details": self._describe_limit(),
            "model": self._model,
            "output": [item.done or item.show("incomplete") for item in self.items if self._is_shown(item)],
            "usage": self._usage.show_for_response(),
        }

    def _is_shown(self, item: Item) -> bool:
        is_call = isinstance(item, CallItem) and self._status == "completed"
        return not is_call or item.id in self._awaited

    def _describe_error(self) -> dict[str, Any] | None:
        if self._status != "failed":
            return None
        error = self.error or {}
        code = "rate_limit_exceeded" if error.get("kind") == "rate_limit" else "server_error"
        return {"code": code, "message": error.get("message") or "The reply failed."}

    def _describe_limit(self) -> dict[str, Any] | None:
        reason = _LIMITS.get(self.reason or "") if self._status == "incomplete" else None
        return None if reason is None else {"reason": reason}

    # --- the turn ---

    def open(self) -> None:
        for kind in ("response.created", "response.in_progress"):
            self._send([(kind, {"response": self.show()})])

    def open_attempt(self, attempt_id: str, model: str | None) -> None:  # noqa: ARG002 - the request names the model
        self._step_from = len(self.items)

    def close_attempt(self, *, complete: bool) -> None:
        for item in self._open.values():
            is_whole = complete and not isinstance(item, OwnCallItem)
            self._send(item.close("completed" if is_whole else "incomplete"))
        self._open.clear()

    def add_message(self, message: dict[str, Any]) -> None:
        if message["role"] == "assistant":
            self._usage.add(message["usage"])
        if message["role"] in ("assistant", "tool"):
            self.written.append(Written(self._step_from, message))
            self._completed_at = int(datetime.fromisoformat(message["created_at"]).timestamp())

    def close(self) -> None:
        self.close_attempt(complete=False)
        kind = "response.completed"
        match self.outcome:
            case "waiting":
                self._status = "completed"
                self._awaited = {item.id for item in self.items if self._is_awaited(item)}
            case "failed":
                self._status, kind = "failed", "response.failed"
            case "interrupted" | "edited":
                self._status, kind = "cancelled", "response.incomplete"
            case _ if self.reason is not None:
                self._status, kind = "incomplete", "response.incomplete"
            case _:
                self._status = "completed"
        self._send([(kind, {"response": self.show()})])

    def _is_awaited(self, item: Item) -> bool:
        """Whether this is a call of the step that waits: earlier ones were answered by the server."""
        if not isinstance(item, CallItem) or item.index < self._step_from:
            return False
        return read_call_id(item.call_id) in {call["id"] for call in self.awaited}

    # --- parts ---

    def _start_text(self, part: content.TextStart | content.TextDelta) -> Item:
        return self._open_item(("text", part.id), TextItem(self._name("msg"), len(self.items)))

    def _read_text(self, part: content.TextDelta) -> None:
        item = self._open.get(("text", part.id)) or self._start_text(part)
        self._grow(item, part.delta)

    def _start_reasoning(self, part: content.ReasoningStart | content.ReasoningDelta) -> Item:
        return self._open_item(("reasoning", part.id), ReasoningItem(self._name("rs"), len(self.items)))

    def _read_reasoning(self, part: content.ReasoningDelta) -> None:
        item = self._open.get(("reasoning", part.id)) or self._start_reasoning(part)
        if part.delta:
            self._grow(item, part.delta)

    def _start_call(self, part: content.ToolInputStart | content.ToolCall) -> Item:
        key = ("call", part.id)
        known = self._open.get(key)
        if known is not None:
            return known
        if part.name in self._client_tools and not part.provider_executed:
            item: Item = CallItem(self._name("fc"), len(self.items), self._name_call(part.id), part.name)
        else:
            item = OwnCallItem(self._name("mcp"), len(self.items), part.id, part.name)
        return self._open_item(key, item)

    def _read_input(self, part: content.ToolInputDelta) -> None:
        item = self._open.get(("call", part.id))
        if item is not None and part.delta:
            self._grow(item, part.delta)

    def _read_call(self, part: content.ToolCall) -> None:
        item = self._start_call(part)
        if part.arguments and not item.text:
            self._grow(item, part.arguments)
        if isinstance(item, OwnCallItem):
            self._send(item.complete_arguments())
        else:
            self._close(("call", part.id))

    def _read_result(self, part: content.ToolResult) -> None:
        item = self._open.get(("call", part.call_id))
        if isinstance(item, OwnCallItem):
            item.set_output(part.output)
            del self._open["call", part.call_id]
            self._send(item.close("failed" if part.is_error else "completed"))

    def _read_source(self, part: content.Source) -> None:
        texts = [item for item in self._open.values() if isinstance(item, TextItem)]
        if texts and part.url:
            self._send([texts[-1].cite(part.url, part.title)])

    def _read_finish(self, _part: content.Finish) -> None:
        for key, item in list(self._open.items()):
            if isinstance(item, OwnCallItem):
                self._send(item.complete_arguments())
            else:
                self._close(key)

    # --- items and events ---

    def _name(self, prefix: str) -> str:
        return name_response_item(prefix, self.id, len(self.items))

    def _name_call(self, call_id: str) -> str:
        name, number = call_id, 1
        while name in self._call_ids:
            number += 1
            name = f"{call_id}#{number}"
        self._call_ids.add(name)
        return name

    def _open_item(self, key: tuple[str, str], item: Item) -> Item:
        self._close(key)
        self.items.append(item)
        self._open[key] = item
        self._send(item.open())
        return item

    def _grow(self, item: Item, delta: str) -> None:
        """The hot path: one frame per piece of a text."""
        item.grow(delta)
        self.emit(b'%b%b,"sequence_number":%d}\n\n' % (item.delta_head, encode(delta), self._sequence))
        self._sequence += 1

    def _close(self, key: tuple[str, str]) -> None:
        item = self._open.pop(key, None)
        if item is not None:
            self._send(item.close("completed"))

    def _send(self, events: Iterable[Event]) -> None:
        for kind, fields in events:
            event = {"type": kind, **fields, "sequence_number": self._sequence}
            self.emit(b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(event)))
            self._sequence += 1

    parts: ClassVar[PartHandlers] = {
        content.TextStart: _start_text,
        content.TextDelta: _read_text,
        content.TextEnd: lambda self, part: self._close(("text", part.id)),
        content.ReasoningStart: _start_reasoning,
        content.ReasoningDelta: _read_reasoning,
        content.ReasoningEnd: lambda self, part: self._close(("reasoning", part.id)),
        content.ToolInputStart: _start_call,
        content.ToolInputDelta: _read_input,
        content.ToolCall: _read_call,
        content.ToolResult: _read_result,
        content.Source: _read_source,
        content.Finish: _read_finish,
    }
