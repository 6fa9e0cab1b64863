"""Where something may begin: many short strings, looked for at once and in pieces.

Looking for fifty strings one after the other takes milliseconds in a long text, and an expression of fifty branches
takes longer still. What is quick is to look for one letter. So each string is filed under an *anchor*, a part of it
that few texts are full of (`k` for `sk-`, `key` and `token`), and only where an anchor stands the strings that are
filed under it are compared. A dozen anchors cost as much as a dozen short searches.

The text is searched in windows, each a call that holds the interpreter for some microseconds only: other threads go on,
however long the text is. Windows overlap by as much as the longest string, so none is cut.

Must stay true (tests/redaction/test_beginnings.py): every place at which one of the strings stands is found, whatever
stands around it; if one string ends another and both stand there, the longer one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

WINDOW_LETTERS: Final = 16 * 1024


class Beginnings:
    """Strings in lower case, found in texts of any case. They are given by their anchors."""

    def __init__(self, by_anchor: Mapping[str, Sequence[str]]) -> None:
        self.by_anchor: Final = by_anchor
        self.longest: Final = max(len(string) for strings in by_anchor.values() for string in strings)
        self._searches = [_compile(anchor, strings) for anchor, strings in by_anchor.items()]

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Where each one stands that is in the text, and which it is; not in order."""
        for start in range(0, len(text), WINDOW_LETTERS):
            window = _lower(text[start : start + WINDOW_LETTERS + self.longest - 1])
            for pattern, by_ending in self._searches:
                for found in pattern.finditer(window):
                    end = found.end()
                    strings = by_ending[found[0]]
                    string = strings[0]
                    if len(strings) > 1:
                        string = next(string for string in strings if window.endswith(string, 0, end))
                    if end - len(string) < WINDOW_LETTERS:
                        yield start + end - len(string), string

    def are_in(self, text: str) -> bool:
        """Whether any of them is in the text."""
        return next(self.find(text), None) is not None

    def find_holders(self, texts: Sequence[str]) -> Collection[int]:
        """Which of these texts hold one, by their numbers. All are searched at once, which is quicker than each."""
        places = [place for place, _ in self.find("\n".join(texts))]
        if not places:
            return ()
        ends = list(accumulate(len(text) + 1 for text in texts))
        return {bisect_right(ends, place) for place in places}


def _compile(anchor: str, strings: Sequence[str]) -> tuple[re.Pattern[str], Mapping[str, Sequence[str]]]:
    """An expression that begins with the anchor, which is looked for quickly; and which strings end as it matches."""
    by_ending: dict[str, list[str]] = {}
    for string in sorted(strings, key=len, reverse=True):
        by_ending.setdefault(string[string.rindex(anchor) :], []).append(string)
    branches = (
        f"{re.escape(ending.removeprefix(anchor))}(?:{'|'.join(f'(?<={re.escape(string)})' for string in those)})"
        for ending, those in by_ending.items()
    )
    return re.compile(f"{re.escape(anchor)}(?:{'|'.join(branches)})"), by_ending


def _lower(text: str) -> str:
    """In lower case, letter by letter: the only one that becomes two is none that anybody looks for."""
    return text.replace("\u0130", "\0").lower()
