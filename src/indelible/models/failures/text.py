"""Reading and cleaning the words of an error: what may be believed, and what may be shown.

Error texts are long, foreign and sometimes hostile: a proxy's page of five megabytes, a URL with
a token in it, the very key that was refused. So every text is cut before any pattern sees it,
every pattern is linear in what is left, and what is shown has no tag, no address and nothing that
looks like a key (redaction/patterns.py, whose patterns exports use as well).

In a text only `status NNN`, `status code NNN` and `http NNN` are statuses. Ports, request ids,
stream ids and token counts are digits, no more.

Must stay true (tests/models/test_failure_text.py): `scrub_detail` gives at most 500 characters with
no URL, tag or key, for any input and in bounded time.
"""

from __future__ import annotations

import re
from typing import Final

from indelible.redaction.patterns import redact_keys

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
