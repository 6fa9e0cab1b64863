"""How many running chats a regular flush of the journal writes: all of them, unless that is too much.

A row costs more than the tokens in it: a statement, a wake-up and a send per reader. With a row per chat in each flush
text arrives evenly, and the flush itself sets the pace: the next one begins an interval after it ended. Only if flushes
take longer than that, or the event loop runs late, are the chats spread over several flushes. Each then has fewer and
longer rows, which cost less per token, and commits stay short. A spread of 4 is the most, so that no chat waits long.

The rule is a pure function of what was measured. It judges the mean of the last few flushes, so that one slow fsync
changes nothing, and a spread is given up only if the chats would still fit in fewer flushes with a wide margin, so that
it does not go back and forth.

Must stay true (tests/store/test_journal_pace.py): under a steady load the spread settles; without load it is 1 again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LONGEST_SPREAD: Final = 4
TOO_MUCH: Final = 1.0
"""Flushes that take this many intervals on average, their delay included, are spread further."""
LITTLE: Final = 0.5
"""If the chats in fewer flushes would take less than this, they are spread less."""
_MOST: Final = 2.0
"""A flush counts as this many intervals at most: a single one that was stuck says little about the next."""
_FLUSHES: Final = 8
_SHORTEST_INTERVAL_S: Final = 0.02


class Spread(NamedTuple):
    """The chats are spread over so many flushes. `load` is how many intervals one of them takes on average."""

    flushes: int = 1
    load: float = 0.0


def follow_load(spread: Spread, *, duration_s: float, late_s: float, interval_s: float) -> Spread:
    """The spread after a flush that took so long and began so late, because the event loop had other things to do."""
    intervals = (duration_s + late_s) / max(interval_s, _SHORTEST_INTERVAL_S)
    load = spread.load + (min(intervals, _MOST) - spread.load) / _FLUSHES
    if load > TOO_MUCH and spread.flushes < LONGEST_SPREAD:
        return _change(spread.flushes + 1, spread.flushes, load)
    if spread.flushes > 1 and _change(spread.flushes - 1, spread.flushes, load).load < LITTLE:
        return _change(spread.flushes - 1, spread.flushes, load)
    return Spread(spread.flushes, load)


def _change(new: int, old: int, load: float) -> Spread:
    """What a flush will probably take when it has more or fewer of the chats."""
    return Spread(new, load * old / new)
