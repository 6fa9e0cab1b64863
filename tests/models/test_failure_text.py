"""What of a foreign text may be shown: no key, no address, no tag, not long, and found at no great cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.models.failures.classify import classify, classify_response
from indelible.models.failures.facts import scrub_detail

SECRETS = {
    "sk-abc123": "abc123",
    "sk-ant-api03-AbCdEf_123-xyz": "AbCdEf",
    "sk-proj-Ab12Cd34": "Ab12Cd34",
    "gsk_AbCdEf123456": "AbCdEf",
    "xai-AbCdEf123456": "AbCdEf",
    "Bearer AbCdEf123456": "AbCdEf",
    "bearer abc.def": "abc",
    "AIzaSyA-1234567890abcdefghij": "AIza",
    "AKIAIOSFODNN7EXAMPLE": "AKIA",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.AbCd-_ef": "eyJ",
    "api_key=Hunter2": "Hunter2",
    "api-key: Hunter2": "Hunter2",
    "'api_key': 'Hunter2'": "Hunter2",
    "x-api-key=Hunter2": "Hunter2",
    "password=Hunter2": "Hunter2",
    "client_secret: Hunter2": "Hunter2",
    "Authorization: Basic SHVudGVyMg==": "SHVudGVyMg",
    "?key=Hunter2&x=1": "Hunter2",
    "token=Hunter2": "Hunter2",
    "0123456789abcdef0123456789abcdef": "0123456789abcdef",
}


@pytest.mark.parametrize(("expected", "secret"), SECRETS.items(), ids=SECRETS)
def test_no_key_is_ever_shown(expected: str, secret: str) -> None:
    assert secret in expected
    detail = scrub_detail(f"The parameter was bad ({expected}) and ends here")
    assert detail is not None
    assert secret not in detail
    assert detail.startswith("The parameter was bad")
    assert detail.endswith("ends here")


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096 is above the limit",
        "risk-free task-12 in desk-3",
        "request req_011CSHoEeqs5C35K2UUqR7Fy",
        "210000 tokens > 200000 maximum",
        "tokens 5 < 6 but 7 > 3",
    ],
)
def test_ordinary_words_are_left_alone(text: str) -> None:
    assert scrub_detail(text) == text


def test_addresses_are_taken_out() -> None:
    text = "See https://user:pw@example.com/x?key=1 or www.example.com/a, or postgres://u:p@db/x"
    assert scrub_detail(text) == "See [link] or [link] or [link]"


@given(st.text(alphabet=st.sampled_from("<>/ab:w.=\n\x00\x1b sk-eyJ'\"&?é\ud800"), max_size=1500))
def test_a_detail_is_short_printable_and_free_of_tags_and_addresses(text: str) -> None:
    detail = scrub_detail(text)
    if detail is not None:
        assert 0 < len(detail) <= 500
        assert detail.isprintable()
        assert not re.search(r"<[a-zA-Z!/?][^<>]*>", detail)
        assert not re.search(r"\b[a-z]{2,10}://", detail)


HUGE = {
    "tags": "<div>" * 1_000_000,
    "opened tags": "<" * 5_000_000,
    "one word": "a" * 5_000_000,
    "starts of tokens": "eyJ" * 1_000_000,
    "starts of keys": "sk-" * 1_000_000,
    "starts of phrases": "stream model flagged " * 300_000,
    "open lists": "[" * 200_000,
    "open objects": '{"error":' * 20_000,
    "a page": "<html>" + "x" * 5_000_000,
}


@pytest.mark.parametrize("body", HUGE.values(), ids=HUGE)
def test_a_huge_or_hostile_body_gives_a_short_detail(body: str) -> None:
    """bench/growth.py measures that it is cheap."""
    failure = classify_response(provider="openai", status=500, body=body.encode())
    again = classify(RuntimeError(body), provider="openai")
    assert failure.kind == "server_error"
    assert len(failure.detail or "") <= 500
    assert len(again.detail or "") <= 500


def test_a_key_that_the_cut_goes_through_is_not_shown_in_part() -> None:
    text = "<p>" * 2_660 + " padding " + "0123456789abcdef" * 20
    assert scrub_detail(text) == "padding"


def test_a_key_cannot_hide_behind_characters_that_are_not_seen() -> None:
    assert scrub_detail("given: s\u200bk-\x00abc\x1bdef") == "given: [removed]"
