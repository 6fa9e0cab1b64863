"""One turn as a chat completion: its chunks in order, and the whole completion.

A completion is one message, however many steps and attempts the turn took: the text continues where it was interrupted,
and tools that the server runs are not shown, because their calls would be the client's to answer. Calls of the client's
tools are sent when the turn waits for them, whole: a call that a crash has cut could not be taken back, and clients run
what they were given. Reasoning is `reasoning_content`, as the servers that have it call it.

Must stay true (tests/server/wires/test_projections.py): the first chunk names the role, exactly one has a finish
reason, and nothing but usage and `[DONE]` follows it; the chunks' text is the completion's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from indelible.content import ReasoningDelta, TextDelta, encode
from indelible.server.wires.openai.usage import RunningUsage
from indelible.server.wires.projection import PartHandlers, TurnProjection

DONE: Final = b"data: [DONE]\n\n"
_REASONS: Final = {"length": "length", "content_filter": "content_filter"}


class CompletionProjection(TurnProjection):
    """See the module header. `with_usage` adds a chunk with the tokens."""

    def __init__(self, id: str, *, model: str, created_at: int, with_usage: bool = False) -> None:
        super().__init__()
        self._head: dict[str, Any] = {"id": id, "created": created_at, "model": model}
        self._with_usage = with_usage
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._usage = RunningUsage()
        opening = {"object": "chat.completion.chunk", **self._head}
        tail = b',"usage":null}' if with_usage else b"}"
        self._delta_head = b"data: " + encode(opening)[:-1] + b',"choices":[{"index":0,"delta":{"content":'
        self._delta_tail = b'},"finish_reason":null,"logprobs":null}]' + tail + b"\n\n"

    def show(self) -> dict[str, Any]:
        """The whole completion."""
        calls = [_show_call(call) for call in self.awaited]
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
            problem = {"message": message, "type": "server_error", "param": None, "code": error.get("kind")}
            self.emit(b"data: %b\n\n" % encode({"error": problem}))
            return
        for index, call in enumerate(self.awaited):
            self._send({"tool_calls": [{"index": index, **_show_call(call)}]})
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

    def _send(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        chunk = {"object": "chat.completion.chunk", **self._head, "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        self.emit(b"data: %b\n\n" % encode(chunk))

    parts: ClassVar[PartHandlers] = {
        TextDelta: _read_text,
        ReasoningDelta: _read_reasoning,
    }


def _show_call(call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call.get("arguments", "")}
    return {"id": call["id"], "type": "function", "function": function}
