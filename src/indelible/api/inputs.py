"""Input from users, and its validation: content, and changes to a chat.

The library accepts strings and blocks, HTTP accepts JSON; both are validated here, so that the same message is valid or
invalid everywhere (tests/app/test_same_script.py). A field of `ChatChanges` that is unset stays as it is, and None
clears it: "no title" and "do not change the title" are different requests.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from indelible.api.shapes import DebugMode, StoredFile
from indelible.content import Block, File, Text, ToolSpec, decode_blocks, encode
from indelible.errors import Invalid

_LONG_QUOTE: Final = re.compile(r"'([^']{40})[^']*'")
_SHORT_QUOTE: Final = r"'\1…'"

Content = str | Sequence[Block | StoredFile | str]
"""A user's message: a text, or texts and files in their order."""

IfBusy = Literal["queue", "interrupt", "steer"]
"""What to do during a running reply: wait for it, stop it, or join it."""


class ChatChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes to the chat's metadata. An unset field stays as it is; None clears it."""

    title: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    system: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    tools: list[ToolSpec] | msgspec.UnsetType | None = msgspec.UNSET
    debug: DebugMode | msgspec.UnsetType | None = msgspec.UNSET


def check_changes(changes: ChatChanges) -> None:
    """Raises `Invalid` if a value has the wrong type. HTTP has checked it; a program that calls the library may not."""
    try:
        msgspec.convert(msgspec.to_builtins(changes, enc_hook=_to_plain_text), ChatChanges)
    except (TypeError, ValueError) as error:
        raise Invalid(f"The chat has not changed: {error}.") from error


def _to_plain_text(value: object) -> str:
    """A subclass of `str` is a text, too."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a value of a chat")


def check_if_busy(if_busy: str) -> None:
    """Raises `Invalid` if this is not one of `IfBusy`."""
    if if_busy not in get_args(IfBusy):
        raise Invalid(f"if_busy: must be one of {', '.join(get_args(IfBusy))}, not {if_busy!r}.")


def to_blocks(content: Content) -> list[Block]:
    """The blocks of a user's message. Raises `Invalid` if it is empty, or has blocks that users cannot send."""
    blocks = list_blocks(content)
    for block in blocks:
        if not isinstance(block, Text | File):
            raise Invalid(f"content: a user's message holds text and files only, not {type(block).__name__}.")
        if isinstance(block, File) and not (block.file_id or block.url or block.data):
            raise Invalid("content: a file needs file_id. Upload it first.")
    if not any(isinstance(block, File) or block.text.strip() for block in blocks):
        raise Invalid("The message is empty.")
    return blocks


def list_blocks(content: Content) -> list[Block]:
    """The content as blocks, whatever they are."""
    given: Any = [content] if isinstance(content, str) else content
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise Invalid(f"content: must be a text, or a list of texts and files, not {type(content).__name__}.")
    return [_to_block(item) for item in given]


def _to_block(item: Block | StoredFile | str) -> Block:
    if isinstance(item, str):
        return Text(item)
    return item.to_block() if isinstance(item, StoredFile) else item


def parse_content(given: str | list[dict[str, Any]]) -> Content:
    """Decode content from JSON. Raises `Invalid` if it is not a list of blocks."""
    if isinstance(given, str):
        return given
    try:
        return decode_blocks(encode(given))
    except ValueError as error:
        raise Invalid(f"content: {_LONG_QUOTE.sub(_SHORT_QUOTE, str(error))}") from error


MAX_TITLE: Final = 1000


MAX_NAME: Final = 200
"""The longest name of a model, in characters."""


MAX_LABELS: Final = 100


MAX_LABEL: Final = 100


MAX_TOOLS: Final = 128


MAX_DESCRIPTION: Final = 10_000
"""The longest description of a tool, in characters."""


MAX_TOKEN_LABEL: Final = 200
"""The longest label of a token, in characters."""


OpenChunks = Callable[[], AsyncIterator[bytes]]


LONGEST_USER_NAME: Final = 200


def check_user_name(name: object) -> None:
    """Raise `Invalid` for a name that a new user may not have: it stands in headers, commands and lines of a list."""
    if (
        not isinstance(name, str)
        or not name
        or len(name) > LONGEST_USER_NAME
        or not name.isprintable()
        or name != name.strip()
    ):
        raise Invalid(f"A user's name has 1 to {LONGEST_USER_NAME} printable characters, and no spaces around it.")
