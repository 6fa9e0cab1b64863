"""The signals of a failed call, collected before anything interprets them, and the words of an error.

Facts come from an HTTP response, from an error event inside a stream, or from any exception. SDKs and HTTP clients
differ in their classes, but all carry some of `status_code`, `status`, `code`, `type`, `body` and `response`. These are
read by name, so no client is imported here; an attribute that raises or has another type is ignored.

Bodies are read in the shapes that occur in the wild: `{"error": {…}}` (OpenAI, Anthropic, vLLM, Groq), flat events and
`response.failed` (Responses), `innererror` (Azure), `metadata.raw` (OpenRouter), JSON inside a message (Gemini),
`{"error": "…"}` (Ollama), `{"detail": …}` (FastAPI). Only these keys are followed, a few levels deep.

Error texts are long, foreign and sometimes hostile: a proxy's page of five megabytes, a URL with
a token in it, the very key that was refused. So every text is cut before any pattern sees it,
every pattern is linear in what is left, and what is shown has no tag, no address and nothing that
looks like a key (redaction/secrets.py, whose patterns exports use as well). In a text only `status NNN`, `status code
NNN` and `http NNN` are statuses. Ports, request ids, stream ids and token counts are digits, no more.

Must stay true: reading facts never raises, and an exception's causes and group members are read after the exception
itself; a status that no server sent is not a fact (tests/models/test_failures.py); `scrub_detail` gives at most 500
characters with no URL, tag or key, for any input and in bounded time (tests/models/test_failure_text.py).

What the facts mean is table.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from indelible.errors import FailureKind
from indelible.models.failures.table import get_class_kind, is_unreadable_answer, to_code
from indelible.redaction.secrets import redact_keys

Body = bytes | str | Mapping[str, Any] | None
_MAX_JSON_BYTES: Final = 256 * 1024
_MAX_DEPTH: Final = 6
_MAX_ITEMS: Final = 8
_MAX_LINEAGE: Final = 8
_STATUSES: Final = range(300, 600)  # everything but success
_ERROR_STATUSES: Final = range(400, 600)
_THREE_DIGITS: Final = re.compile(r"[0-9]{3}")
_CODE_KEYS: Final = ("code", "type", "status", "reason", "error_type")
_MESSAGE_KEYS: Final = ("message", "msg", "detail", "error", "raw")
_INNER_KEYS: Final = ("error", "response", "message", "innererror", "metadata", "raw", "detail", "details")
_EMPTY_PHRASES: Final = frozenset({"provider returned error", "error"})


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`codes` are normalized by `to_code`, the most specific place first; `headers` have lower-case names.

    `implied` is the kind that an exception's class (or a phrase in the text) suggests. `message` is the provider's own
    sentence; `text` is all text of the error, for matching only.
    """

    status: int | None = None
    codes: tuple[str, ...] = ()
    implied: FailureKind | None = None
    message: str | None = None
    text: str = ""
    headers: dict[str, str] = {}


# --- responses and events ------------------------------------------------------------------


def read_response(status: int | None, headers: Mapping[str, str], body: Body) -> Facts:
    """The facts of an error response, or (without a status) of an error event inside a stream."""
    facts = read_body(body)
    return msgspec.structs.replace(facts, status=_as_status(status) or facts.status, headers=_lower_names(headers))


def read_body(body: object) -> Facts:
    """The facts of a body: JSON of any known shape, or plain text."""
    root = _parse(body)
    if isinstance(root, str):
        return Facts(message=root or None, text=cut_text(root))
    statuses: list[int] = []
    codes: list[str] = []
    messages: list[str] = []
    for node in _walk(root):
        for key in _CODE_KEYS:
            value = node.get(key)
            status = _as_status(value)
            if status is not None and status in _ERROR_STATUSES:
                statuses.append(status)
            elif isinstance(value, str):
                codes.append(to_code(value))
        if "flagged_input" in node:
            codes.append("flagged_input")
        messages += [node[key] for key in _MESSAGE_KEYS if _is_sentence(node.get(key))]
    informative = [message for message in messages if message.strip().rstrip(".").lower() not in _EMPTY_PHRASES]
    return Facts(
        status=statuses[0] if statuses else None,
        codes=tuple(codes),
        message=next(iter(informative or messages), None),
        text=cut_text(" ".join(cut_text(message) for message in messages)),
    )


def _parse(body: object) -> object:
    """Decode JSON objects, lists and strings; return anything else as text."""
    if not isinstance(body, (bytes, str)):
        return body or ""
    if len(body) <= _MAX_JSON_BYTES:
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            value = msgspec.json.decode(body)
            if isinstance(value, (dict, list, str)):
                return value
    return body if isinstance(body, str) else body[:_MAX_JSON_BYTES].decode("utf-8", "replace")


def _walk(value: object, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Every object of a body that may describe the error, outer before inner."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = _parse(value)
    if isinstance(value, Mapping):
        yield value
        for key in _INNER_KEYS:
            if key in value:
                yield from _walk(value[key], depth + 1)
    elif isinstance(value, list):
        for item in value[:_MAX_ITEMS]:
            yield from _walk(item, depth + 1)


def _is_sentence(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.lstrip()[0] not in "{["


def _as_status(value: object) -> int | None:
    """A number, or a string of three digits, if it is a status other than success."""
    if isinstance(value, str) and _THREE_DIGITS.fullmatch(value):
        value = int(value)
    return int(value) if isinstance(value, int) and value in _STATUSES else None


def _lower_names(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        return {}
    return {str(name).lower(): str(value) for name, value in headers.items()}


# --- exceptions --------------------------------------------------------------------------


def trace_lineage(error: BaseException) -> list[BaseException]:
    """An error, its causes and the members of groups: nearest first, at most `_MAX_LINEAGE`."""
    lineage: list[BaseException] = []
    waiting = [error]
    while waiting and len(lineage) < _MAX_LINEAGE:
        current = waiting.pop(0)
        lineage.append(current)
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        if current.__cause__ is not None:
            waiting.append(current.__cause__)
    return lineage


def read_exception(error: BaseException) -> list[Facts]:
    """The facts of an exception and of each of its causes, nearest first."""
    lineage = trace_lineage(error)
    all_facts = [_read_one(each) for each in lineage]
    if any(map(is_unreadable_answer, lineage)):
        return [msgspec.structs.replace(facts, status=None) for facts in all_facts]
    return all_facts


def _read_one(error: BaseException) -> Facts:
    response = _get(error, "response")
    body = read_body(_get(error, "body"))
    own = [_get(error, name) for name in ("status_code", "status", "code", "type")]
    numbers = [*own, _get(response, "status_code"), _get(response, "status")]
    description = _describe_error(error)
    message = _get(error, "message")
    return Facts(
        status=next(filter(None, map(_as_status, numbers)), body.status),
        codes=(*(to_code(value) for value in own if isinstance(value, str)), *body.codes),
        implied=get_class_kind(error),
        message=body.message or (message if isinstance(message, str) and message else description),
        text=cut_text(f"{cut_text(description)} {body.text}"),
        headers=_lower_names(_get(response, "headers") or _get(error, "headers")),
    )


def _describe_error(error: BaseException) -> str:
    """The error's message, else the name of its class."""
    with suppress(BaseException):
        if text := str(error):
            return text
    return type(error).__name__


def describe_exception(error: BaseException) -> str:
    """The class of an error, and its message if it has one."""
    name, text = type(error).__name__, _describe_error(error)
    return name if text == name else f"{name}: {text}"


def _get(owner: object, name: str) -> object:
    """An attribute of a foreign object, or None: its property may raise anything."""
    with suppress(Exception):
        return getattr(owner, name, None)
    return None


# --- retry headers -----------------------------------------------------------------------


def read_retry_after_s(headers: Mapping[str, str], now: datetime | None) -> float | None:
    """How long the provider asks us to wait. A date counts from the response's own date, else from `now`."""
    wait_ms = _as_wait(headers.get("retry-after-ms"))
    if wait_ms is not None:
        return wait_ms / 1000
    retry_after = headers.get("retry-after")
    wait_s = _as_wait(retry_after)
    if wait_s is not None:
        return wait_s
    until = _as_date(retry_after)
    since = _as_date(headers.get("date")) or now
    if until is None or since is None or until < since:
        return None
    return (until - since).total_seconds()


def read_should_retry(headers: Mapping[str, str]) -> bool | None:
    """Whether the provider asks for a retry; None if it does not say."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def _as_wait(value: str | None) -> float | None:
    try:
        wait = float(value or "")
    except ValueError:
        return None
    return wait if math.isfinite(wait) and wait >= 0 else None


def _as_date(value: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(value or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


MAX_DETAIL_CHARS: Final = 500
MAX_READ_CHARS: Final = 8_000
_MAX_KEY_CHARS: Final = 400

_STATUS: Final = re.compile(
    r"\b(?:status(?:[ _]code)?(?:[\"']?[ ]?[:=][ ]?|[ ])|http(?:/\d(?:\.\d)?)?[ ])([45]\d\d)\b(?!\.\d)"
)

_HTML_PAGE: Final = re.compile(r"<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_HTML_TITLE: Final = re.compile(r"<title[^<>]{0,200}>([^<>]{1,500})", re.IGNORECASE)
_TAG: Final = re.compile(r"<[A-Za-z!/?][^<>]*(?:>|$)")
_URL: Final = re.compile(r"\b(?:[A-Za-z][A-Za-z0-9+.-]{1,15}://|www\.)[^\s\"<>]+")
_OPAQUE: Final = re.compile(r"(?<![\w-])(?=[A-Za-z]*\d)[A-Za-z0-9]{32,}(?![\w-])")
"""A word that may be anybody's key. In a sentence for people nothing is lost with it."""


def cut_text(text: str) -> str:
    """No more of a text than is ever read, without the word that the cut goes through."""
    if len(text) <= MAX_READ_CHARS:
        return text
    last_space = text.rfind(" ", MAX_READ_CHARS - _MAX_KEY_CHARS, MAX_READ_CHARS)
    return text[: last_space if last_space >= 0 else MAX_READ_CHARS]


def find_status(text: str) -> int | None:
    """The HTTP status that a bare, lower-case text names, if it does."""
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def scrub_detail(text: str | None) -> str | None:
    """What of a provider's own words may be shown to people, or None if that is nothing."""
    if not text:
        return None
    text = _tidy(cut_text(text))
    if _HTML_PAGE.search(text, 0, 2_000):
        title = _HTML_TITLE.search(text)
        text = title[1] if title else ""
    text = _TAG.sub(" ", text)
    text = _URL.sub("[link]", text)
    text = _tidy(_OPAQUE.sub("[removed]", redact_keys(text, "[removed]")))
    if len(text) > MAX_DETAIL_CHARS:
        text = text[: MAX_DETAIL_CHARS - 1].rstrip() + "…"
    return text or None


def _tidy(text: str) -> str:
    """One line, and nothing in it that cannot be seen: a hidden character could cut a key in two."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())
