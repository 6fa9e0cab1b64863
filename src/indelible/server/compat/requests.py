"""Requests on another wire: their bodies, and the messages in them, divided as a chat can begin or continue with them.

Unknown fields of a body are ignored: the clients of these wires send many. A known one that asks for something that
this server cannot give is refused, because its client would wait for it in vain. A number or a boolean may be written
as a text, as some clients do. A body has no `Content-Type` that it must have.

Each wire reads its own JSON into plain messages (openai_items.py, chat_completions.py, ai_sdk_messages.py). Here they
are divided: the text of the system, the message to be answered, and what stands above and below it. A conversation ends
with a message of the user, or with results of calls that its answer has made: anything else is refused, because there
would be nothing to answer.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from indelible.content import Block, File, Message, ToolResult, text_of
from indelible.errors import Invalid
from indelible.server.router import describe_mistake
from indelible.service.turns import Given


class WireBody(msgspec.Struct, kw_only=True):
    off: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Parameters that are not supported, each with the values that do not ask for anything; None never does."""

    @classmethod
    def find_unsupported(cls, given: Mapping[str, Any]) -> str | None:
        """The first parameter that asks for something that is not supported."""
        asked = (name for name, values in cls.off.items() if given.get(name) not in (None, *values))
        return next(asked, None)


B = TypeVar("B", bound=WireBody)


async def read_body(request: Request, kind: type[B]) -> B:
    """The body, checked. Raises `Invalid` with the first mistake."""
    raw = await request.body()
    try:
        given = msgspec.json.decode(raw) if raw else {}
        if isinstance(given, dict) and (name := kind.find_unsupported(given)) is not None:
            raise Invalid(f"Unsupported parameter: {name!r} is not supported with this value. Omit it.", param=name)
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(describe_mistake("body", error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("The body is not valid JSON in UTF-8.") from error


class Divided(NamedTuple):
    """A conversation, divided; `system` is the text of its leading system messages."""

    system: str | None
    given: Given


def divide(messages: Sequence[Message]) -> Divided:
    """The parts of a whole conversation, to begin a chat with."""
    leading = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    system = "\n\n".join(text_of(message.blocks) for message in messages[:leading]) or None
    rest = list(messages[leading:])
    asked = next((at for at in range(len(rest) - 1, -1, -1) if rest[at].role == "user"), None)
    if asked is None:
        raise Invalid("The input has no message of the user.")
    if not rest[asked].blocks:
        raise Invalid("The message is empty.")
    progress = rest[asked + 1 :]
    if progress and progress[-1].role == "assistant":
        raise Invalid("The input must end with a message of the user or with the output of a tool.")
    return Divided(system, Given(history=rest[:asked], blocks=rest[asked].blocks, progress=progress))


class Continuation(NamedTuple):
    """What a request adds to a chat that has the rest already: results of calls, and what the user says."""

    system: str | None
    results: list[ToolResult]
    blocks: list[Block]


def continue_with(messages: Sequence[Message]) -> Continuation:
    """What is new in these messages. What the assistant said is in the chat already."""
    system = "\n\n".join(text_of(message.blocks) for message in messages if message.role == "system") or None
    of_tools = [message for message in messages if message.role == "tool"]
    results = [block for message in of_tools for block in message.blocks if isinstance(block, ToolResult)]
    blocks = [block for message in messages if message.role == "user" for block in message.blocks]
    if not results and not blocks:
        raise Invalid("The input has no message of the user and no output of a tool.")
    return Continuation(system, results, blocks)


def join_neighbours(messages: Sequence[Message]) -> list[Message]:
    """One message per speaker in a row, for assistant and tools: their items come one by one."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined and message.role in ("assistant", "tool") else None
        if before is not None and (before.role, before.model) == (message.role, message.model):
            joined[-1] = replace(before, blocks=[*before.blocks, *message.blocks])
        else:
            joined.append(message)
    return joined


def check_texts(*given: Any) -> None:
    """The name and the type of a file are a client's: anything but a text could be stored and never read again."""
    if not all(isinstance(each, str | None) for each in given):
        raise Invalid("The name and the type of a file must be texts.")


def read_file(url: str, *, name: Any = None, media_type: Any = None) -> File:
    """A file by its URL; a `data:` URL brings its content along. Name and type are the client's, and are checked."""
    check_texts(name, media_type)
    if not url.startswith("data:"):
        guessed = mimetypes.guess_type(name or url.partition("?")[0])[0]
        return File(media_type=media_type or guessed or "application/octet-stream", name=name, url=url)
    head, _, encoded = url.removeprefix("data:").partition(",")
    declared, *options = head.split(";")
    try:
        if "base64" not in options:
            raise Invalid("A data URL must be base64-encoded.")
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise Invalid("A data URL is not valid base64.") from error
    return File(media_type=media_type or declared or "application/octet-stream", name=name, data=data)


def write_file_url(block: File) -> str:
    """The URL of a file, with its content if that is all there is."""
    if block.url is not None or block.data is None:
        return block.url or ""
    return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
