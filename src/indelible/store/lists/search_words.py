"""The words of a text for the search index, the words of a query, and the piece of a text that a query found. Pure.

A word is a run of letters and digits, folded: without case, without diacritics, compatibility forms as plain ones
(`Ärger` and `arger`, `ﬁn` and `fin` are the same word). Chinese characters and kana are words of their own, because no
space separates them. Folding and splitting happen here and not in the database, so that SQLite and PostgreSQL find the
same chats, and so that a snippet marks exactly what was found.

A query finds the texts that have all its words, in any order; its last word may be the beginning of one, because it
may still be being typed.

Must stay true (tests/store/test_search_words.py): a text is found by each of its words and by each beginning of one;
the marked ranges of a snippet are words of the query.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, NamedTuple

from indelible.api.shapes import Snippet

MAX_TEXT: Final = 200_000
"""Characters of a text that are indexed; the rest is not found."""
MAX_WORDS: Final = 20_000
MAX_WORD: Final = 64
"""Characters. Of a longer word only the beginning counts, in texts and in queries alike."""
MAX_QUERY_WORDS: Final = 16
SNIPPET: Final = 160
_BEFORE: Final = 40

_SINGLE: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD: Final = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]+")
_SPACE: Final = re.compile(r"\s+")


class Query(NamedTuple):
    """Normalized words. The last one is a beginning."""

    words: tuple[str, ...]

    def matches(self, word: str) -> bool:
        return word in self.words or word.startswith(self.words[-1])


def split_words(text: str) -> list[str]:
    """The words of a text, each once, in a fixed order."""
    found = {word for match in _WORD.finditer(text[:MAX_TEXT]) for word in normalize(match[0])}
    return sorted(found)[:MAX_WORDS]


def parse_query(text: str) -> Query | None:
    """The words of a query; None if it has none."""
    words = [word for match in _WORD.finditer(text) for word in normalize(match[0])]
    return Query(tuple(words[-MAX_QUERY_WORDS:])) if words else None


def normalize(word: str) -> list[str]:
    """The normalized form of a word; a compatibility form may be several words (`½` is 1 and 2)."""
    if word.isascii():
        return [word[:MAX_WORD].lower()]
    plain = unicodedata.normalize("NFKD", word)
    kept = "".join(character for character in plain if not unicodedata.combining(character)).casefold()
    return [part[:MAX_WORD] for part in _WORD.findall(kept)]


def make_snippet(text: str, query: Query) -> Snippet:
    """The piece of the text around the first word that the query found, on one line."""
    text = text[:MAX_TEXT]
    first = next((match for match in _WORD.finditer(text) if _is_found(match[0], query)), None)
    start = 0 if first is None else max(0, first.start() - _BEFORE)
    if start:
        start = text.find(" ", start, first.start() if first is not None else None) + 1 or start
    piece = _SPACE.sub(" ", text[start : start + 2 * SNIPPET]).strip()
    lead = "…" if start else ""
    shown = lead + (piece if len(piece) <= SNIPPET else f"{piece[: SNIPPET - 1]}…")
    ranges = [match.span() for match in _WORD.finditer(shown) if _is_found(match[0], query)]
    return Snippet(text=shown, ranges=ranges)


def _is_found(word: str, query: Query) -> bool:
    return any(query.matches(plain) for plain in normalize(word))
