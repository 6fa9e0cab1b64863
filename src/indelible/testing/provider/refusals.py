"""Errors of a provider: a rejected request, or a failed model.

A `Refusal` is the same for all providers; each dialect writes it in its own form. It has two sources: a wrong request,
and a model that failed. A failure's kind becomes the status, type and code that the real provider would use for it, so
that models/failures/classify.py finds the same kind again. Anthropic reports some kinds by text alone; that text is
put before the failure's own.

Must stay true (tests/testing/test_provider_failures.py): in every wire format, before the stream and inside it, a
failure is classified as its original kind, as far as the provider can express it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from indelible.errors import FailureKind, ModelFailed


class Refusal(Exception):
    """A response with an error status and a body that explains it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


# --- Anthropic ---------------------------------------------------------------------------

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_ANTHROPIC_STATUS: Final[dict[FailureKind, int]] = {
    "overloaded": 529,
    "rate_limit": 429,
    "usage_limit": 402,
    "auth": 401,
    "config": 400,
    "context_overflow": 400,
    "timeout": 504,
    "stream_silence_timeout": 504,
    "server_error": 500,
    "chain_broken": 400,
    "content_filter": 400,
    "missing_key": 401,
    "unknown": 500,
}
_ANTHROPIC_PREFIXES: Final[dict[FailureKind, str]] = {
    "context_overflow": "prompt is too long: ",
    "content_filter": "Output blocked by content filtering policy: ",
}


def find_anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def refuse_as_anthropic(failure: ModelFailed) -> Refusal:
    status = _ANTHROPIC_STATUS[failure.kind]
    return Refusal(
        _ANTHROPIC_PREFIXES.get(failure.kind, "") + (failure.detail or failure.message),
        status=failure.status or status,
        type=find_anthropic_type(status),
        headers=_advise(failure),
    )


def show_anthropic(refusal: Refusal, request_id: str) -> dict[str, Any]:
    error = {"type": refusal.type, "message": refusal.message}
    return {"type": "error", "error": error, "request_id": request_id}


# --- OpenAI ------------------------------------------------------------------------------

_OPENAI: Final[dict[FailureKind, tuple[int, str, str | None]]] = {
    "overloaded": (503, "server_error", "slow_down"),
    "rate_limit": (429, "requests", "rate_limit_exceeded"),
    "usage_limit": (429, "insufficient_quota", "insufficient_quota"),
    "auth": (401, "invalid_request_error", "invalid_api_key"),
    "config": (400, "invalid_request_error", "invalid_value"),
    "context_overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "timeout": (504, "server_error", "request_timeout"),
    "stream_silence_timeout": (504, "server_error", "request_timeout"),
    "server_error": (500, "server_error", "server_error"),
    "chain_broken": (400, "invalid_request_error", "previous_response_not_found"),
    "content_filter": (400, "invalid_request_error", "content_policy_violation"),
    "missing_key": (401, "invalid_request_error", "invalid_api_key"),
    "unknown": (500, "server_error", "server_error"),
}


def find_openai_type(status: int) -> tuple[str, str | None]:
    """The type and the code of a refusal with this status."""
    if status == 429:
        return "requests", "rate_limit_exceeded"
    if status == 401:
        return "invalid_request_error", "invalid_api_key"
    return ("invalid_request_error", None) if status < 500 else ("server_error", None)


def refuse_as_openai(failure: ModelFailed) -> Refusal:
    status, type_, code = _OPENAI[failure.kind]
    return Refusal(
        failure.detail or failure.message,
        status=failure.status or status,
        type=type_,
        code=code,
        headers=_advise(failure),
    )


def show_openai(refusal: Refusal) -> dict[str, Any]:
    error = {"message": refusal.message, "type": refusal.type, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def _advise(failure: ModelFailed) -> dict[str, str]:
    """Whether and when to retry, in the headers that providers use for it."""
    advice = {"x-should-retry": "true" if failure.retryable else "false"}
    if failure.retry_after_s is not None:
        advice["retry-after"] = f"{failure.retry_after_s:g}"
    return advice
