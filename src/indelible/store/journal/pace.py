"""How many running chats a regular flush of the journal writes: all of them, unless that is too much.

A row costs more than the tokens in it: a statement, a wake-up and a send per reader. With a row per chat in each flush
text arrives evenly, and the flush itself sets the pace: the next one begins an interval after it ended. Only if flushes
take longer than that, or the event loop runs late, are the chats spread over several flushes. Each then has fewer and
longer rows, which cost less per token, and commits stay short. A spread of 4 is the most, so that no chat waits long.

The rule is a pure function of what was measured. It judges the mean of the last few flushes, so that one slow fsync
changes nothing, and a spread is given up only if the chats would still fit in fewer flushes with a wide margin, so that
it does not go back and forth. That takes for granted that half of the rows take half of the time. Where a commit takes
long whatever is in it (a slow disk, a replica that has to confirm), it is never so. So a spread that was held for long
is given up on trial, and after a trial that failed the next one is later.

Must stay true (tests/store/test_journal_pace.py): under a steady load the spread settles; without load, or where it
does not help, it is 1 again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LONGEST_SPREAD: Final = 4
TOO_MUCH: Final = 1.0
"""Flushes that take this many intervals on average, their delay included, are spread further."""
LITTLE: Final = 0.5
"""If the chats in fewer flushes would take less than this, they are spread less."""
FIRST_TRIAL: Final = 500
"""After so many flushes with a spread one less is tried."""
LATEST_TRIAL: Final = 16_000
_MOST: Final = 2.0
"""A flush counts as this many intervals at most: a single one that was stuck says little about the next."""
_FLUSHES: Final = 8
_SHORTEST_INTERVAL_S: Final = 0.02


class Spread(NamedTuple):
    """The chats are spread over so many flushes. `load` is how many intervals one of them takes on average.

    It was `held` for so many flushes, and after `trial_after` of them one less is tried; `is_trial`: this is a try.
    """

    flushes: int = 1
    load: float = 0.0
    held: int = 0
    trial_after: int = FIRST_TRIAL
    is_trial: bool = False


def follow_load(spread: Spread, *, duration_s: float, late_s: float, interval_s: float) -> Spread:
    """The spread after a flush that took so long and began so late, because the event loop had other things to do."""
    intervals = (duration_s + late_s) / max(interval_s, _SHORTEST_INTERVAL_S)
    load = spread.load + (min(intervals, _MOST) - spread.load) / _FLUSHES
    flushes, held = spread.flushes, spread.held + 1
    if load > TOO_MUCH and flushes < LONGEST_SPREAD:
        has_failed = spread.is_trial and held < spread.trial_after
        trial_after = min(2 * spread.trial_after, LATEST_TRIAL) if has_failed else FIRST_TRIAL
        return Spread(flushes + 1, load * flushes / (flushes + 1), trial_after=trial_after)
    if flushes > 1 and load * flushes / (flushes - 1) < LITTLE:
        return Spread(flushes - 1, load * flushes / (flushes - 1))
    if flushes > 1 and held >= spread.trial_after and load <= TOO_MUCH:
        trial_after = FIRST_TRIAL if spread.is_trial else spread.trial_after
        return Spread(flushes - 1, load, trial_after=trial_after, is_trial=True)
    return spread._replace(load=load, held=held)
