"""Cursors: the position of a reader as text, to resume from.

A cursor is opaque, short, and safe in a URL and in a header. It names its chat, so that a cursor of another chat is
detected. The store checks whether a reader of that chat can have been at its position (`ChatStore.resume`). An
invalid cursor means a full snapshot and never a skipped event, so reading one does not fail.

Must stay true (tests/feed/test_cursor.py): every position can be read back from its cursor; text that we did not
write gives no position.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import Final

import msgspec

from indelible.api.events import BEGINNING, Position

START: Final = "start"
"""As a cursor: everything from the beginning."""

_MARK_BYTES: Final = 6
_LONGEST: Final = 256
_LARGEST: Final = 2**63 - 1


class _Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    mark: bytes
    seq: int
    attempt: str | None
    n: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Cursor).decode


class Cursors:
    """Writes and reads the cursors of one chat."""

    def __init__(self, chat_id: str) -> None:
        self._mark = blake2b(chat_id.encode(), digest_size=_MARK_BYTES).digest()

    def write(self, position: Position) -> str:
        content = _encode(_Cursor(self._mark, position.seq, position.attempt, position.n))
        return urlsafe_b64encode(content).rstrip(b"=").decode()

    def read(self, text: str) -> Position | None:
        """The position of this cursor; None if it is not a cursor of this chat."""
        if text == START:
            return BEGINNING
        if len(text) > _LONGEST or not text.isascii():
            return None
        try:
            cursor = _decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, msgspec.MsgspecError):
            return None
        position = Position(cursor.seq, cursor.attempt, cursor.n)
        is_possible = 0 <= cursor.seq <= _LARGEST and 0 <= cursor.n <= _LARGEST
        return position if is_possible and self.write(position) == text else None
