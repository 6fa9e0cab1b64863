"""How the chats are spread over flushes, by what was measured: no clock, no journal, only the rule."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.store.journal.pace import LITTLE, LONGEST_SPREAD, TOO_MUCH, Pace, follow_load

INTERVAL_S = 0.02
AT_EASE = Pace()


def follow(pace: Pace, flushes: Iterable[float]) -> list[Pace]:
    """The paces after flushes that took so many intervals each."""
    paces = []
    for intervals in flushes:
        pace = follow_load(pace, took_s=intervals * INTERVAL_S, late_s=0, interval_s=INTERVAL_S)
        paces.append(pace)
    return paces


def live(chats_take: float, *, flushes: int, pace: Pace = AT_EASE) -> list[Pace]:
    """The paces while one flush of all the chats would take so many intervals."""
    paces = [pace]
    for _ in range(flushes):
        paces += follow(paces[-1], [chats_take / paces[-1].spread])
    return paces


def test_while_flushes_keep_up_all_chats_are_in_each() -> None:
    assert {pace.spread for pace in live(TOO_MUCH - 0.1, flushes=1000)} == {1}


def test_one_flush_that_is_stuck_changes_nothing() -> None:
    assert [pace.spread for pace in follow(Pace(load=0.5), [1000.0])] == [1]


def test_a_late_event_loop_counts_like_a_slow_flush() -> None:
    slow = follow_load(Pace(), took_s=0.01 + 0.03, late_s=0, interval_s=INTERVAL_S)
    late = follow_load(Pace(), took_s=0.01, late_s=0.03, interval_s=INTERVAL_S)
    assert slow == late


def test_under_pressure_the_chats_are_spread_step_by_step_and_not_beyond_the_longest() -> None:
    spreads = [pace.spread for pace in live(100.0, flushes=100)]
    assert sorted(set(spreads)) == list(range(1, LONGEST_SPREAD + 1))
    assert spreads == sorted(spreads)


def test_when_the_pressure_is_gone_the_chats_are_soon_in_each_flush_again() -> None:
    pressed = live(100.0, flushes=100)[-1]
    assert live(0.4, flushes=40, pace=pressed)[-1].spread == 1


@given(st.floats(0, 50), st.integers(1, LONGEST_SPREAD), st.floats(0, 4))
def test_under_a_steady_load_the_spread_settles(chats_take: float, spread: int, load: float) -> None:
    paces = live(chats_take, flushes=400, pace=Pace(spread, load))
    assert len({pace.spread for pace in paces[200:]}) == 1
    changes = [b.spread - a.spread for a, b in pairwise(paces) if a.spread != b.spread]
    assert len(changes) <= 2 * LONGEST_SPREAD


@pytest.mark.parametrize("wobble", [0.8, 1.2])
def test_a_load_that_wobbles_does_not_let_the_spread_go_back_and_forth(wobble: float) -> None:
    """At the load at which two flushes are needed: giving it up takes a load that is much smaller."""
    pace = live(TOO_MUCH * 1.1, flushes=100)[-1]
    assert pace.spread == 2
    for number in range(200):
        chats_take = TOO_MUCH * (1.1 if number % 2 else wobble)
        (pace,) = follow(pace, [chats_take / pace.spread])
        assert pace.spread == 2
    assert LITTLE <= TOO_MUCH / 2


def test_with_a_longer_interval_a_flush_may_take_longer_and_without_one_as_long_as_with_the_usual() -> None:
    assert follow_load(Pace(), took_s=0.1, late_s=0, interval_s=0.1).load == follow(Pace(), [1.0])[0].load
    assert follow_load(Pace(), took_s=0.02, late_s=0, interval_s=0).load == follow(Pace(), [1.0])[0].load
