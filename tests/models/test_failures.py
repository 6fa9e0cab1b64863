"""Any error becomes the right `ModelFailed`: exceptions by their facts, text last; and the messages that users see.

The responses and events of providers are in test_failure_table.py, the scrubbing of details in test_failure_text.py.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.content import StreamError
from indelible.errors import RETRYABLE, FailureKind, Interrupted, ModelFailed
from indelible.models.failures.classify import (
    MESSAGES,
    classify,
    classify_response,
    filtered,
    silence,
    to_error_part,
    truncated,
)


def anthropic(type_: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}


def openai(message: str, *, type_: str | None, code: str | int | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


# --- exceptions --------------------------------------------------------------------------


class FakeResponse:
    """What SDKs and HTTP clients hang on their exceptions."""

    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers


class StatusError(Exception):
    """Shaped like the official SDKs' `APIStatusError`."""

    def __init__(
        self, message: str, *, status_code: int, body: Any = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.body = body
        self.response = FakeResponse(status_code, headers or {})


class APIError(Exception):
    """Shaped like the OpenAI SDK's error for an event inside a stream: codes, no status."""

    def __init__(self, message: str, *, code: str | None, type_: str | None) -> None:
        super().__init__(message)
        self.code = code
        self.type = type_


def make_foreign(name: str, *parents: str) -> Exception:
    """An exception whose class and parents have these names, as a client's would."""
    cls: type[Exception] = Exception
    for each in (*reversed(parents), name):
        cls = type(each, (cls,), {"__module__": "some_client"})
    return cls("something")


def test_an_sdk_error_is_read_by_its_status_body_and_headers() -> None:
    error = StatusError(
        "Error code: 429",
        status_code=429,
        headers={"retry-after": "7"},
        body=openai("You exceeded your current quota.", type_="insufficient_quota", code="insufficient_quota"),
    )
    failure = classify(error, provider="openai")
    assert (failure.kind, failure.status, failure.retry_after_s) == ("usage_limit", 429, 7.0)
    assert failure.detail == "You exceeded your current quota."


def test_an_sdk_error_from_inside_a_200_stream_is_read_by_its_body() -> None:
    error = StatusError("Overloaded", status_code=200, body=anthropic("overloaded_error", "Overloaded"))
    failure = classify(error, provider="anthropic")
    assert (failure.kind, failure.status, failure.retryable) == ("overloaded", None, True)


def test_an_sdk_error_without_a_status_is_read_by_its_code() -> None:
    error = APIError("Your input is too big", code="context_length_exceeded", type_="invalid_request_error")
    assert classify(error, provider="openai").kind == "context_overflow"


def test_a_400_that_says_timeout_is_not_retried() -> None:
    for text in ("timeout must be a positive number", "connection reset while reading the image", "status 503"):
        failure = classify(StatusError(text, status_code=400), provider="openai")
        assert (failure.kind, failure.retryable, failure.status) == ("config", False, 400)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError(),
        EOFError(),
        asyncio.IncompleteReadError(b"{", 10),
        asyncio.CancelledError(),
        Interrupted(),
        ssl.SSLError("decryption failed"),
        ssl.SSLEOFError("EOF occurred in violation of protocol"),
        socket.gaierror(-3, "Temporary failure in name resolution"),
        OSError(101, "Das Netz ist nicht erreichbar"),
        make_foreign("ServerDisconnectedError", "ServerConnectionError", "ClientConnectionError", "ClientError"),
        make_foreign("ClientPayloadError", "ClientError"),
        make_foreign("ReadTimeout", "TimeoutException", "TransportError", "RequestError"),
        make_foreign("APIConnectionError", "APIError"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_connection_is_a_timeout(error: BaseException) -> None:
    failure = classify(error, provider="openai")
    assert (failure.kind, failure.retryable, failure.status) == ("timeout", True, None)


@pytest.mark.parametrize(
    "error",
    [
        ssl.SSLCertVerificationError("certificate verify failed"),
        make_foreign("InvalidURL", "ClientError"),
        make_foreign("UnsupportedProtocol", "TransportError"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_connection_that_can_never_be_made_is_a_matter_of_settings(error: BaseException) -> None:
    failure = classify(error)
    assert (failure.kind, failure.retryable) == ("config", False)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("RateLimitError", "rate_limit"),
        ("AuthenticationError", "auth"),
        ("BadRequestError", "config"),
        ("InternalServerError", "server_error"),
        ("ContextWindowExceededError", "context_overflow"),
    ],
)
def test_an_sdk_class_speaks_where_nothing_else_does(name: str, kind: FailureKind) -> None:
    assert classify(make_foreign(name)).kind == kind


def test_a_file_that_may_not_be_read_is_no_refused_login() -> None:
    assert classify(PermissionError(13, "Zugriff verweigert")).kind == "unknown"


def test_what_an_error_was_raised_from_counts_too() -> None:
    wrapped = RuntimeError("the stream failed")
    wrapped.__cause__ = ConnectionResetError()
    assert classify(wrapped).kind == "timeout"
    assert classify(ExceptionGroup("two", [ValueError("x"), StatusError("y", status_code=529)])).kind == "overloaded"


def test_typed_facts_of_a_cause_come_before_words_of_the_error() -> None:
    wrapped = RuntimeError("the request timed out")
    wrapped.__cause__ = StatusError("no", status_code=401)
    assert classify(wrapped).kind == "auth"


def test_a_status_that_a_client_made_up_for_garbage_is_no_status() -> None:
    unparsed = make_foreign("TransferEncodingError", "PayloadEncodingError", "BadHttpMessage", "HttpProcessingError")
    vars(unparsed)["code"] = 400
    cut = make_foreign("ClientPayloadError", "ClientError")
    garbage = make_foreign("ClientResponseError", "ClientError")
    vars(garbage)["status"] = 400
    for error in (cut, garbage):
        error.__cause__ = unparsed
        failure = classify(error, provider="openai")
        assert (failure.kind, failure.retryable, failure.status) == ("timeout", True, None)


def test_the_nearest_error_with_a_fact_decides() -> None:
    cut = make_foreign("ClientPayloadError", "ClientError")
    cut.__cause__ = StatusError("bad", status_code=400)
    assert classify(cut).kind == "timeout"


def test_errors_that_lead_to_each_other_are_read_once() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert classify(first).kind == "unknown"


class Hostile(Exception):
    """Nothing about it can be looked at."""

    @property
    def status_code(self) -> int:
        raise RuntimeError("closed")

    @property
    def response(self) -> object:
        raise LookupError("not read")

    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_that_cannot_be_looked_at_is_still_classified() -> None:
    failure = classify(Hostile(), provider="openai")
    assert (failure.kind, failure.detail) == ("unknown", "Hostile")


# --- words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("received status 503 from upstream", "timeout", 503),
        ("upstream said status code 429", "rate_limit", 429),
        ("Status code: 529", "overloaded", 529),
        ("HTTP 500", "server_error", 500),
        ("got HTTP/1.1 502 from the gateway", "timeout", 502),
        ("HTTP 400: timeout must be positive", "config", 400),
        ("status 400: prompt is too long", "context_overflow", 400),
        ("status 404 rate_limit_exceeded", "config", 404),
        ("connect to 10.0.0.1:503 failed", "unknown", None),
        ("connect to 10.0.0.1:503: connection refused", "timeout", None),
        ("listening on port 429", "unknown", None),
        ("request id req_429abc", "unknown", None),
        ("stream 503 is gone", "unknown", None),
        ("stream_id:529 was odd", "unknown", None),
        ("stream 7 was reset by the server", "timeout", None),
        ("used 500 of 503 tokens", "unknown", None),
        ("substatus 503", "unknown", None),
        ("status 5031", "unknown", None),
        ("status 503ms", "unknown", None),
        ("exit status 137", "unknown", None),
        ("Previous response with id 'resp_abc' not found.", "chain_broken", None),
        ("status 404: previous response with id resp_1 was not found", "chain_broken", 404),
        ("Error code: 429 - {'error': {'code': 'insufficient_quota'}}", "usage_limit", None),
        ("{'type': 'error', 'error': {'type': 'overloaded_error'}}", "overloaded", None),
        ("This model's maximum context length is 8192 tokens", "context_overflow", None),
        ("the request was cancelled", "timeout", None),
        ("context canceled", "timeout", None),
        ("unexpected EOF", "timeout", None),
        ("read timed out", "timeout", None),
        ("Rate limit reached", "rate_limit", None),
        ("The api_key client option must be set", "missing_key", None),
        ("Missing credentials. Please pass an `api_key`", "missing_key", None),
        ("Internal Server Error", "server_error", None),
        ("model gpt-99 does not exist", "config", None),
        ("boom", "unknown", None),
    ],
)
def test_bare_words_are_read_as_a_last_resort(text: str, kind: FailureKind, status: int | None) -> None:
    failure = classify(RuntimeError(text), provider="openai")
    assert (failure.kind, failure.status) == (kind, status)
    assert failure.retryable is RETRYABLE[kind]


def test_s50_a_chain_that_broke_at_any_id_is_retryable_and_marked() -> None:
    failure = classify(RuntimeError("Previous response with id 'resp_abc' not found."), provider="openai")
    assert failure.retryable
    assert failure.chain_broken


# --- our own failures and parts ----------------------------------------------------------


def test_a_model_failure_is_given_back_as_it_is_with_the_provider_filled_in() -> None:
    failure = ModelFailed("no", kind="auth")
    assert classify(failure, provider="openai") is failure
    assert failure.provider == "openai"
    assert classify(failure, provider="anthropic").provider == "openai"
    assert classify(ExceptionGroup("one", [failure])) is failure


@given(
    kind=st.sampled_from(sorted(set(get_args(FailureKind)) - {"unknown"})),
    retryable=st.booleans(),
    status=st.none() | st.integers(400, 599),
    detail=st.none() | st.text(),
    retry_after_s=st.none() | st.floats(0, 1000),
)
def test_a_failure_survives_being_a_part(
    kind: FailureKind, status: int | None, detail: str | None, retry_after_s: float | None, *, retryable: bool
) -> None:
    failure = ModelFailed(
        "m", kind=kind, retryable=retryable, status=status, provider="p", detail=detail, retry_after_s=retry_after_s
    )
    back = classify(to_error_part(failure), provider="other")
    assert vars(back) == vars(failure)


def test_a_part_that_nobody_classified_is_read_like_any_error() -> None:
    chain = classify(StreamError(message="Previous response with id 'resp_abc' not found."), provider="openai")
    busy = classify(StreamError(message="sorry", kind="too_busy", status=529), provider="anthropic")
    assert (chain.kind, chain.retryable, chain.provider) == ("chain_broken", True, "openai")
    assert (busy.kind, busy.retryable, busy.status) == ("overloaded", True, 529)


def test_a_part_that_cannot_be_read_keeps_its_own_word_on_retrying() -> None:
    failure = classify(StreamError(message="hiccup", kind="odd", retryable=True), provider="openai")
    assert (failure.kind, failure.retryable, failure.message) == ("unknown", True, "hiccup")


def test_the_failures_that_we_find_ourselves() -> None:
    assert (truncated("openai").kind, truncated("openai").retryable) == ("timeout", True)
    quiet = silence("anthropic", 120)
    assert (quiet.kind, quiet.retryable, quiet.detail) == (
        "stream_silence_timeout",
        True,
        "Nothing arrived for 120 seconds.",
    )
    assert (filtered("openai").kind, filtered("openai").retryable) == ("content_filter", False)


# --- what people see ---------------------------------------------------------------------


def test_the_message_names_the_provider_what_happened_and_what_to_do() -> None:
    failure = classify_response(provider="anthropic", status=529)
    assert failure.message == ("Anthropic is overloaded (status 529). Retry in a few minutes, or choose another model.")
    assert str(failure) == failure.message
    assert classify(RuntimeError("The api_key client option must be set"), provider="openai").message.startswith(
        "No API key for OpenAI. "
    )
    assert classify(RuntimeError("x")).message.startswith("The model's provider failed")
    assert classify(RuntimeError("x"), provider="acme").message.startswith("acme failed")


def test_every_kind_has_its_words() -> None:
    assert set(MESSAGES) == set(get_args(FailureKind))
    assert all("{provider}" in happened and advice.endswith(".") for happened, advice in MESSAGES.values())


def test_nothing_of_a_refused_login_is_quoted() -> None:
    body = openai("Incorrect API key provided: sk-proj-abcdef.", type_="invalid_request_error", code="invalid_api_key")
    failure = classify_response(provider="openai", status=401, body=body)
    assert failure.detail is None
    assert "sk-" not in failure.message


def test_the_upstream_reason_is_shown_instead_of_an_empty_phrase() -> None:
    reason = "some/model is temporarily rate-limited upstream."
    body = {"error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": reason}}}
    assert classify_response(provider="openrouter", status=None, body=body).detail == reason


def test_a_page_of_a_proxy_gives_its_title_and_no_tags() -> None:
    page = (
        b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title><style>body{color:red}</style></head>"
        b"<body><h1>502</h1><script>alert(1)</script></body></html>"
    )
    assert classify_response(provider="openai", status=502, body=page).detail == "502 Bad Gateway"
    assert classify_response(provider="openai", status=502, body=b"<html><body><p>Oh</p></body></html>").detail is None


# --- the page ----------------------------------------------------------------------------


def test_the_errors_page_tells_of_every_kind_and_of_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", page, flags=re.MULTILINE | re.DOTALL))
    assert list(sections) == list(get_args(FailureKind))
    for kind, text in sections.items():
        happened, advice = MESSAGES[kind]
        assert f"{happened.replace('{provider}', 'Anthropic')}. {advice}" in text, kind
        retried = re.search(r"\*\*Retried:\*\* (yes|no)", text)
        assert retried is not None, kind
        assert (retried[1] == "yes") is RETRYABLE[kind], kind
        assert "**What to do:**" in text, kind
