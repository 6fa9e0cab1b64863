"""Foreign errors, read once: whatever a provider or its client throws becomes one `ModelFailed`.

The rest of Indelible asks a failure for its `kind` and `retryable` and nothing else, so all
knowledge of how providers fail is here and in three neighbours: facts.py collects what
the error says, table.py knows what each signal means, text.py reads and cleans
words. This module weighs the facts (typed ones first, words last) and writes what people see.

    telling code  >  status  >  general code  >  exception class  >  words

Words may name more exactly why a request was refused (`config` becomes `context_overflow`), but
never make a refused request retryable. A broken chain is the one exception to that: the recovery
does not send the same request again (SPEC §4).

`x-should-retry` overrides `retryable` and leaves the kind. It is about repeating the request, so
it says nothing about a broken chain or a context overflow, which are cured by another request.

What people see names the provider, says what happened and what can be done. Nothing of a refused
login is quoted.

Must stay true: the table of SPEC 2.2 row by row (tests/models/test_failure_table.py); every kind
has its words here and its place in docs/errors.md (tests/models/test_failures.py). How long to
wait is retry.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from indelible.content import StreamError
from indelible.errors import RETRYABLE, FailureKind, Interrupted, ModelFailed
from indelible.models.failures.facts import (
    Body,
    Facts,
    read_exception,
    read_response,
    read_retry_after_s,
    read_should_retry,
    trace_lineage,
)
from indelible.models.failures.table import (
    find_codes,
    get_general_kind,
    get_phrase_kind,
    get_status_kind,
    get_telling_kind,
    is_chain_broken,
    refine_config,
)
from indelible.models.failures.text import cut_text, find_status, scrub_detail

MESSAGES: Final[dict[FailureKind, tuple[str, str]]] = {
    "overloaded": ("{provider} is overloaded", "Try again in a few minutes, or choose another model."),
    "rate_limit": ("{provider} is limiting how often it may be asked", "Wait a little, or choose another model."),
    "usage_limit": (
        "The account at {provider} has used up its quota or credit",
        "Check the plan and billing there, or choose another model.",
    ),
    "auth": ("{provider} did not accept the API key", "Check the key and what it is allowed to use."),
    "config": ("{provider} refused the request", "Check the model's name and its settings."),
    "context_overflow": (
        "The conversation is too long for this model at {provider}",
        "Start a new chat, or choose a model with a larger context window.",
    ),
    "timeout": ("{provider} could not be reached, or the connection was cut", "Try again in a moment."),
    "stream_silence_timeout": ("{provider} stopped sending", "Try again, or choose another model."),
    "server_error": ("{provider} had an internal error", "Try again in a few minutes, or choose another model."),
    "chain_broken": (
        "{provider} no longer has the earlier reply that this one was to continue",
        "The whole conversation is sent instead.",
    ),
    "content_filter": ("{provider} declined to answer because of its content rules", "Put the request differently."),
    "missing_key": ("There is no API key for {provider}", "Add one to the settings, or choose another model."),
    "unknown": ("{provider} failed in an unexpected way", "Try again, or choose another model."),
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
_NOTHING_QUOTED: Final = frozenset({"auth", "missing_key"})
_CURED_BY_ANOTHER_REQUEST: Final = frozenset({"chain_broken", "context_overflow"})


def get_display_name(provider: str) -> str:
    """What people call it."""
    return _DISPLAY_NAMES.get(provider.lower(), provider)


# --- foreign errors ----------------------------------------------------------------------


def classify(
    error: BaseException | StreamError, *, provider: str | None = None, now: datetime | None = None
) -> ModelFailed:
    """Any error of a model call as a `ModelFailed`.

    Ask only while the scope is live: a cancellation was then not ours, and is a reset connection
    (SPEC 1.6). A `ModelFailed`, alone or inside another error, is given back as it is, with the
    provider filled in; only a broken chain is told by its words even then.
    """
    if isinstance(error, StreamError):
        return _from_part(error, provider)
    for each in trace_lineage(error):
        if isinstance(each, ModelFailed):
            each.provider = each.provider or provider
            read = _from_part(to_error_part(each), provider) if each.kind == "unknown" else each
            return read if read.kind == "chain_broken" else each
    if isinstance(error, (asyncio.CancelledError, Interrupted)):
        return _fail("timeout", provider, detail="The provider cancelled the request.")
    return _judge(read_exception(error), provider, now)


def classify_response(
    *,
    provider: str,
    status: int | None,
    headers: Mapping[str, str] | None = None,
    body: Body = None,
    now: datetime | None = None,
) -> ModelFailed:
    """An HTTP error answer, or (`status=None`) an error event inside a stream that began well."""
    return _judge([read_response(status, headers or {}, body)], provider, now)


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
    """A part is taken at its word; one whose kind nobody knows is read like any foreign error."""
    provider = part.provider or provider
    known = part.kind in RETRYABLE and part.kind != "unknown"
    if not known:
        facts = Facts(status=part.status, message=part.detail or part.message, text=part.message)
        read = _judge([facts], provider, None)
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


# --- failures that Indelible finds itself ------------------------------------------------


def truncated(provider: str | None) -> ModelFailed:
    """The stream ended without its end (SPEC 1.2)."""
    return _fail("timeout", provider, detail="The stream ended before the reply was complete.")


def garbled(provider: str | None, detail: str) -> ModelFailed:
    """What came was not what such a stream is made of. Another try may well be read."""
    return _fail("server_error", provider, detail=detail)


def silence(provider: str | None, timeout_s: float) -> ModelFailed:
    """The provider sent nothing for too long (SPEC 1.7)."""
    return _fail("stream_silence_timeout", provider, detail=f"Nothing came for {timeout_s:g} seconds.")


def filtered(provider: str | None) -> ModelFailed:
    """The reply was withheld and nothing of it can be seen (SPEC 1.2)."""
    return _fail("content_filter", provider)


def missing_key(provider: str | None) -> ModelFailed:
    """There are no credentials for the provider, so it was not asked."""
    return _fail("missing_key", provider)


# --- weighing ----------------------------------------------------------------------------


def _judge(witnesses: Sequence[Facts], provider: str | None, now: datetime | None) -> ModelFailed:
    kind, status = _decide_kind(witnesses)
    message = next((facts.message for facts in witnesses if facts.message), None)
    headers = next((facts.headers for facts in witnesses if facts.headers), {})
    retryable = RETRYABLE[kind]
    if kind not in _CURED_BY_ANOTHER_REQUEST:
        wish = read_should_retry(headers)
        retryable = retryable if wish is None else wish
    return _fail(
        kind,
        provider,
        retryable=retryable,
        status=status,
        detail=None if kind in _NOTHING_QUOTED else scrub_detail(message),
        retry_after_s=read_retry_after_s(headers, now),
    )


def _decide_kind(witnesses: Sequence[Facts]) -> tuple[FailureKind, int | None]:
    """What failed, and the status: by the nearest witness with a typed fact, else by the words of all."""
    text = cut_text(" ".join(facts.text for facts in witnesses)).lower()
    words = Facts(status=find_status(text), codes=find_codes(text), implied=get_phrase_kind(text))
    if is_chain_broken([code for facts in (*witnesses, words) for code in facts.codes], text):
        return "chain_broken", next((facts.status for facts in (*witnesses, words) if facts.status), None)
    for facts in (*witnesses, words):
        kind = get_telling_kind(facts.codes, facts.status)
        kind = kind or get_status_kind(facts.status) or get_general_kind(facts.codes) or facts.implied
        if kind is not None:
            return (refine_config(text) if kind == "config" else kind), facts.status
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
