"""Items of the Responses and Conversations APIs: read into messages, and messages written as items.

Reading is lenient with fields: one that means nothing here is left out, because the official clients send back
whatever they were given. What would change the meaning (an item, a role or a content that we do not know) is refused.
An item that was written here can be read again: agents send the whole conversation with every request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from indelible.api.shapes import ChatMessage
from indelible.content import Block, File, Message, Reasoning, Text, ToolCall, ToolResult, encode, text_of
from indelible.errors import Invalid
from indelible.server.compat.openai import name_message_item
from indelible.server.compat.requests import check_texts, join_neighbours, read_file, write_file_url
from indelible.server.compat.responses_projection import read_call_id

_MOST_ITEMS: Final = 2000
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text"})
_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


# --- reading ---


def read_items(given: Any) -> list[Message]:
    """The messages of an `input`: a text, or items. An item may be a list of messages already (responses_stored.py)."""
    if isinstance(given, str):
        return [Message(role="user", blocks=[Text(given)])]
    if not isinstance(given, list):
        raise Invalid("input: must be a text or a list of items.")
    if len(given) > _MOST_ITEMS:
        raise Invalid(f"input: at most {_MOST_ITEMS:,} items.")
    return join_neighbours([message for item in given for message in _read_item(item)])


def _read_item(item: Any) -> Iterator[Message]:
    if isinstance(item, list) and all(isinstance(each, Message) for each in item):
        yield from item
        return
    if not isinstance(item, dict):
        raise Invalid("input: every item must be an object.")
    kind = item.get("type") or "message"
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Invalid(f"input: an item of type {str(kind)[:40]!r} is not supported.")
    yield from reader(item)


def _read_message(item: dict[str, Any]) -> Iterator[Message]:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise Invalid("input: the role of a message is user, assistant, system or developer.")
    yield Message(role=role, blocks=read_content(item.get("content")))  # type: ignore[arg-type]


def _read_call(item: dict[str, Any]) -> Iterator[Message]:
    call_id, name, arguments = (_require_text(item, field) for field in ("call_id", "name", "arguments"))
    call = ToolCall(id=read_call_id(call_id), name=name, arguments=arguments)
    yield Message(role="assistant", blocks=[call])


def _read_output(item: dict[str, Any]) -> Iterator[Message]:
    call_id = read_call_id(_require_text(item, "call_id"))
    yield Message(role="tool", blocks=[make_result(call_id, read_output(item.get("output")))])


def read_output(output: Any) -> list[Block]:
    """What a client's tool returned: a text, or texts, pictures and files."""
    return read_content(output) if isinstance(output, str | list) else [Text(encode(output).decode())]


def make_result(call_id: str, output: Sequence[Block], *, name: str = "") -> ToolResult:
    """The result of a call. Its files stand beside its text."""
    files = [block for block in output if isinstance(block, File)]
    return ToolResult(call_id=call_id, name=name, output=text_of(output), files=files)


def _read_reasoning(item: dict[str, Any]) -> Iterator[Message]:
    """What the model thought, as far as it can be read: encrypted content is for the provider that made it."""
    parts = [part for name in ("summary", "content") for part in check_objects(item.get(name) or [], name)]
    text = "\n\n".join(_require_text(part, "text") for part in parts)
    if text:
        yield Message(role="assistant", blocks=[Reasoning(text)])


def _read_own_call(item: dict[str, Any]) -> Iterator[Message]:
    id_, name, arguments = (_require_text(item, field) for field in ("id", "name", "arguments"))
    yield Message(role="assistant", blocks=[ToolCall(id=id_, name=name, arguments=arguments)])
    failed = item.get("output") is None
    output = encode(item.get("error")).decode() if failed else str(item["output"])
    yield Message(role="tool", blocks=[ToolResult(call_id=id_, name=name, output=output, is_error=failed)])


_READERS: Final[dict[str, Callable[[dict[str, Any]], Iterator[Message]]]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "mcp_call": _read_own_call,
    "reasoning": _read_reasoning,
}


def read_content(content: Any) -> list[Block]:
    """The blocks of a message: a text, or content parts."""
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise Invalid("content: must be a text or a list of parts.")
    return [_read_part(part) for part in check_objects(content, "content")]


def check_objects(given: Any, name: str) -> list[dict[str, Any]]:
    """A list of objects. Whatever else is in it would be lost, so it is refused."""
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise Invalid(f"{name}: must be a list of objects.")
    return given


def _read_part(part: dict[str, Any]) -> Block:
    kind = str(part.get("type"))
    if kind in _TEXTS:
        return Text(_require_text(part, "text"))
    if kind == "refusal":
        return Text(_require_text(part, "refusal"))
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return read_file(part["image_url"], media_type=None if part["image_url"].startswith("data:") else "image/png")
    if kind in ("input_image", "input_file") and isinstance(part.get("file_id"), str):
        check_texts(part.get("filename"))
        media_type = "image/png" if kind == "input_image" else "application/octet-stream"
        return File(media_type=media_type, name=part.get("filename"), file_id=part["file_id"])
    if kind == "input_file" and isinstance(part.get("file_data") or part.get("file_url"), str):
        return read_file(part.get("file_data") or part["file_url"], name=part.get("filename"))
    raise Invalid(f"content: a part of type {kind[:40]!r} is not supported.")


def _require_text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise Invalid(f"{name}: must be a text.")
    return value


# --- writing ---


def write_items(chat_id: str, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The items of these messages of a chat, in order. Notices are for people at the page, and are none."""
    return [item for message in messages for item in _write_message(chat_id, message)]


def _write_message(chat_id: str, message: ChatMessage) -> Iterator[dict[str, Any]]:
    if message.role in ("user", "system"):
        content = [_write_given(block) for block in message.blocks if isinstance(block, Text | File)]
        yield {
            "type": "message",
            "id": name_message_item("msg", chat_id, message.id, 0),
            "status": "completed",
            "role": message.role,
            "content": content,
        }
    elif message.role in ("assistant", "tool"):
        name = partial(name_message_item, chat_id=chat_id, message_id=message.id)
        yield from _write_blocks(message.blocks, name, "incomplete" if message.partial else "completed")


def _write_blocks(blocks: Iterable[Block], name: Callable[..., str], status: str) -> Iterator[dict[str, Any]]:
    for place, block in enumerate(blocks):
        match block:
            case Text():
                part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
                message = {"type": "message", "id": name("msg", place=place), "status": status, "role": "assistant"}
                yield {**message, "content": [part]}
            case Reasoning():
                summary = [{"type": "summary_text", "text": block.text}]
                yield {"type": "reasoning", "id": name("rs", place=place), "summary": summary, "status": status}
            case ToolCall():
                call = {"call_id": block.id, "name": block.name, "arguments": block.arguments}
                yield {"type": "function_call", "id": name("fc", place=place), **call, "status": "completed"}
            case ToolResult():
                text = block.output if isinstance(block.output, str) else encode(block.output).decode()
                shown = [{"type": "input_text", "text": text}, *map(_write_given, block.files)]
                result = {"call_id": block.call_id, "output": shown if block.files else text, "status": "completed"}
                yield {"type": "function_call_output", "id": name("fco", place=place), **result}
            case _:
                continue


def _write_given(block: Text | File) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "input_text", "text": block.text}
    if block.media_type.startswith("image/"):
        where = {"image_url": write_file_url(block) or None, "file_id": block.file_id}
        return {"type": "input_image", "detail": "auto", **where}
    return {"type": "input_file", "filename": block.name, "file_id": block.file_id, "file_url": block.url}
