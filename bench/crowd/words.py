"""Whether a reader gets every word of a reply once and in order, over any number of reconnects.

The provider numbers its words. A part brings the next ones; a snapshot has all of them so far, so only its last counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_WORD: Final = re.compile(rb"word(\d+)")


class WordCheck:
    """Reads the events of one chat. `errors` counts places where a word is missing or comes again."""

    def __init__(self) -> None:
        self.errors = 0
        self.last: int | None = None

    def read(self, events: Sequence[bytes]) -> int:
        """How many words came."""
        count = 0
        for event in events:
            if b"event: part" in event:
                for found in _WORD.findall(event):
                    number = int(found)
                    if self.last is not None and number != self.last + 1:
                        self.errors += 1
                    self.last = number
                    count += 1
            elif b"event: snapshot" in event and (known := _WORD.findall(event)):
                self.last = int(known[-1])
                count += 1
        return count
