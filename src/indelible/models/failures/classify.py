"""Foreign errors are read once: any error of a provider or its client becomes one `ModelFailed`.

The rest of Indelible reads only a failure's `kind` and `retryable`. All knowledge of how providers fail is here and in
two neighbours: facts.py collects the signals of an error and cleans its words, table.py says what each signal means.
This module weighs the signals, typed ones first and text last, and writes the sentence for the user.

    specific code  >  status  >  general code  >  exception class  >  text

Text may refine why a request was refused (`config` becomes `context_overflow`), but it never makes a refused request
retryable. A broken chain is the one exception: its recovery sends another request (rule 4).

`x-should-retry` overrides `retryable` and leaves the kind. It is about repeating the same request, so it does not apply
to a broken chain or a context overflow, which another request cures.

The user's sentence names the provider, what happened and what to do. Nothing of a refused login is quoted.

Must stay true: the table of rule 2.2 row by row (tests/models/test_failure_table.py); every kind has a sentence here
and a section in docs/errors.md (tests/models/test_failures.py). How long to wait is retry.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from indelible.content import StreamError
from indelible.errors import RETRYABLE, FailureKind, Interrupted, ModelFailed
from indelible.models.failures import facts, table

MESSAGES: Final[dict[FailureKind, tuple[str, str]]] = {
    "overloaded": ("{provider} is overloaded", "Retry in a few minutes, or choose another model."),
    "rate_limit": ("{provider} is limiting the request rate", "Wait a moment, or choose another model."),
    "usage_limit": (
        "The account at {provider} has used up its quota or credit",
        "Check its plan and billing, or choose another model.",
    ),
    "auth": ("{provider} rejected the API key", "Check the key and its permissions."),
    "config": ("{provider} refused the request", "Check the model's name and parameters."),
    "context_overflow": (
        "The conversation is too long for this model at {provider}",
        "Start a new chat, or choose a model with a larger context window.",
    ),
    "timeout": ("Can't reach {provider}, or the connection was lost", "Check the network, or retry in a moment."),
    "stream_silence_timeout": ("{provider} stopped responding", "Retry, or choose another model."),
    "server_error": ("{provider} had an internal error", "Retry in a few minutes, or choose another model."),
    "chain_broken": (
        "{provider} no longer has the earlier response that this one continues",
        "The full conversation is sent instead.",
    ),
    "content_filter": ("{provider} declined to reply because of its content policy", "Rephrase the request."),
    "missing_key": ("No API key for {provider}", "Add one to the settings, or choose another model."),
    "unknown": ("{provider} failed with an unknown error", "Retry, or choose another model."),
}

_DISPLAY_NAMES: Final = {
    "anthropic": "Anthropic",
    "azure": "Azure OpenAI",
    "deepseek": "DeepSeek",
    "demo": "The demo model",
    "gemini": "Google Gemini",
    "google": "Google",
    "groq": "Groq",
    "mistral": "Mistral",
    "ollama": "Ollama",
    "openai": "OpenAI",
    "openai-chat": "OpenAI",
    "openrouter": "OpenRouter",
    "together": "Together AI",
    "vllm": "vLLM",
    "xai": "xAI",
}
_NOT_FOUND: Final = 404
_NOTHING_QUOTED: Final = frozenset({"auth", "missing_key"})
_CURED_BY_ANOTHER_REQUEST: Final = frozenset({"chain_broken", "context_overflow"})


def get_display_name(provider: str) -> str:
    """The provider's name for users."""
    return _DISPLAY_NAMES.get(provider.lower(), provider)


# --- foreign errors ----------------------------------------------------------------------


def classify(
    error: BaseException | StreamError,
    *,
    provider: str | None = None,
    now: datetime | None = None,
    is_chained: bool = False,
) -> ModelFailed:
    """Classify any error of a model call; `is_chained`: the call continued a response that the provider remembers.

    To such a call a 404 means that the provider no longer does, whatever it says. If it meant the model, the next
    attempt, which is not chained, says so again.

    Call it only while the scope is live: a cancellation then did not come from us and counts as a reset connection
    (rule 1.6). A `ModelFailed`, alone or as the cause of another error, is returned as it is, with the provider filled
    in. Only a broken chain is still recognised by its text.
    """
    failure = _classify(error, provider, now)
    if is_chained and failure.status == _NOT_FOUND and failure.kind != "chain_broken":
        return _fail("chain_broken", provider, status=failure.status, detail=failure.detail)
    return failure


def _classify(error: BaseException | StreamError, provider: str | None, now: datetime | None) -> ModelFailed:
    if isinstance(error, StreamError):
        return _from_part(error, provider)
    for each in facts.trace_lineage(error):
        if isinstance(each, ModelFailed):
            each.provider = each.provider or provider
            read = _from_part(to_error_part(each), provider) if each.kind == "unknown" else each
            return read if read.kind == "chain_broken" else each
    if isinstance(error, (asyncio.CancelledError, Interrupted)):
        return _fail("timeout", provider, detail="The provider cancelled the request.")
    failure = _classify_facts(facts.read_exception(error), provider, now)
    if failure.kind == "unknown":  # an error of the program, not of a provider: its class says most
        failure.detail = facts.scrub_detail(facts.describe_exception(error))
    return failure


def classify_response(
    *,
    provider: str,
    status: int | None,
    headers: Mapping[str, str] | None = None,
    body: facts.Body = None,
    now: datetime | None = None,
) -> ModelFailed:
    """Classify an HTTP error response, or (`status=None`) an error event inside a stream that began well."""
    return _classify_facts([facts.read_response(status, headers or {}, body)], provider, now)


def to_error_part(failure: ModelFailed) -> StreamError:
    """The same failure as a part of a stream."""
    return StreamError(
        message=failure.message,
        kind=failure.kind,
        retryable=failure.retryable,
        status=failure.status,
        provider=failure.provider,
        detail=failure.detail,
        retry_after_s=failure.retry_after_s,
    )


def _from_part(part: StreamError, provider: str | None) -> ModelFailed:
    """A part with a known kind is trusted; any other is classified like a foreign error."""
    provider = part.provider or provider
    known = part.kind in RETRYABLE and part.kind != "unknown"
    if not known:
        found = facts.Facts(status=part.status, message=part.detail or part.message, text=part.message)
        read = _classify_facts([found], provider, None)
        if read.kind != "unknown":
            return read
    return ModelFailed(
        part.message,
        kind=cast("FailureKind", part.kind) if known else "unknown",
        retryable=part.retryable,
        status=part.status,
        provider=provider,
        detail=part.detail,
        retry_after_s=part.retry_after_s,
    )


# --- failures that Indelible detects itself ----------------------------------------------


def truncated(provider: str | None) -> ModelFailed:
    """The stream ended without a finish (rule 1.2)."""
    return _fail("timeout", provider, detail="The stream ended before the reply was complete.")


def garbled(provider: str | None, detail: str) -> ModelFailed:
    """The stream contained invalid data. A retry may well succeed."""
    return _fail("server_error", provider, detail=detail)


def silence(provider: str | None, timeout_s: float) -> ModelFailed:
    """The provider sent nothing for too long (rule 1.7)."""
    return _fail("stream_silence_timeout", provider, detail=f"Nothing arrived for {timeout_s:g} seconds.")


def overflowed(provider: str | None, detail: str) -> ModelFailed:
    """The conversation does not fit in the model's window, although older messages were summarised (rule 10.6)."""
    return _fail("context_overflow", provider, detail=detail)


def filtered(provider: str | None) -> ModelFailed:
    """The provider withheld the whole reply (rule 1.2)."""
    return _fail("content_filter", provider)


# --- weighing ----------------------------------------------------------------------------


def _classify_facts(all_facts: Sequence[facts.Facts], provider: str | None, now: datetime | None) -> ModelFailed:
    kind, status = _decide_kind(all_facts)
    message = next((found.message for found in all_facts if found.message), None)
    headers = next((found.headers for found in all_facts if found.headers), {})
    retryable = RETRYABLE[kind]
    if kind not in _CURED_BY_ANOTHER_REQUEST:
        should_retry = facts.read_should_retry(headers)
        retryable = retryable if should_retry is None else should_retry
    return _fail(
        kind,
        provider,
        retryable=retryable,
        status=status,
        detail=None if kind in _NOTHING_QUOTED else facts.scrub_detail(message),
        retry_after_s=facts.read_retry_after_s(headers, now),
    )


def _decide_kind(all_facts: Sequence[facts.Facts]) -> tuple[FailureKind, int | None]:
    """The kind and the status: from the nearest facts with a typed signal, else from the text of all."""
    text = facts.cut_text(" ".join(found.text for found in all_facts)).lower()
    from_text = facts.Facts(
        status=facts.find_status(text), codes=table.find_codes(text), implied=table.get_phrase_kind(text)
    )
    if table.is_chain_broken([code for found in (*all_facts, from_text) for code in found.codes], text):
        return "chain_broken", next((found.status for found in (*all_facts, from_text) if found.status), None)
    for found in (*all_facts, from_text):
        kind = table.get_specific_kind(found.codes, found.status)
        kind = kind or table.get_status_kind(found.status) or table.get_general_kind(found.codes) or found.implied
        if kind is not None:
            return (table.refine_config(text) if kind == "config" else kind), found.status
    return "unknown", None


def _fail(
    kind: FailureKind,
    provider: str | None,
    *,
    retryable: bool | None = None,
    status: int | None = None,
    detail: str | None = None,
    retry_after_s: float | None = None,
) -> ModelFailed:
    happened, advice = MESSAGES[kind]
    happened = happened.format(provider=get_display_name(provider) if provider else "The model's provider")
    return ModelFailed(
        f"{happened} (status {status}). {advice}" if status else f"{happened}. {advice}",
        kind=kind,
        retryable=retryable,
        status=status,
        provider=provider,
        detail=detail,
        retry_after_s=retry_after_s,
    )
