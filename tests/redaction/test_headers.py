"""Headers, addresses and errors as they are kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.recording.canaries import ADDRESSES, KESTREL, NAMES, ORDINARY

from indelible.redaction.redact import MAX_LINE_CHARS, redact_headers, redact_line
from indelible.redaction.secrets import REDACTED, KnownSecrets


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
def test_sensitive_headers_are_hidden_in_any_case(change: Any) -> None:
    names = ["authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token", "x-client-secret"]
    headers = {change(name): "kestrel" for name in names}
    assert redact_headers(headers) == dict.fromkeys(headers, REDACTED)


def test_counters_of_headers_stay() -> None:
    headers = {
        "content-type": "application/json; charset=utf-8",
        "retry-after": "20",
        "retry-after-ms": "1200",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-reset-tokens": "6m0s",
        "anthropic-ratelimit-input-tokens-reset": "2026-01-01T00:00:00Z",
        "x-request-id": "req_0123456789abcdef0123456789abcdef",
        "openai-processing-ms": "123",
        "x-empty-token": "",
        "link": '<https://host/v1?page=2>; rel="next"',
    }
    assert redact_headers(headers) == headers


def test_a_known_secret_is_hidden_in_any_header_and_in_its_name() -> None:
    known = KnownSecrets(["kestrel0kestrel"])
    assert redact_headers({"x-echo": "not kestrel0kestrel", "kestrel0kestrel": "x"}, known) == {
        "x-echo": f"not {REDACTED}",
        REDACTED: "x",
    }


def test_the_parameters_of_an_address_without_a_host_are_redacted() -> None:
    assert redact_headers({"location": "/back?code=kestrel&state=1"}) == {"location": "/back?code=[redacted]&state=1"}


def test_user_info_and_sensitive_parameters_are_hidden_in_addresses_and_errors() -> None:
    for address in ADDRESSES:
        for line in (address, f"GET {address} failed", f"Cannot connect to '{address}': refused", f"<{address}>"):
            redacted = redact_line(line)
            assert KESTREL not in redacted, line
            assert redact_line(redacted) == redacted


def test_every_sensitive_parameter_is_hidden() -> None:
    for name in NAMES:
        for written in (
            name.replace(" ", "+"),
            name.replace(" ", "%20"),
            "".join(f"%{ord(each):02x}" for each in name),
        ):
            for address in (f"https://h/?{written}=kestrel", f"https://h/?a=1&{written}=kestrel&b=2#{written}=kestrel"):
                assert KESTREL not in redact_line(f"GET {address} failed")


def test_an_address_keeps_what_is_not_secret() -> None:
    assert redact_line("https://me:kestrel@host:8443/a/b?x=1&key=kestrel&y=a%20b#top") == (
        "https://[redacted]@host:8443/a/b?x=1&key=[redacted]&y=a%20b#top"
    )
    assert redact_line("https://host/?key=&x=1") == "https://host/?key=&x=1"


def test_ordinary_lines_stay_as_they_are() -> None:
    for text in ORDINARY:
        assert redact_line(text) == text


def test_long_lines_are_cut_and_no_half_of_a_secret_is_left() -> None:
    redacted = redact_headers({"x-note": "word " * 2000, "y" * 9000: "x"})
    assert redacted["x-note"].startswith("word word")
    assert redacted["x-note"].endswith("characters are missing here …]")
    assert all(len(line) <= MAX_LINE_CHARS for pair in redacted.items() for line in pair)
    address = redact_line("https://me:kestrel@host/" + "a/" * 5000 + "?key=kestrel")
    assert address.startswith("https://[redacted]@host/a/a/")
    assert KESTREL not in address
    known = KnownSecrets(["kestrel0/KESTREL"])
    for shift in range(64, 96):
        assert KESTREL not in redact_line("x" * (MAX_LINE_CHARS - shift) + "kestrel0/KESTREL" * 9 + "/" * 9000, known)


@given(st.lists(st.integers(1, 3000), min_size=2, max_size=8), st.sampled_from(["a", "é", "密"]))
def test_a_long_line_keeps_whole_words(lengths: list[int], letter: str) -> None:
    words = [letter * length for length in lengths]
    line = " ".join(words)
    shortened = redact_line(line)
    assert len(shortened) <= MAX_LINE_CHARS
    assert redact_line(shortened) == shortened
    if shortened != line:
        kept = shortened[: shortened.rindex("[…")].rstrip()
        assert kept.split() == words[: len(kept.split())]
        assert f"[… {len(line) - len(kept):,} characters are missing here …]" in shortened


@given(st.dictionaries(st.text(), st.text() | st.sampled_from(ADDRESSES), max_size=4))
def test_any_headers_can_be_redacted_once_and_for_all(headers: dict[str, str]) -> None:
    redacted = redact_headers(headers)
    assert redact_headers(redacted) == redacted
