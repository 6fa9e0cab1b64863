"""Ids: short, unique, and sorted by creation time.

An id is a prefix that names its kind and a ULID in lower-case Crockford base 32: 48 bits of milliseconds, then 80
random bits. Sorting ids sorts by time, which keeps database indexes compact and logs readable. One process can make
many in a millisecond, and each is larger than the last, whatever its clock does. Ids are not secret and grant no
access. An id can also be derived, so that a name that a client has chosen leads to it again.

Must stay true (tests/test_ids.py): two new ids are never equal, a later millisecond sorts later, and of one process a
later id does, in whichever thread it was made; a derived id stays the same in later versions.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 26
_TIME_LENGTH: Final = 10
ULID: Final = rf"[{_ALPHABET}]{{{_LENGTH}}}"
"""The part of an id after its prefix, as a regular expression."""

_LONGEST: Final = 200
_lock: Final = threading.Lock()
_last: int = 0


def new_id(prefix: str) -> str:
    """A new id such as `turn_01kc3v…`."""
    global _last  # noqa: PLW0603 - one sequence for the whole process
    now_ms = time.time_ns() // 1_000_000
    with _lock:
        is_new = now_ms > _last >> 80
        number = _last = ((now_ms << 80) | secrets.randbits(80)) if is_new else _last + 1 + secrets.randbits(64)
    return f"{prefix}_{_to_base32(number)}"


def derive_id(prefix: str, digest: bytes) -> str:
    """The id that belongs to these 16 bytes, always the same one. It has the shape of the others, and no time."""
    return f"{prefix}_{_to_base32(int.from_bytes(digest))[::-1]}"


def read_creation_ms(id: str) -> int:
    """When a new id was made, in milliseconds since 1970: it begins with that."""
    number = 0
    for digit in id.rpartition("_")[2][:_TIME_LENGTH]:
        number = number * 32 + _ALPHABET.index(digit)
    return number


def is_id(text: str) -> bool:
    """Whether this can be an id at all. What cannot names nothing, and some of it no database accepts."""
    return text.isascii() and text.isprintable() and len(text) <= _LONGEST


def _to_base32(number: int) -> str:
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range((_LENGTH - 1) * 5, -1, -5))
