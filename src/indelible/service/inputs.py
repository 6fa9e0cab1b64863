"""What a user gives: content, changes to a chat, results of client tools, and how they are checked.

The library takes strings and blocks, HTTP takes JSON; both end here, so that the same message is valid or invalid
everywhere (tests/app/test_same_script.py). A field of `ChatChanges` that is unset stays as it is, and None removes it:
"no title" and "the title does not change" are two different wishes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from indelible.content import Block, File, Text, decode_blocks, encode
from indelible.errors import Invalid
from indelible.store.database.tables import DebugMode

Content = str | Sequence[Block]
"""What a user says: a text, or text and file blocks."""

IfBusy = Literal["queue", "interrupt", "steer"]
"""What becomes of a running reply: wait for it, stop it, or join it."""


class ChatChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands beside a conversation. What is unset stays as it is; None removes it."""

    title: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    pinned: bool | msgspec.UnsetType = msgspec.UNSET
    archived: bool | msgspec.UnsetType = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    system: str | msgspec.UnsetType | None = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    debug: DebugMode | msgspec.UnsetType | None = msgspec.UNSET


def check_if_busy(if_busy: str) -> None:
    """Raises `Invalid` if this is nothing that can become of a running reply."""
    if if_busy not in get_args(IfBusy):
        raise Invalid(f"if_busy: one of {', '.join(get_args(IfBusy))}, not {if_busy!r}.")


def to_blocks(content: Content) -> list[Block]:
    """The blocks of a user's message. Raises `Invalid` if there is nothing in it, or something users do not say."""
    blocks: list[Block] = [Text(content)] if isinstance(content, str) else list(content)
    for block in blocks:
        if not isinstance(block, Text | File):
            raise Invalid(f"content: a user's message holds text and files only, not {type(block).__name__}.")
    if not any(isinstance(block, File) or block.text.strip() for block in blocks):
        raise Invalid("The message is empty.")
    return blocks


def parse_content(given: str | list[dict[str, Any]]) -> Content:
    """Content that came as JSON. Raises `Invalid` if it is not blocks."""
    if isinstance(given, str):
        return given
    try:
        return decode_blocks(encode(given))
    except ValueError as error:
        raise Invalid(f"content: {error}") from error
