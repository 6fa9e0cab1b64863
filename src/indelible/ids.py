"""Ids: short, unique, and sorted by creation time.

An id is a prefix that names its kind and a ULID in lower-case Crockford base 32: 48 bits of milliseconds, then 80
random bits. Sorting ids sorts by time, which keeps database indexes compact and logs readable. One process can make
many in a millisecond, and each is larger than the last, whatever its clock does. Ids are not secret and grant no
access.

Must stay true (tests/test_ids.py): two ids are never equal, a later millisecond sorts later, and of one process a later
id does, in whichever thread it was made.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Final

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 26
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


def is_id(text: str) -> bool:
    """Whether this can be an id at all. What cannot names nothing, and some of it no database accepts."""
    return text.isascii() and text.isprintable() and len(text) <= _LONGEST


def _to_base32(number: int) -> str:
    return "".join(ALPHABET[(number >> shift) & 31] for shift in range((_LENGTH - 1) * 5, -1, -5))
