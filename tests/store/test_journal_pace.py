"""How the chats are spread over flushes, by what was measured: no clock, no journal, only the rule."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples

from indelible.store.journal.pace import (
    FIRST_TRIAL,
    LATEST_TRIAL,
    LITTLE,
    LONGEST_SPREAD,
    TOO_MUCH,
    Spread,
    follow_load,
)

INTERVAL_S = 0.02
AT_EASE = Spread()


def follow(spread: Spread, flushes: Iterable[float]) -> list[Spread]:
    """The spread after each of these flushes, which took so many intervals each."""
    history = []
    for intervals in flushes:
        spread = follow_load(spread, duration_s=intervals * INTERVAL_S, late_s=0, interval_s=INTERVAL_S)
        history.append(spread)
    return history


def live(chats_take: float, *, flushes: int, spread: Spread = AT_EASE) -> list[Spread]:
    """The spread after each flush, while one of all the chats would take so many intervals."""
    history = [spread]
    for _ in range(flushes):
        history += follow(history[-1], [chats_take / history[-1].flushes])
    return history


def test_while_flushes_keep_up_all_chats_are_in_each() -> None:
    assert {spread.flushes for spread in live(TOO_MUCH - 0.1, flushes=1000)} == {1}


def test_one_flush_that_is_stuck_changes_nothing() -> None:
    assert [spread.flushes for spread in follow(Spread(load=0.5), [1000.0])] == [1]


def test_a_late_event_loop_counts_like_a_slow_flush() -> None:
    slow = follow_load(AT_EASE, duration_s=0.01 + 0.03, late_s=0, interval_s=INTERVAL_S)
    late = follow_load(AT_EASE, duration_s=0.01, late_s=0.03, interval_s=INTERVAL_S)
    assert slow == late


def test_under_pressure_the_chats_are_spread_step_by_step_and_not_beyond_the_longest() -> None:
    spreads = [spread.flushes for spread in live(100.0, flushes=100)]
    assert sorted(set(spreads)) == list(range(1, LONGEST_SPREAD + 1))
    assert spreads == sorted(spreads)


def test_when_the_pressure_is_gone_the_chats_are_soon_in_each_flush_again() -> None:
    pressed = live(100.0, flushes=100)[-1]
    assert live(0.4, flushes=40, spread=pressed)[-1].flushes == 1


@pytest.mark.parametrize("commit_takes", [0.25, 0.5, 0.75, 0.95])
def test_where_a_commit_takes_long_whatever_is_in_it_the_spread_is_given_up_too(commit_takes: float) -> None:
    pressed = live(100.0, flushes=100)[-1]
    assert pressed.flushes == LONGEST_SPREAD
    assert follow(pressed, [commit_takes] * (LONGEST_SPREAD * FIRST_TRIAL))[-1].flushes == 1


@given(st.floats(TOO_MUCH * 1.05, LONGEST_SPREAD - 0.1))
@settings(max_examples=count_examples(10), deadline=None)
def test_a_spread_that_is_needed_is_given_up_on_trial_ever_more_rarely(chats_take: float) -> None:
    history = [spread.flushes for spread in live(chats_take, flushes=100_000)]
    settled = history[300]
    assert sum(flushes != settled for flushes in history[300:]) <= 0.01 * len(history)
    later = history[-2 * LATEST_TRIAL :]
    assert sum(a != b for a, b in pairwise(later)) <= 2 * 4


@given(st.floats(0, 50), st.integers(1, LONGEST_SPREAD), st.floats(0, 4))
def test_under_a_steady_load_the_spread_settles(chats_take: float, flushes: int, load: float) -> None:
    history = live(chats_take, flushes=400, spread=Spread(flushes, load))
    assert len({spread.flushes for spread in history[200:]}) == 1
    changes = [b.flushes - a.flushes for a, b in pairwise(history) if a.flushes != b.flushes]
    assert len(changes) <= 2 * LONGEST_SPREAD


@pytest.mark.parametrize("wobble", [0.8, 1.2])
def test_a_load_that_wobbles_does_not_let_the_spread_go_back_and_forth(wobble: float) -> None:
    """At the load at which two flushes are needed: giving it up takes a load that is much smaller."""
    spread = live(TOO_MUCH * 1.1, flushes=100)[-1]
    assert spread.flushes == 2
    for number in range(200):
        chats_take = TOO_MUCH * (1.1 if number % 2 else wobble)
        (spread,) = follow(spread, [chats_take / spread.flushes])
        assert spread.flushes == 2
    assert LITTLE <= TOO_MUCH / 2


def test_with_a_longer_interval_a_flush_may_take_longer_and_without_one_as_long_as_with_the_usual() -> None:
    assert follow_load(AT_EASE, duration_s=0.1, late_s=0, interval_s=0.1).load == follow(AT_EASE, [1.0])[0].load
    assert follow_load(AT_EASE, duration_s=0.02, late_s=0, interval_s=0).load == follow(AT_EASE, [1.0])[0].load
