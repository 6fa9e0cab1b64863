"""Ranges of a file (RFC 9110 §14): one range of bytes, as browsers and download programs ask for it.

Several ranges at once are allowed to be answered with everything, and are. So is anything that cannot be parsed.
"""

from __future__ import annotations

import re
from typing import Final

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Unsatisfiable(Exception):
    """The range begins after the end of the file."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The first byte and the one after the last; None for all of them. Raises `Unsatisfiable`."""
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        if int(found[2]) == 0:
            raise Unsatisfiable
        return max(0, size - int(found[2])), size
    start = int(found[1])
    stop = min(size, int(found[2]) + 1) if found[2] else size
    if found[2] and int(found[2]) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return start, stop
