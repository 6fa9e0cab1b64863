"""rule 2.2 row by row, on responses and stream events that providers really send.

Each line of provider_errors.jsonl is one response: its shape is real, its contents are invented. A body that is a
string is sent unchanged (a proxy's page), any other as JSON; `status` is null for an error event inside a stream that
began with 200. A new provider error is a new line there (docs/where-things-go.md).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.errors import RETRYABLE, FailureKind
from indelible.models.failures.classify import classify_response

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("provider_errors.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_each_row_of_the_table_is_classified(row: dict[str, Any]) -> None:
    body = row["body"]
    sent = body if isinstance(body, str | None) else json.dumps(body).encode()
    for form in (body, sent):
        failure = classify_response(provider=row["provider"], status=row["status"], body=form)
        assert failure.kind == row["kind"]
        assert failure.retryable is RETRYABLE[failure.kind]
        assert failure.provider == row["provider"]
        assert row["status"] in {None, failure.status}


def test_there_is_a_row_for_every_kind_that_a_provider_can_report() -> None:
    found_by_us = {"stream_silence_timeout", "missing_key"}
    assert {row["kind"] for row in ROWS} == set(get_args(FailureKind)) - found_by_us


def test_a_numeric_code_in_an_event_is_the_status() -> None:
    failure = classify_response(
        provider="openrouter", status=None, body={"error": {"code": 502, "message": "Upstream"}}
    )
    assert (failure.kind, failure.status) == ("timeout", 502)


def test_a_success_status_around_an_error_says_nothing() -> None:
    failure = classify_response(provider="openrouter", status=200, body={"error": {"code": 429, "message": "Slow"}})
    assert (failure.kind, failure.status) == ("rate_limit", 429)


WORDS = st.sampled_from(
    [
        "timeout",
        "overloaded_error",
        "rate_limit_exceeded",
        "connection reset",
        "status 503",
        "http 529",
        "server_error",
        "api_error",
        "please retry",
        "cancelled",
        "internal server error",
        "too many requests",
        "previous response",
    ]
)


@given(
    status=st.integers(400, 499).filter(lambda status: status not in {408, 409, 429}),
    code=st.none() | WORDS,
    type_=st.none() | WORDS,
    words=st.lists(WORDS).map(" ".join),
)
def test_no_code_or_text_makes_a_refused_request_retryable(
    status: int, code: str | None, type_: str | None, words: str
) -> None:
    body = {"error": {"message": words, "type": type_, "code": code}}
    failure = classify_response(provider="openai", status=status, body=body)
    assert not failure.retryable
    assert failure.status == status


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 520, 529, 599])
def test_passing_statuses_are_retryable_by_themselves(status: int) -> None:
    assert classify_response(provider="openai", status=status).retryable


def test_a_redirect_is_a_wrong_address() -> None:
    assert classify_response(provider="openai", status=308).kind == "config"


# --- the provider's wishes ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "wish", "retryable"),
    [(500, "false", False), (429, "FALSE", False), (400, "true", True), (500, "maybe", True), (400, "", False)],
)
def test_x_should_retry_is_honoured_and_leaves_the_kind(status: int, wish: str, *, retryable: bool) -> None:
    plain = classify_response(provider="openai", status=status)
    wished = classify_response(provider="openai", status=status, headers={"X-Should-Retry": wish})
    assert wished.retryable is retryable
    assert wished.kind == plain.kind


@pytest.mark.parametrize("wish", ["true", "false"])
def test_x_should_retry_does_not_speak_of_failures_that_another_request_cures(wish: str) -> None:
    headers = {"x-should-retry": wish}
    chain = classify_response(
        provider="openai", status=404, headers=headers, body={"error": {"code": "previous_response_not_found"}}
    )
    overflow = classify_response(provider="anthropic", status=413, headers=headers)
    assert (chain.kind, chain.retryable) == ("chain_broken", True)
    assert (overflow.kind, overflow.retryable) == ("context_overflow", False)


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        ({"retry-after": "20"}, 20.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "20"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "20"}, 20.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT", "Date": "Sun, 01 Mar 2026 12:00:10 GMT"}, 20.0),
        ({"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT", "date": "yesterday"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 11:00:00 GMT"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "in a while"}, None),
        ({"retry-after": "Fri, 99 Foo 99999 00:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_parsed_and_nonsense_is_ignored(headers: dict[str, str], retry_after_s: float | None) -> None:
    failure = classify_response(provider="openai", status=429, headers=headers, now=NOW)
    assert failure.retry_after_s == retry_after_s


def test_a_retry_date_without_anything_to_count_from_is_ignored() -> None:
    headers = {"retry-after": "Sun, 01 Mar 2026 12:00:30 GMT"}
    assert classify_response(provider="openai", status=429, headers=headers).retry_after_s is None


KEYS = st.sampled_from(["error", "message", "code", "type", "status", "metadata", "raw", "detail", "response"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20))
def test_any_json_body_can_be_read(value: Any) -> None:
    failure = classify_response(provider="openai", status=None, body=json.dumps(value))
    assert failure.kind in RETRYABLE
    assert failure.message


@given(st.binary())
def test_any_bytes_can_be_read(body: bytes) -> None:
    failure = classify_response(provider="openai", status=500, body=body)
    assert (failure.kind, failure.status) == ("server_error", 500)
