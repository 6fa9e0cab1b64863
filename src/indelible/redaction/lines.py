"""Lines that may hold something to hide, found quickly in a stream of lines that are nearly alike.

A token of a streamed reply is a few letters in an envelope of hundreds, the same for every token. So of a line that
begins and ends as an earlier one did only the middle is new, and only that, with a few letters on either side, is
searched: what lies within the envelope was searched before. And all that is new of all lines is searched at once
(beginnings.py), which is ten times quicker than searching each line.

Must stay true (tests/redaction/test_lines.py): no line that holds a beginning is missed. One that does not may be taken
for suspicious, if it shares its envelope with one that does: it is then only looked at more closely.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from indelible.redaction.beginnings import Beginnings

_LINES: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_SHORT: Final = 40
"""A line that is not longer has no envelope to speak of."""


def split_lines(text: str, beginnings: Beginnings) -> Iterator[tuple[str, bool]]:
    """Each line with its end, and whether one of these may be in it."""
    lines = _cut(text)
    suspicious = _find_suspicious(_Envelope.open_all(lines, margin=beginnings.longest), beginnings)
    yield from ((line, at in suspicious) for at, line in enumerate(lines))


def _cut(text: str) -> list[str]:
    """The lines with their ends. Those may be carriage returns, which are slower to look for."""
    if "\r" in text:
        return _LINES.findall(text)
    *lines, last = text.split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]


class _Envelope:
    """What lines that follow each other have in common: how the line `source` begins, and how it ends."""

    def __init__(self) -> None:
        self._source = 0
        self._prefix = self._suffix = ""

    @classmethod
    def open_all(cls, lines: Sequence[str], *, margin: int) -> list[tuple[str, int]]:
        """Of each line what is new in it, and the line that has the rest: itself, if it is all new."""
        envelope = cls()
        return [
            (line, at) if len(line) <= _SHORT else envelope._open(line, at, margin) for at, line in enumerate(lines)
        ]

    def _open(self, line: str, at: int, margin: int) -> tuple[str, int]:
        if line == self._prefix:
            return "", self._source
        if not (line.startswith(self._prefix) and line.endswith(self._suffix, len(self._prefix))):
            self._prefix = self._prefix[: _count_same(self._prefix, line)]
            rest = line[len(self._prefix) :]
            same = _count_same(self._suffix[::-1], rest[::-1])
            self._suffix = self._suffix[len(self._suffix) - same :]
        if 2 * (len(self._prefix) + len(self._suffix)) < len(line):
            self._source, self._prefix, self._suffix = at, line, line
            return line, at
        begin = max(0, len(self._prefix) - margin)
        return line[begin : len(line) - len(self._suffix) + margin], self._source


def _count_same(one: str, other: str) -> int:
    """How many letters of their beginnings are the same."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _find_suspicious(opened: Sequence[tuple[str, int]], beginnings: Beginnings) -> Collection[int]:
    """The lines that hold one of these in what is new in them, or in what they share."""
    suspicious = set(beginnings.find_holders([new for new, _ in opened]))
    if suspicious:
        suspicious.update(at for at, (_, source) in enumerate(opened) if source in suspicious)
    return suspicious
