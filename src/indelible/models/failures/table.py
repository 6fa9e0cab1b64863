"""What each signal of a failed model call means: rule 2.2 as data.

Providers report what went wrong in five ways, in this order of weight:

    1. a specific code     `insufficient_quota`, `overloaded_error`, `context_length_exceeded`
    2. a status            429, 503
    3. a general code      `invalid_request_error`, `api_error`: adds little to a status
    4. an exception class  a reset connection, an SDK's `APITimeoutError`
    5. text                "prompt is too long"

A specific code refines its status (429 with `insufficient_quota` is a bill, not a rate), but it cannot make a refused
request retryable: Groq sends `rate_limit_exceeded` with a 413 that no waiting will cure, and Ollama `api_error` with a
404. Text comes last, because providers quote the user, other providers, times and ports in it.

Codes are compared in one spelling (`to_code`): `BadRequestError`, `RESOURCE_EXHAUSTED` and `rate-limit-error` become
lower case with underscores.

Must stay true (tests/models/test_failure_table.py): the rows of rule 2.2; no 4xx other than 408, 409 and 429 becomes
retryable by its status, code or text, except a broken chain.

A new provider error goes here (docs/where-things-go.md). facts.py collects the signals; classify.py weighs them.
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Iterable
from typing import Final

from indelible.errors import RETRYABLE, FailureKind

# --- statuses ----------------------------------------------------------------------------

_STATUS_KINDS: Final[dict[int, FailureKind]] = {
    401: "auth",
    402: "usage_limit",
    403: "auth",
    408: "timeout",
    409: "server_error",  # two requests collided at the provider; transient, and the SDKs retry it, too
    413: "context_overflow",  # too many bytes or tokens: only a shorter history helps
    429: "rate_limit",
    502: "timeout",
    503: "timeout",
    504: "timeout",
    529: "overloaded",
}
_UNREACHED: Final = range(520, 528)  # Cloudflare cannot reach the provider
_REFUSALS: Final = frozenset(range(400, 500)) - {408, 409, 429}
_MISDIRECTED: Final = range(300, 400)
_FAULTS: Final = range(500, 600)


def get_status_kind(status: int | None) -> FailureKind | None:
    """What a status alone means. Success is not a signal."""
    if status is None:
        return None
    if status in _STATUS_KINDS:
        return _STATUS_KINDS[status]
    if status in _UNREACHED:
        return "timeout"
    if status in _FAULTS:
        return "server_error"
    return "config" if status in _REFUSALS or status in _MISDIRECTED else None


# --- codes -------------------------------------------------------------------------------

CHAIN_BROKEN_CODE: Final = "previous_response_not_found"

_SPECIFIC_CODES: Final[dict[FailureKind, frozenset[str]]] = {
    "overloaded": frozenset(
        {"overloaded_error", "overloaded", "server_is_overloaded", "model_overloaded", "slow_down"}
    ),
    "rate_limit": frozenset(
        {"rate_limit_error", "rate_limit_exceeded", "rate_limit_reached", "rate_limited", "too_many_requests"}
        | {"resource_exhausted", "throttling_exception"}
    ),
    "usage_limit": frozenset(
        {"insufficient_quota", "quota_exceeded", "billing_error", "billing_hard_limit_reached", "billing_not_active"}
        | {"credit_balance_too_low", "insufficient_credits", "insufficient_balance", "payment_required"}
        | {"usage_limit_reached", "budget_exceeded"}
    ),
    "auth": frozenset(
        {"authentication_error", "permission_error", "permission_denied", "permission_denied_error", "unauthenticated"}
        | {"unauthorized", "invalid_api_key", "incorrect_api_key", "api_key_invalid", "invalid_authentication"}
        | {"account_deactivated", "token_expired", "access_denied"}
    ),
    "context_overflow": frozenset(
        {"context_length_exceeded", "context_window_exceeded", "context_window_exceeded_error", "request_too_large"}
        | {"model_context_window_exceeded", "exceed_context_size_error", "string_above_max_length"}
        | {"tokens_limit_reached"}
    ),
    "content_filter": frozenset(
        {"content_filter", "content_policy_violation", "content_policy_violation_error", "flagged_input"}
        | {
            "bio_policy",
            "misalignment_policy_violation",
            "image_content_policy_violation",
            "responsible_ai_policy_violation",
            "moderation_blocked",
        }
    ),
    "config": frozenset({"model_not_found", "deployment_not_found", "invalid_model", "unsupported_model"}),
    "timeout": frozenset(
        {"timeout_error", "request_timeout", "gateway_timeout", "deadline_exceeded", "vector_store_timeout"}
        | {"unavailable", "service_unavailable", "service_unavailable_error"}
    ),
}
_GENERAL_CODES: Final[dict[FailureKind, frozenset[str]]] = {
    "config": frozenset(
        {"invalid_request_error", "bad_request", "bad_request_error", "not_found", "not_found_error"}
        | {"validation_error", "unprocessable_entity", "unprocessable_entity_error", "failed_precondition"}
        | {"invalid_prompt", "invalid_argument", "invalid_value", "invalid_type", "missing_required_parameter"}
        | {"unknown_parameter", "unsupported_parameter", "unsupported_value"}
        | {"invalid_image", "invalid_image_format", "invalid_image_mode", "invalid_image_url", "invalid_base64_image"}
        | {"image_too_large", "image_too_small", "image_file_too_large", "image_file_not_found", "image_parse_error"}
        | {"empty_image_file", "unsupported_image_media_type", "failed_to_download_image", "data_residency_mismatch"}
    ),
    "server_error": frozenset(
        {"api_error", "server_error", "internal", "internal_error", "internal_server_error", "conflict_error"}
    ),
}

_SPECIFIC_KIND_OF: Final = {code: kind for kind, codes in _SPECIFIC_CODES.items() for code in codes}
_GENERAL_KIND_OF: Final = {code: kind for kind, codes in _GENERAL_CODES.items() for code in codes}
_KNOWN_CODES: Final = frozenset({CHAIN_BROKEN_CODE, *_SPECIFIC_KIND_OF, *_GENERAL_KIND_OF})
_WORDS: Final = re.compile(r"[a-z_]+")
_WORD_STARTS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")


def to_code(name: str) -> str:
    """One spelling for codes, types and class names: `RateLimitError` is `rate_limit_error`."""
    return _WORD_STARTS.sub("_", name[:100]).strip("_").lower()


def find_codes(text: str) -> tuple[str, ...]:
    """Known codes in a lower-case text. Only names with an underscore count: no plain word has one."""
    return tuple(word for word in _WORDS.findall(text) if "_" in word and word in _KNOWN_CODES)


def get_specific_kind(codes: Iterable[str], status: int | None) -> FailureKind | None:
    """What the first specific code means, unless it would make a refused request retryable."""
    for code in codes:
        kind = _SPECIFIC_KIND_OF.get(code)
        if kind is not None and not (RETRYABLE[kind] and status in _REFUSALS):
            return kind
    return None


def get_general_kind(codes: Iterable[str]) -> FailureKind | None:
    """What a general code means without a status."""
    return next((_GENERAL_KIND_OF[code] for code in codes if code in _GENERAL_KIND_OF), None)


# --- exception classes -------------------------------------------------------------------

_TRANSPORT_ERRNOS: Final = frozenset(
    {errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}
    | {errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET}
)
_PARSER_CLASS: Final = "http_processing_error"  # aiohttp's parser reports garbage as a 400 that no server sent
_TRANSPORT_CLASSES: Final = frozenset(
    {"client_connection_error", "client_payload_error", "server_disconnected_error", "client_os_error"}  # aiohttp
    | {"transport_error", "timeout_exception"}  # httpx
    | {"api_connection_error", "api_timeout_error"}  # the official SDKs
    | {"cancelled_error", "incomplete_read_error", "incomplete_read", "gaierror", "connection_closed"}
    | {_PARSER_CLASS}
)
_SETTING_CLASSES: Final = frozenset({"invalid_url", "unsupported_protocol", "client_connector_certificate_error"})


def get_class_kind(error: BaseException) -> FailureKind | None:
    """What the class of an exception means. Foreign classes are matched by name, so none is imported.

    A certificate that fails verification is `config`: a retry would fail the same way.
    """
    names = _list_class_codes(error)
    if isinstance(error, ssl.SSLCertVerificationError) or not _SETTING_CLASSES.isdisjoint(names):
        return "config"
    if isinstance(error, (ConnectionError, TimeoutError, EOFError, ssl.SSLError)):
        return "timeout"
    if not _TRANSPORT_CLASSES.isdisjoint(names):
        return "timeout"
    if isinstance(error, OSError) and error.errno in _TRANSPORT_ERRNOS:
        return "timeout"
    return get_specific_kind(names, None) or get_general_kind(names)


def is_unreadable_answer(error: BaseException) -> bool:
    """Whether the client could not parse the response. A status that it reports then was not sent by the server."""
    return _PARSER_CLASS in _list_class_codes(error)


def _list_class_codes(error: BaseException) -> list[str]:
    """The names of an exception's classes, nearest first, without Python's own: `PermissionError` is about files."""
    return [to_code(cls.__name__) for cls in type(error).__mro__ if cls.__module__ != "builtins"]


# --- text --------------------------------------------------------------------------------

_PHRASES: Final[tuple[tuple[FailureKind, re.Pattern[str]], ...]] = (
    (
        "context_overflow",
        re.compile(
            r"prompt is too long|input is too long|maximum context length|maximum prompt length|context length is only"
            r"|exceeds? (?:the |this |your )?(?:model'?s? )?(?:maximum |available )?context"
            r"|context (?:length|window) exceeded|too many (?:input |prompt )?tokens"
        ),
    ),
    (
        "usage_limit",
        re.compile(
            r"credit balance is too low|insufficient (?:balance|credits|funds|quota)|requires more credits"
            r"|exceeded your current quota|api usage limits|billing hard limit"
        ),
    ),
    (
        "missing_key",
        re.compile(
            r"no api key|missing credentials|api[_ ]key client option must be set"
            r"|could not resolve authentication method"
        ),
    ),
    (
        "auth",
        re.compile(
            r"(?:invalid|incorrect|expired|revoked) (?:x-)?api[ -]?key|api key (?:is )?(?:not valid|invalid|expired)"
            r"|\bunauthori[sz]ed\b|authentication failed|permission denied"
        ),
    ),
    (
        "content_filter",
        re.compile(r"content (?:management )?(?:policy|filter)|\b(?:violat|flagged).{0,80}\bpolic|for safety reasons"),
    ),
    ("overloaded", re.compile(r"\boverloaded\b|\b(?:at|over) capacity\b")),
    ("rate_limit", re.compile(r"\brate[ -]?limit|too many requests")),
    (
        "timeout",
        re.compile(
            r"timed out|\btime-?out\b|deadline exceeded|\bcancell?ed\b"
            r"|\beof\b|unexpected end|incomplete (?:chunked )?read"
            r"|connection (?:was |has been )?(?:reset|refused|closed|aborted|lost|error|dropped|broken|terminated)"
            r"|\breset by peer|\bstream\b.{0,40}\breset\b|broken pipe|server disconnected|peer closed|socket hang up"
            r"|cannot connect|network is unreachable|no route to host|name resolution|temporarily unavailable"
            r"|service unavailable|bad gateway"
        ),
    ),
    (
        "server_error",
        re.compile(r"internal (?:server )?error|server (?:had an )?error|error occurred while processing your request"),
    ),
    (
        "config",
        re.compile(r"\bmodel\b.{0,80}\b(?:not found|does not exist|not supported)|\binvalid request\b|\bbad request\b"),
    ),
)
_REFINING_KINDS: Final = frozenset({"context_overflow", "usage_limit", "missing_key", "auth", "content_filter"})


def get_phrase_kind(text: str) -> FailureKind | None:
    """What lower-case text means if there is no better signal."""
    return next((kind for kind, phrase in _PHRASES if phrase.search(text)), None)


def refine_config(text: str) -> FailureKind:
    """Why a request was refused, as far as its lower-case text shows. Never retryable."""
    kind = get_phrase_kind(text)
    return kind if kind in _REFINING_KINDS else "config"


_CHAIN_BROKEN_TEXTS: Final = (
    ("previous response with id", "not found"),
    ("no tool output found for",),
    ("was provided without its required",),
    ("item with id", "not found"),
)
"""Texts about something that the provider should remember and does not (rule 10.13), each with all its parts."""


def is_chain_broken(codes: Iterable[str], text: str) -> bool:
    """Whether the provider lost the previous response, or items of it: any id, any provider, any status."""
    return CHAIN_BROKEN_CODE in codes or any(all(part in text for part in parts) for parts in _CHAIN_BROKEN_TEXTS)
