"""The retry policy of rule 2.1, without waiting: randomness, time and failure are arguments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.errors import RETRYABLE, FailureKind, ModelFailed
from indelible.models.retry import RetryEvent, RetryPolicy, announce_retry

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ALMOST_ONE = 1 - 2**-53
AT_ONCE = {"chain_broken", "context_overflow"}

kinds = st.sampled_from(get_args(FailureKind))
chances = st.floats(0, 1, exclude_max=True)
waits = st.none() | st.floats(0, 1e6)


def fail(kind: FailureKind = "overloaded", retry_after_s: float | None = None) -> ModelFailed:
    return ModelFailed("no", kind=kind, retry_after_s=retry_after_s)


def test_the_longest_wait_doubles_from_one_second_to_a_minute() -> None:
    longest = [RetryPolicy().delay_s(failed, fail(), ALMOST_ONE) for failed in range(1, 10)]
    assert longest == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])


def test_jitter_is_full() -> None:
    assert RetryPolicy().delay_s(4, fail(), 0.0) == 0.0
    assert RetryPolicy().delay_s(4, fail(), 0.5) == 4.0


def test_the_longest_waits_are_jittered_by_a_third_so_that_patience_lasts() -> None:
    assert [RetryPolicy().delay_s(9, fail(), chance) for chance in (0.0, 0.5)] == [40.0, 50.0]


@given(failed=st.integers(1, 10**9), kind=kinds, retry_after_s=waits, chance=chances)
def test_a_wait_stays_in_its_bounds(failed: int, kind: FailureKind, retry_after_s: float | None, chance: float) -> None:
    delay_s = RetryPolicy().delay_s(failed, fail(kind, retry_after_s), chance)
    if kind in AT_ONCE and failed <= 3:
        assert delay_s == 0
        return
    asked_s = min(retry_after_s or 0, 300)
    assert asked_s <= delay_s <= max(asked_s, min(2 ** min(failed - 1, 10), 60))


def test_the_providers_wish_is_a_floor_and_no_ceiling() -> None:
    assert RetryPolicy().delay_s(1, fail(retry_after_s=20), ALMOST_ONE) == 20
    assert RetryPolicy().delay_s(7, fail(retry_after_s=20), 0.5) == 50


def test_the_providers_wish_is_capped_at_five_minutes() -> None:
    assert RetryPolicy().delay_s(1, fail(retry_after_s=86_400), 0.0) == 300


@given(failed=st.integers(1, 40), elapsed_s=st.floats(0, 2000), kind=kinds, retry_after_s=waits, chance=chances)
def test_no_attempt_is_started_beyond_the_limits(
    failed: int, elapsed_s: float, kind: FailureKind, retry_after_s: float | None, chance: float
) -> None:
    policy = RetryPolicy()
    failure = fail(kind, retry_after_s)
    delay_s = policy.decide_retry(failed_attempts=failed, elapsed_s=elapsed_s, failure=failure, chance=chance)
    if delay_s is None:
        would_start_s = elapsed_s + policy.delay_s(failed, failure, chance)
        assert not RETRYABLE[kind] or failed >= 25 or would_start_s > 900
    else:
        assert RETRYABLE[kind]
        assert failed < 25
        assert elapsed_s + delay_s <= 900


def test_there_are_25_attempts_and_no_more() -> None:
    made = 1
    while RetryPolicy().decide_retry(failed_attempts=made, elapsed_s=0, failure=fail(), chance=0.5) is not None:
        made += 1
    assert made == 25


def test_a_wait_that_would_end_after_a_quarter_of_an_hour_is_not_begun() -> None:
    asked = fail(retry_after_s=200)
    assert RetryPolicy().decide_retry(failed_attempts=1, elapsed_s=700, failure=asked, chance=0.0) == 200
    assert RetryPolicy().decide_retry(failed_attempts=1, elapsed_s=701, failure=asked, chance=0.0) is None


def test_a_chain_is_mended_at_once_whatever_the_provider_asks() -> None:
    broken = fail("chain_broken", retry_after_s=60)
    assert RetryPolicy().decide_retry(failed_attempts=1, elapsed_s=0, failure=broken, chance=0.9) == 0


def test_the_failures_own_word_decides_not_its_kind() -> None:
    stubborn = ModelFailed("no", kind="server_error", retryable=False)
    hopeful = ModelFailed("no", kind="config", retryable=True)
    assert RetryPolicy().decide_retry(failed_attempts=1, elapsed_s=0, failure=stubborn, chance=0.5) is None
    assert RetryPolicy().decide_retry(failed_attempts=1, elapsed_s=0, failure=hopeful, chance=0.5) == 0.5


def test_a_policy_of_one_attempt_never_retries() -> None:
    policy = RetryPolicy(max_attempts=1)
    assert policy.decide_retry(failed_attempts=1, elapsed_s=0, failure=fail(), chance=0.0) is None


def test_the_event_says_which_attempt_failed_and_when_the_next_comes() -> None:
    failure = ModelFailed("Anthropic is overloaded.", kind="overloaded", status=529, provider="anthropic")
    event = announce_retry(failure, attempt=2, delay_s=1.25, now=NOW)
    assert event == RetryEvent(
        attempt=2,
        delay_ms=1250,
        kind="overloaded",
        provider="anthropic",
        status=529,
        message="Anthropic is overloaded.",
        retrying_at=NOW + timedelta(seconds=1.25),
    )
    assert msgspec.json.decode(msgspec.json.encode(event), type=RetryEvent) == event
