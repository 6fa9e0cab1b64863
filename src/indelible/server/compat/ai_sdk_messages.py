"""UI messages of the AI SDK, versions 6 and 7 of the npm package `ai`: read, written, and streamed.

The hook gives its messages ids of its own. The id of a user's message is kept in the metadata of its last block, so
that an edit or a regeneration by that id finds it, before and after a reload. Messages that the hook could not deliver
arrive together with the next one, and are stored as one message with it: the model has to answer them together, in the
queue as well. Each keeps its id, and is shown on its own (`divide_user`).

A turn is one UI message. Its id is made from the message that it answers, so the same message has the same id in the
stream, in a resumed stream and in the list of messages. Each attempt is a step. What a crash cut ends where it was, and
the continuation is a new part; parts are never named twice.

A tool that the server runs is `providerExecuted`: the hook then neither runs it nor waits for an output. A call of a
client's tool ends the stream, and the hook sends its output with the next request, into the same message.

Must stay true (tests/server/compat/test_projections.py): every delta stands between the start and the end of its part;
every call that has begun ends as available or as an error; the last chunk is `finish`, `abort` or `error`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from indelible import content
from indelible.api.shapes import ChatMessage
from indelible.content import Block, File, Message, Reasoning, Text, ToolCall, ToolResult, encode
from indelible.errors import Invalid
from indelible.server.compat.projection import PartHandlers, TurnProjection
from indelible.server.compat.requests import read_file, write_file_url

_REPLY: Final = "reply-"
_UI_ID: Final = "ui_id"
"""The key of the hook's id in the metadata of a block."""
_MAX_ID: Final = 200
_SETTLED: Final = ("output-available", "output-error")


def name_reply(message_id: str) -> str:
    """The id of the UI message that answers this message."""
    return _REPLY + message_id


def divide_user(message: ChatMessage) -> list[tuple[str, list[Block]]]:
    """What the hook shows of a message of the user: one message or more, each with its id."""
    shown: list[tuple[str, list[Block]]] = []
    blocks: list[Block] = []
    for block in message.blocks:
        blocks.append(block)
        if ui_id := _read_ui_id(block):
            shown.append((ui_id, blocks))
            blocks = []
    if blocks or not shown:
        shown.append((message.id, blocks))
    return shown


def split_user(message: ChatMessage, ui_id: str | None) -> tuple[list[Block], list[Block]]:
    """The blocks above the hook's message with this id, and those down to its end. Any other id names all of them."""
    above: list[Block] = []
    for each, blocks in divide_user(message):
        if each == ui_id:
            return above, above + blocks
        above = above + blocks
    return [], message.blocks


def is_in(blocks: Sequence[Block], ui_id: str) -> bool:
    """Whether the hook's message with this id is among these blocks."""
    return ui_id[:_MAX_ID] in map(_read_ui_id, blocks)


def _read_ui_id(block: Block) -> str:
    """The id of the hook's message that ends with this block; empty if none does."""
    return str((getattr(block, "metadata", None) or {}).get(_UI_ID) or "")


def get_ui_id(ui_message: dict[str, Any]) -> str | None:
    """The id that the hook gave to a message; None if it has none."""
    ui_id = ui_message.get("id")
    return ui_id[:_MAX_ID] if isinstance(ui_id, str) and ui_id else None


def find_user_message(path: Sequence[ChatMessage], ui_id: str) -> ChatMessage | None:
    """The message of the user that this id names: its own, or that of its reply."""
    asked = [message for message in path if message.role == "user"]
    named = ui_id[:_MAX_ID].removeprefix(_REPLY)
    return next((each for each in reversed(asked) if each.id == named or is_in(each.blocks, named)), None)


def list_unsent(
    path: Sequence[ChatMessage], queue: Sequence[list[Block]], given: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The messages of the user that the hook shows and the chat does not have: those after the last that both have.

    The chat has what waits in its queue, too. What the assistant says is the hook's own invention. If both have nothing
    in common, and the chat is not empty, the hook has given its messages other ids, and only the last one is new for
    certain.
    """
    known = [at for at, message in enumerate(given) if _is_known(path, queue, message)]
    after = known[-1] + 1 if known else len(given) - 1 if any(message.role == "user" for message in path) else 0
    return [message for message in given[after:] if message.get("role") == "user"]


def _is_known(path: Sequence[ChatMessage], queue: Sequence[list[Block]], ui_message: dict[str, Any]) -> bool:
    """Whether the chat has it. A reply with a name of ours proves that the server had what is above it."""
    ui_id = get_ui_id(ui_message)
    if ui_id is None:
        return False
    is_our_reply = ui_message.get("role") == "assistant" and ui_id.startswith(_REPLY)
    return is_our_reply or find_user_message(path, ui_id) is not None or any(is_in(blocks, ui_id) for blocks in queue)


# --- reading ---


def read_ui_messages(given: Sequence[dict[str, Any]]) -> list[Message]:
    """A conversation that began elsewhere, as the hook has it."""
    return [message for ui_message in given for message in _read_message(ui_message)]


def read_user_blocks(ui_message: dict[str, Any]) -> list[Block]:
    """The content of a user's message, with its id."""
    blocks = [block for part in _parts(ui_message) for block in _read_given(part)]
    ui_id = get_ui_id(ui_message)
    if ui_id is None or not blocks:
        return blocks
    *above, last = blocks
    return [*above, replace(last, metadata={**(getattr(last, "metadata", None) or {}), _UI_ID: ui_id})]


def read_outputs(ui_message: dict[str, Any]) -> dict[str, ToolResult]:
    """The outputs that a UI message holds, by call."""
    found = (_read_output(part) for part in _parts(ui_message) if _is_tool(part))
    return {result.call_id: result for result in found if result is not None}


def _read_message(ui_message: dict[str, Any]) -> Iterator[Message]:
    match ui_message.get("role"):
        case "user":
            yield Message(role="user", blocks=read_user_blocks(ui_message))
        case "system":
            yield Message(role="system", blocks=read_user_blocks(ui_message))
        case "assistant":
            yield from _read_reply(ui_message)
        case role:
            raise Invalid(f"messages: the role {str(role)[:40]!r} is not supported.")


def _read_reply(ui_message: dict[str, Any]) -> Iterator[Message]:
    """One message of the assistant per step, with the results of its calls."""
    steps: list[list[dict[str, Any]]] = [[]]
    for part in _parts(ui_message):
        if part.get("type") == "step-start":
            steps.append([])
        else:
            steps[-1].append(part)
    for step in steps:
        blocks: list[Block] = [block for part in step for block in _read_content(part)]
        results: list[Block] = [result for part in step if _is_tool(part) and (result := _read_output(part))]
        if blocks:
            yield Message(role="assistant", blocks=blocks)
        if results:
            yield Message(role="tool", blocks=results)


def _read_given(part: dict[str, Any]) -> Iterator[Block]:
    match part:
        case {"type": "text", "text": str(text)}:
            yield Text(text)
        case {"type": "file", "url": str(url)}:
            yield read_file(url, name=part.get("filename"), media_type=part.get("mediaType"))
        case {"type": "text" | "file" as kind}:
            raise Invalid(f"messages: a part of type {kind!r} has no {'text' if kind == 'text' else 'url'}.")


def _read_content(part: dict[str, Any]) -> Iterator[Block]:
    if _is_tool(part):
        name = part.get("toolName") or str(part["type"]).removeprefix("tool-")
        yield ToolCall(id=str(part.get("toolCallId")), name=str(name), arguments=encode(part.get("input")).decode())
    elif part.get("type") == "text" and part.get("text"):
        yield Text(str(part["text"]))


def _read_output(part: dict[str, Any]) -> ToolResult | None:
    if part.get("state") not in _SETTLED or part.get("preliminary"):
        return None
    failed = part["state"] == "output-error"
    output = part.get("errorText") if failed else part.get("output")
    text = output if isinstance(output, str) else encode(output).decode()
    return ToolResult(call_id=str(part.get("toolCallId")), name="", output=text, is_error=failed)


def _parts(ui_message: dict[str, Any]) -> list[dict[str, Any]]:
    parts = ui_message.get("parts")
    if not isinstance(parts, list):
        raise Invalid("messages: every message has a list of parts.")
    return [part for part in parts if isinstance(part, dict)]


def _is_tool(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and (kind.startswith("tool-") or kind == "dynamic-tool")


# --- writing ---


def write_ui_messages(path: Sequence[ChatMessage], client_tools: frozenset[str]) -> list[dict[str, Any]]:
    """The conversation as the hook shows it: one UI message per reply."""
    shown: list[dict[str, Any]] = []
    asked: str | None = None
    for message in path:
        if message.role in ("user", "system"):
            asked = message.id
            for ui_id, blocks in divide_user(message):
                parts = [part for block in blocks for part in _write_given(block)]
                shown.append({"id": ui_id, "role": message.role, "parts": parts})
        elif message.role == "assistant":
            if not shown or shown[-1]["role"] != "assistant":
                shown.append({"id": name_reply(asked or message.id), "role": "assistant", "parts": []})
            written = [part for block in message.blocks for part in _write_content(block, client_tools)]
            shown[-1]["parts"] += [{"type": "step-start"}, *written]
            _settle(shown[-1]["parts"], message.blocks)
        elif message.role == "tool" and shown:
            _settle(shown[-1]["parts"], message.blocks)
    return shown


def _write_given(block: Block) -> Iterator[dict[str, Any]]:
    if isinstance(block, Text):
        yield {"type": "text", "text": block.text}
    elif isinstance(block, File):
        yield {"type": "file", "mediaType": block.media_type, "filename": block.name, "url": write_file_url(block)}


def _write_content(block: Block, client_tools: frozenset[str]) -> Iterator[dict[str, Any]]:
    match block:
        case Text() if block.text:
            yield {"type": "text", "text": block.text, "state": "done"}
        case Reasoning():
            yield {"type": "reasoning", "text": block.text, "state": "done"}
        case ToolCall():
            is_own = block.name not in client_tools or block.provider_executed
            call = {"type": f"tool-{block.name}", "toolCallId": block.id, "state": "input-available"}
            yield {**call, "input": read_input(block.arguments), **({"providerExecuted": True} if is_own else {})}
        case _:
            return


def _settle(parts: list[dict[str, Any]], blocks: Sequence[Block]) -> None:
    """Put each result with its call."""
    for result in blocks:
        if isinstance(result, ToolResult):
            for part in parts:
                if part.get("toolCallId") == result.call_id and part["state"] == "input-available":
                    failed = {"state": "output-error", "errorText": str(result.output)}
                    part.update(failed if result.is_error else {"state": "output-available", "output": result.output})


# --- streaming ---


HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
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
            for block in msgspec.convert(message["blocks"], list[ToolResult]):
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

    def _start_call(self, part: content.ToolInputStart | ToolCall) -> _Call:
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

    def _read_call(self, part: ToolCall) -> None:
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

    def _settle(self, result: ToolResult) -> None:
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

    def _read_file(self, part: File) -> None:
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
        ToolCall: _read_call,
        content.ToolProgress: _read_progress,
        ToolResult: _settle,
        content.Source: _read_source,
        File: _read_file,
    }


def _mark(call: _Call) -> dict[str, Any]:
    return {"providerExecuted": True} if call.is_own else {}


def read_input(arguments: str) -> Any:
    """The input of a call; as text if it is no JSON."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return arguments
