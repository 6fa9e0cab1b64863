"""What a wire notes about a request, in the metadata of the last block that came with it, so as to say it again.

A note is stored with the message, because nothing is stored for a wire alone (conversations.py). It is the owner's: it
has their instructions in it. Metadata can also be written by a user, on the native routes or in an imported file, so a
note may have any shape: whoever reads one checks it (server/compat/responses_request.py).

Must stay true (tests/service/test_conversations.py, tests/server/test_shared_reading.py): a note is found again in its
message, and no guest gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from indelible.api.shapes import ChatMessage
from indelible.content import Block, Text

REQUEST: Final = "request"
"""The key of the note in a block's metadata."""
MARK: Final = b'"request"'
"""JSON without it has no note."""


def note_in(blocks: Sequence[Block], request: dict[str, Any]) -> list[Block]:
    """The same blocks, with the note in the last of them."""
    *above, last = blocks or [Text()]
    metadata = {**(getattr(last, "metadata", None) or {}), REQUEST: request}
    return [*above, replace(last, metadata=metadata)]


def read_request(message: ChatMessage) -> dict[str, Any]:
    """The note in this message; empty for a message that came in another way."""
    return next((note for block in reversed(message.blocks) if (note := read_note(block))), {})


def read_note(block: Block) -> dict[str, Any]:
    """The note in this block; empty if it has none."""
    found = (getattr(block, "metadata", None) or {}).get(REQUEST)
    return found if isinstance(found, dict) else {}


def strip_request(blocks: list[Block]) -> list[Block]:
    """The same blocks without the note."""
    return [_strip(block) for block in blocks]


def _strip(block: Block) -> Block:
    metadata = getattr(block, "metadata", None)
    if not metadata or REQUEST not in metadata:
        return block
    kept = {name: value for name, value in metadata.items() if name != REQUEST}
    return replace(block, metadata=kept or None)
