"""One turn as a chat completion: its chunks in order, and the whole completion.

A completion is one message, however many steps and attempts the turn took: the text goes on where it was cut, and
tools that the server runs are not shown, because their calls would be the client's to answer. Calls of the client's
tools are. Reasoning is `reasoning_content`, as the servers that have it call it.

Must stay true (tests/server/wires/test_projections.py): the first chunk names the role, exactly one has a finish
reason, and nothing but usage and `[DONE]` follows it; the chunks' text is the completion's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from indelible.content import ReasoningDelta, TextDelta, ToolCall, ToolInputDelta, ToolInputStart, encode
from indelible.server.wires.openai.usage import UsageTotal
from indelible.server.wires.projection import PartHandlers, TurnProjection

DONE: Final = b"data: [DONE]\n\n"
_REASONS: Final = {"length": "length", "content_filter": "content_filter"}


class CompletionProjection(TurnProjection):
    """See the module header. The client runs `client_tools`; `with_usage` adds a chunk with the tokens."""

    def __init__(
        self, id: str, *, model: str, created_at: int, client_tools: frozenset[str], with_usage: bool = False
    ) -> None:
        super().__init__()
        self._head: dict[str, Any] = {"id": id, "created": created_at, "model": model}
        self._client_tools = client_tools
        self._with_usage = with_usage
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._calls: dict[str, dict[str, Any]] = {}
        self._usage = UsageTotal()
        opening = {"object": "chat.completion.chunk", **self._head}
        tail = b',"usage":null}' if with_usage else b"}"
        self._delta_head = b"data: " + encode(opening)[:-1] + b',"choices":[{"index":0,"delta":{"content":'
        self._delta_tail = b'},"finish_reason":null,"logprobs":null}]' + tail + b"\n\n"

    def show(self) -> dict[str, Any]:
        """The whole completion."""
        calls = [call for call in self._calls.values() if call["id"] in {each["id"] for each in self.awaited}]
        text = "".join(self._texts)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if self._reasonings:
            message["reasoning_content"] = "".join(self._reasonings)
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason(), "logprobs": None}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage.show_for_completion(),
        }

    def _finish_reason(self) -> str:
        return "tool_calls" if self.outcome == "waiting" else _REASONS.get(self.reason or "", "stop")

    # --- the turn ---

    def open(self) -> None:
        self._send({"role": "assistant", "content": ""})

    def add_message(self, message: dict[str, Any]) -> None:
        if message["role"] == "assistant":
            self._usage.add(message["usage"])

    def close(self) -> None:
        if self.outcome == "failed":
            error = self.error or {}
            message = error.get("message") or "The reply failed."
            told = {"message": message, "type": "server_error", "param": None, "code": error.get("kind")}
            self.emit(b"data: %b\n\n" % encode({"error": told}))
            return
        self._send({}, self._finish_reason())
        if self._with_usage:
            usage: dict[str, Any] = {"choices": [], "usage": self._usage.show_for_completion()}
            self.emit(b"data: %b\n\n" % encode({"object": "chat.completion.chunk", **self._head, **usage}))
        self.emit(DONE)

    # --- parts ---

    def _read_text(self, part: TextDelta) -> None:
        self._texts.append(part.delta)
        self.emit(b"%b%b%b" % (self._delta_head, encode(part.delta), self._delta_tail))

    def _read_reasoning(self, part: ReasoningDelta) -> None:
        if part.delta:
            self._reasonings.append(part.delta)
            self._send({"reasoning_content": part.delta})

    def _start_call(self, part: ToolInputStart | ToolCall) -> None:
        if part.name in self._client_tools and not part.provider_executed and part.id not in self._calls:
            function = {"name": part.name, "arguments": ""}
            self._calls[part.id] = {"id": part.id, "type": "function", "function": function}
            self._send({"tool_calls": [{"index": len(self._calls) - 1, **self._calls[part.id]}]})

    def _read_input(self, part: ToolInputDelta) -> None:
        self._grow(part.id, part.delta)

    def _read_call(self, part: ToolCall) -> None:
        self._start_call(part)
        call = self._calls.get(part.id)
        if call is not None and not call["function"]["arguments"]:
            self._grow(part.id, part.arguments)

    def _grow(self, call_id: str, delta: str) -> None:
        call = self._calls.get(call_id)
        if call is not None and delta:
            index = list(self._calls).index(call_id)
            call["function"] = {**call["function"], "arguments": call["function"]["arguments"] + delta}
            self._send({"tool_calls": [{"index": index, "function": {"arguments": delta}}]})

    def _send(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        chunk = {"object": "chat.completion.chunk", **self._head, "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        self.emit(b"data: %b\n\n" % encode(chunk))

    parts: ClassVar[PartHandlers] = {
        TextDelta: _read_text,
        ReasoningDelta: _read_reasoning,
        ToolInputStart: _start_call,
        ToolInputDelta: _read_input,
        ToolCall: _read_call,
    }
