"""Server-sent events as bytes.

Every event is one `data` line, because JSON contains no raw line break. Half of a character (a lone surrogate) is
written as JSON's escape, as a real provider sends it when it splits a text inside a pair.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode


def encode_json(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def write_event(data: Any, name: str | None = None) -> bytes:
    """One event with this JSON as its data."""
    if name is None:
        return b"data: %b\n\n" % encode_json(data)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode_json(data))
