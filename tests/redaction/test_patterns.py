"""What counts as a secret: no canary is left of any form of one, and ordinary texts stay as they are."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from urllib.parse import quote

import pytest
from tests.recording.canaries import CANARY, LOOKS, NAMES, ORDINARY, ORDINARY_NAMES

from indelible.redaction.names import is_secret_header, is_secret_name, is_secret_parameter
from indelible.redaction.patterns import BEGINNINGS, REDACTED, redact_text, redact_url

# --- names -------------------------------------------------------------------------------


def test_a_sensitive_name_is_known_in_every_style() -> None:
    for name in NAMES:
        assert is_secret_name(name)
        assert is_secret_parameter(name)
        assert is_secret_parameter(quote(name, safe=""))
        assert is_secret_parameter("".join(f"%25{ord(letter):02X}" for letter in name))


def test_a_sensitive_name_is_never_denied_by_the_search_for_beginnings() -> None:
    for name in NAMES:
        assert BEGINNINGS.are_in(name)


def test_counters_ids_and_other_names_are_not_sensitive() -> None:
    for name in ORDINARY_NAMES:
        assert not is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["key", "sig", "signature", "code", "auth", "session", "sid", "x-goog-signature", "pw"]
)
def test_a_query_has_more_sensitive_names_than_a_document(name: str) -> None:
    assert is_secret_parameter(name)
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", ["q", "page", "max_tokens", "country_code", "keyword", "lang", "author", "v", ""])
def test_ordinary_parameters_are_not_sensitive(name: str) -> None:
    assert not is_secret_parameter(name)


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "Proxy-Authorization", "COOKIE", "Set-Cookie", "x-api-key", "X-Goog-Api-Key", "api-key"),
        *("Openai-Api-Key", "x-auth-token", "X-Amz-Security-Token", "x_secret", "X-Hub-Signature-256", "session-id"),
        *("x-ratelimit-api-key", "x-ratelimit-secret", "X-CSRFToken", "anthropic-api-key", "x-password", "credentials"),
        *("x-jwt", "x-pwd", "x-passwd", "x-pass-wd", "x-bearer", "x-csrf", "X-XSRF-Value", "x-ratelimit-token"),
    ],
)
def test_a_sensitive_header_is_known_in_every_case(name: str) -> None:
    assert is_secret_header(name)
    assert is_secret_header(name.lower())
    assert is_secret_header(name.upper())


@pytest.mark.parametrize(
    "name",
    [
        *("content-type", "retry-after", "x-request-id", "Date", "server", "openai-processing-ms", "keep-alive", ""),
        *("x-ratelimit-remaining-tokens", "X-RateLimit-Limit-Tokens", "anthropic-ratelimit-input-tokens-reset"),
        *("x-rate-limit-tokens-remaining", "anthropic-version", "x-envoy-upstream-service-time"),
        *("anthropic-ratelimit-tokens-limit", "x-ratelimit-account-tokens", "x-ratelimit-token-limit"),
        *("x-author", "Authority", "co-authors"),
    ],
)
def test_rate_limits_and_other_headers_are_not_sensitive(name: str) -> None:
    assert not is_secret_header(name)


# --- texts -------------------------------------------------------------------------------

AROUND = [("", ""), ("see ", " here"), ('"', '"'), ("'", "',"), ("(", ")."), ("密钥", "。"), ("**", "**"), ("=", "\n")]


def test_what_looks_like_a_secret_is_hidden_wherever_it_stands() -> None:
    for secret in LOOKS:
        for before, after in AROUND:
            hidden = redact_text(before + secret + after)
            assert CANARY not in hidden.lower(), before + secret + after
            assert REDACTED in hidden
            assert hidden.startswith(before)
            assert redact_text(hidden) == hidden


def test_an_escape_sequence_before_a_secret_is_no_part_of_its_first_word() -> None:
    for secret in LOOKS:
        for before in ("\\n", "\\t", "\\r\\n", "\\u0022", "%20", "%3D", "\\\\n"):
            assert CANARY not in redact_text(before + secret).lower(), before


def test_secrets_that_touch_each_other_are_all_hidden() -> None:
    for secret in LOOKS:
        for other in LOOKS:
            for between in (" ", ",", "\n", "|", '"'):
                both = secret + between + other
                hidden = redact_text(both)
                assert CANARY not in hidden.lower(), both
                assert redact_text(hidden) == hidden, both


def test_a_value_that_is_assigned_to_a_sensitive_name_is_hidden() -> None:
    for name in [*(name for name in NAMES if " " not in name), "API key", "access token", "Secret Key"]:
        for text in (f"{name}=canary", f"{name} = 'canary canary'", f'"{name}": "canary"', f"{name}: canary0canary"):
            assert CANARY not in redact_text(text), text


def test_a_sensitive_name_may_be_long() -> None:
    for count in (1, 31, 32, 33, 64, 100, 5000):
        assert CANARY not in redact_text(f"set {'x_' * count}password=canary here"), count
        assert CANARY not in redact_text(f"set password{'_x' * count}=canary here"), count


def test_ordinary_texts_stay_as_they_are() -> None:
    for text in ORDINARY:
        assert redact_text(text) == text


def test_what_is_assigned_to_an_ordinary_name_stays() -> None:
    for name in ORDINARY_NAMES:
        for text in (f"{name}=12345678", f'"{name}": "some words 42"', f"{name}: abcdef123456"):
            assert redact_text(text) == text


def test_what_was_hidden_leaves_the_rest_readable() -> None:
    assert redact_text("Incorrect API key provided: sk-canarycanary. See https://host/account/keys.") == (
        "Incorrect API key provided: [redacted]. See https://host/account/keys."
    )
    assert redact_text("curl -H 'Authorization: Bearer canarycanary0' -d '{}'") == (
        "curl -H 'Authorization: [redacted]' -d '{}'"
    )
    assert redact_text('{"password": "canary", "user": "me"}') == '{"password": "[redacted]", "user": "me"}'
    assert redact_text("Server=h;Password=canary;Port=1") == "Server=h;Password=[redacted];Port=1"


def test_a_blob_is_not_taken_apart_because_of_a_few_letters_in_it() -> None:
    blob = "gAAAAABo" + "Zm9vYmFy_xYz" * 20 + "-sk-Zm9vYmFyZm9v_pk_0m9vYmFyZm9v-ghp_0123456789abcdef01"
    assert redact_text(blob) == blob


def test_a_line_of_signs_is_no_blob() -> None:
    for signs in ("-" * 64, "_" * 80, "-_" * 40, "- " * 40, "a---" * 20):
        for secret in ("sk-canarycanary", "ghp_canarycanarycanary", "AKIACANARYCANARY0"):
            assert CANARY not in redact_text(f"{signs}-{secret}").lower()


def test_a_token_behind_a_sign_is_hidden_as_a_whole() -> None:
    for before in ("-", "_", "session-", "a_b_", "x" * 64 + "_"):
        for token in ("eyJcanarycanary.canarycanary.canary_canary", "eyJcanarycanary.eyJcanarycanary.canary"):
            assert redact_text(f"{before}{token} more") == f"{before}{REDACTED} more"


# --- addresses ---------------------------------------------------------------------------


def test_no_canary_is_left_in_an_address() -> None:
    for secret in [look for look in LOOKS if "://" in look or "?" in look]:
        assert CANARY not in redact_url(secret)
        assert redact_url(redact_url(secret)) == redact_url(secret)


def test_a_secret_in_an_address_is_hidden_though_it_is_encoded() -> None:
    for secret in [look for look in LOOKS if "%25" not in look]:
        once = quote(secret, safe="")
        every_letter = "".join(f"%{byte:02x}" for byte in secret.encode())
        for encoded in (once, quote(once, safe=""), every_letter, quote(every_letter, safe="")):
            for address in (f"https://h/{encoded}/x", f"https://h/?q={encoded}&b=1", f"https://h/#{encoded}"):
                assert REDACTED in redact_url(address), address
                assert CANARY not in redact_url(address), address
                assert CANARY not in redact_text(f"failed: {address}"), address


def test_sensitive_parameters_are_hidden_in_queries_and_fragments() -> None:
    for name in NAMES:
        written = quote(name, safe="")
        for address in (
            f"https://h/?{written}=canary",
            f"https://h/?a=1&{written}=canary&b=2",
            f"https://h/?a=1;{written}=canary;canary",
            f"https://h/#{written}=canary",
            f"https://h/?{written}[]=canary?canary",
        ):
            assert CANARY not in redact_url(address)
            assert CANARY not in redact_text(f"GET {address} failed")


def test_an_address_keeps_what_is_not_secret() -> None:
    assert redact_url("https://me:canary@host:8443/a/b?x=1&key=canary&y=a%20b#top") == (
        "https://[redacted]@host:8443/a/b?x=1&key=[redacted]&y=a%20b#top"
    )
    assert redact_url("https://host/?key=&x=1") == "https://host/?key=&x=1"


def test_ordinary_addresses_stay_as_they_are() -> None:
    for url in [text for text in ORDINARY if text.startswith("https://")]:
        assert redact_url(url) == url


# --- the search for beginnings -----------------------------------------------------------


def test_no_secret_is_denied_by_the_search_for_beginnings() -> None:
    for secret in LOOKS:
        assert BEGINNINGS.are_in(secret)


# --- cost --------------------------------------------------------------------------------

LENGTH = 80_000
HOSTILE = {
    "schemes": "bearer ",
    "blanks": "token" + " " * 50,
    "assignments": "token=",
    "told": "token:",
    "dotted": "token=x.",
    "is": "password is ",
    "addresses": "://",
    "user info": "://a:b",
    "users": "://u:b@",
    "queries": "?a=",
    "questions": "?",
    "semicolons": ";a",
    "percent": "%25",
    "plus": "https://h/a+",
    "tokens": "eyJ",
    "escaped tokens": "\\neyJ",
    "parts": "eyJaaaaaaaaaa.",
    "keys": "sk-",
    "key words": "api key ",
    "begins": "-----BEGIN PRIVATE KEY-----",
    "half begins": "-----BEGIN PRIVATE ",
    "ends": "-----BEGIN PRIVATE KEY-----\n-----END ",
    "quotes": 'password="',
    "back-slashes": "\\",
    "escaped quotes": 'token\\": \\"',
    "letters": "a",
    "dashes": "-",
    "upper and lower": "basic aAaaaaaaaaaaaa",
    "cookies": "cookie: a",
    "calls": "token=abc(",
    "slashes": "?/",
    "open brackets": "cookie:{\n",
    "brackets": "cookie:[]{",
    "tokens behind dashes": "-eyJ",
    "keys behind dashes": "-sk-aaaaaaaa.",
    "prose": "The key of a secret is a token, see https://example.com/a?b=c. ",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_four_times_the_text_costs_four_times_the_time(name: str) -> None:
    def measure_cpu_s(length: int) -> float:
        text = "token " + HOSTILE[name] * (length // len(HOSTILE[name]))
        started = time.process_time()
        redact_text(text)
        redact_url(text)
        redact_url("https://h/" + text.replace(" ", ""))
        return time.process_time() - started

    quarter_cpu_s = min(measure_cpu_s(LENGTH // 4) for _ in range(2))
    assert any(measure_cpu_s(LENGTH) < 8 * quarter_cpu_s for _ in range(5))


@pytest.mark.parametrize("piece", ["://", "?a=", "password: ", "%25"])
def test_other_threads_have_their_turn_while_a_hostile_text_is_redacted(piece: str) -> None:
    """A call into the engine of expressions lets nobody else run, so there must be many short ones."""
    text = "https://h/?q=" + piece * (60_000 // len(piece)) + "@"
    times_s: list[float] = []  # of this thread alone, whatever else the machine does

    def note_call(_frame: object, _event: str, _of: object) -> None:
        times_s.append(time.thread_time())

    sys.setprofile(note_call)
    redact_text(text)
    sys.setprofile(None)
    assert max(after - before for before, after in pairwise(times_s)) < (times_s[-1] - times_s[0]) / 8
