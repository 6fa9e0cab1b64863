"""UI messages: read into messages of a chat, and a chat written as UI messages.

The hook gives its messages ids of its own. The id of a user's message is kept in the metadata of its last block, so
that an edit or a regeneration by that id finds it, before and after a reload. The id of a reply is made from the
message that it answers.

Messages that the hook could not deliver arrive together with the next one, and are stored as one message with it: the
model has to answer them together, in the queue as well. Each keeps its id, and is shown on its own (`divide_user`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from indelible.api.shapes import ChatMessage
from indelible.content import Block, File, Message, Reasoning, Text, ToolCall, ToolResult, encode
from indelible.errors import Invalid
from indelible.server.compat.ai_sdk_projection import read_input
from indelible.server.compat.requests import read_file, write_file_url

_REPLY: Final = "reply-"
_UI_ID: Final = "ui_id"
"""The key of the hook's id in the metadata of a block."""
_MAX_ID: Final = 200
_DONE: Final = ("output-available", "output-error")


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
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        yield Text(part["text"])
    elif part.get("type") == "file" and isinstance(part.get("url"), str):
        yield read_file(part["url"], name=part.get("filename"), media_type=part.get("mediaType"))


def _read_content(part: dict[str, Any]) -> Iterator[Block]:
    if _is_tool(part):
        name = part.get("toolName") or str(part["type"]).removeprefix("tool-")
        yield ToolCall(id=str(part.get("toolCallId")), name=str(name), arguments=encode(part.get("input")).decode())
    elif part.get("type") == "text" and part.get("text"):
        yield Text(str(part["text"]))


def _read_output(part: dict[str, Any]) -> ToolResult | None:
    if part.get("state") not in _DONE or part.get("preliminary"):
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
