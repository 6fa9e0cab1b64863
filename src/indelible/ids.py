"""Ids: short, unique, and sorted by creation time.

An id is a prefix that names its kind and a ULID in lower-case Crockford base 32: 48 bits of milliseconds, then 80
random bits. Sorting ids sorts by time, which keeps database indexes compact and logs readable. Ids are not secret and
grant no access.

Must stay true (tests/test_ids.py): two ids are never equal, and a later millisecond sorts later.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 26
_LONGEST: Final = 200


def new_id(prefix: str) -> str:
    """A new id such as `turn_01kc3v…`."""
    number = ((time.time_ns() // 1_000_000) << 80) | secrets.randbits(80)
    return f"{prefix}_{_to_base32(number)}"


def is_id(text: str) -> bool:
    """Whether this can be an id at all. What cannot names nothing, and some of it no database accepts."""
    return text.isascii() and text.isprintable() and len(text) <= _LONGEST


def _to_base32(number: int) -> str:
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range((_LENGTH - 1) * 5, -1, -5))
