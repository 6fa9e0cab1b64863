"""One turn as a UI message stream of the AI SDK, versions 6 and 7 of the npm package `ai`.

A turn is one UI message. Its id is made from the message that it answers, so the same message has the same id in the
stream, in a resumed stream and in the list of messages (messages.py). Each attempt is a step. What a crash cut ends
where it was, and the continuation is a new part; parts are never named twice.

A tool that the server runs is `providerExecuted`: the hook then neither runs it nor waits for an output. A call of a
client's tool ends the stream, and the hook sends its output with the next request, into the same message.

Must stay true (tests/server/compat/test_projections.py): every delta stands between the start and the end of its part;
every call that has begun ends as available or as an error; the last chunk is `finish`, `abort` or `error`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from indelible import content
from indelible.content import encode
from indelible.server.compat.projection import PartHandlers, TurnProjection
from indelible.server.compat.requests import write_file_url

HEADERS: Final = [(b"x-vercel-ai-ui-message-stream", b"v1")]
DONE: Final = b"data: [DONE]\n\n"
CUT: Final = "The call was interrupted."
_REASONS: Final = {"length": "length", "content_filter": "content-filter"}


class _Call:
    """A call that has begun. `is_whole`: its input was sent."""

    def __init__(self, name: str, *, is_own: bool) -> None:
        self.name = name
        self.is_own = is_own
        self.text = ""
        self.is_whole = False
        self.is_settled = False


class UiMessageProjection(TurnProjection):
    """See the module header. The client runs `client_tools`."""

    def __init__(
        self, message_id: str, *, client_tools: frozenset[str], queued: str | None = None, answered: int = 0
    ) -> None:
        super().__init__(queued=queued, answered=answered)
        self._message_id = message_id
        self._client_tools = client_tools
        self._open: dict[tuple[str, str], bytes] = {}
        self._calls: dict[str, _Call] = {}
        self._number = 0
        self._is_in_step = False

    # --- the turn ---

    def open(self) -> None:
        self._send(type="start", messageId=self._message_id)

    def open_attempt(self, attempt_id: str, model: str | None) -> None:  # noqa: ARG002 - steps have no names here
        self._send(type="start-step")
        self._is_in_step = True

    def close_attempt(self, *, complete: bool) -> None:
        for kind, _ in list(self._open):
            self._end(kind, _)
        if not complete:
            for call_id, call in self._calls.items():
                if not call.is_whole:
                    self._fail_input(call_id, call)
        if self._is_in_step:
            self._send(type="finish-step")
            self._is_in_step = False

    def add_message(self, message: dict[str, Any]) -> None:
        """Results that are no parts of an attempt: the client's own, and what the server says about a call it cut."""
        if message["role"] == "tool":
            for block in msgspec.convert(message["blocks"], list[content.ToolResult]):
                self._settle(block)

    def close(self) -> None:
        self.close_attempt(complete=self.outcome == "waiting")
        match self.outcome:
            case "failed":
                self._send(type="error", errorText=(self.error or {}).get("message") or "The reply failed.")
            case "interrupted" | "edited":
                self._send(type="abort", reason="Stopped.")
            case "waiting":
                self._send(type="finish", finishReason="tool-calls")
            case _:
                self._send(type="finish", finishReason=_REASONS.get(self.reason or "", "stop"))
        self.emit(DONE)

    # --- text and reasoning ---

    def _read_text(self, part: content.TextDelta) -> None:
        head = self._open.get(("text", part.id)) or self._begin("text", part.id)
        self.emit(b"%b%b}\n\n" % (head, encode(part.delta)))

    def _read_reasoning(self, part: content.ReasoningDelta) -> None:
        head = self._open.get(("reasoning", part.id)) or self._begin("reasoning", part.id)
        if part.delta:
            self.emit(b"%b%b}\n\n" % (head, encode(part.delta)))

    def _begin(self, kind: str, id_: str) -> bytes:
        """Open a part, under a name of its own; returns the beginning of its deltas: the hot path."""
        self._end(kind, id_)
        self._number += 1
        name = f"{kind}-{self._number}"
        self._send(type=f"{kind}-start", id=name)
        head = f'data: {{"type":"{kind}-delta","id":"{name}","delta":'.encode()
        self._open[kind, id_] = head
        return head

    def _end(self, kind: str, id_: str) -> None:
        head = self._open.pop((kind, id_), None)
        if head is not None:
            opened = msgspec.json.decode(head.removeprefix(b"data: ") + b'""}')
            self._send(type=f"{kind}-end", id=opened["id"])

    # --- tools ---

    def _start_call(self, part: content.ToolInputStart | content.ToolCall) -> _Call:
        known = self._calls.get(part.id)
        if known is not None and not known.is_settled:
            return known
        is_own = part.name not in self._client_tools or part.provider_executed
        call = self._calls[part.id] = _Call(part.name, is_own=is_own)
        self._send(type="tool-input-start", toolCallId=part.id, toolName=part.name, **_mark(call))
        return call

    def _read_input(self, part: content.ToolInputDelta) -> None:
        call = self._calls.get(part.id)
        if call is not None and not call.is_whole:
            call.text += part.delta
            self._send(type="tool-input-delta", toolCallId=part.id, inputTextDelta=part.delta)

    def _read_call(self, part: content.ToolCall) -> None:
        call = self._start_call(part)
        if not call.is_whole:
            call.is_whole = True
            named = {"toolCallId": part.id, "toolName": call.name, "input": read_input(part.arguments or call.text)}
            self._send(type="tool-input-available", **named, **_mark(call))

    def _read_progress(self, part: content.ToolProgress) -> None:
        call = self._calls.get(part.call_id)
        if call is not None and call.is_whole and not call.is_settled:
            shown = {"toolCallId": part.call_id, "output": part.message, "preliminary": True}
            self._send(type="tool-output-available", **shown, **_mark(call))

    def _settle(self, result: content.ToolResult) -> None:
        call = self._calls.get(result.call_id)
        if call is None or call.is_settled:
            return
        if not call.is_whole:
            self._fail_input(result.call_id, call)
            return
        call.is_settled = True
        if result.is_error:
            error = result.output if isinstance(result.output, str) else encode(result.output).decode()
            self._send(type="tool-output-error", toolCallId=result.call_id, errorText=error, **_mark(call))
        else:
            output = {"toolCallId": result.call_id, "output": result.output}
            self._send(type="tool-output-available", **output, **_mark(call))

    def _fail_input(self, call_id: str, call: _Call) -> None:
        call.is_whole = call.is_settled = True
        error = {"toolCallId": call_id, "toolName": call.name, "input": call.text, "errorText": CUT}
        self._send(type="tool-input-error", **error, **_mark(call))

    # --- the rest ---

    def _read_source(self, part: content.Source) -> None:
        if part.url:
            self._number += 1
            source = {"sourceId": part.id or f"source-{self._number}", "url": part.url, "title": part.title or part.url}
            self._send(type="source-url", **source)

    def _read_file(self, part: content.File) -> None:
        url = write_file_url(part)
        if url:
            self._send(type="file", url=url, mediaType=part.media_type)

    def _send(self, **chunk: Any) -> None:
        self.emit(b"data: %b\n\n" % encode(chunk))

    parts: ClassVar[PartHandlers] = {
        content.TextStart: lambda self, part: self._begin("text", part.id),
        content.TextDelta: _read_text,
        content.TextEnd: lambda self, part: self._end("text", part.id),
        content.ReasoningStart: lambda self, part: self._begin("reasoning", part.id),
        content.ReasoningDelta: _read_reasoning,
        content.ReasoningEnd: lambda self, part: self._end("reasoning", part.id),
        content.ToolInputStart: _start_call,
        content.ToolInputDelta: _read_input,
        content.ToolCall: _read_call,
        content.ToolProgress: _read_progress,
        content.ToolResult: _settle,
        content.Source: _read_source,
        content.File: _read_file,
    }


def _mark(call: _Call) -> dict[str, Any]:
    return {"providerExecuted": True} if call.is_own else {}


def read_input(arguments: str) -> Any:
    """The input of a call; as text if it is no JSON."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return arguments
