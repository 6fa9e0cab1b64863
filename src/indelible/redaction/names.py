"""Which names are sensitive: those of headers, of JSON keys and of query parameters.

A name is sensitive if its words say so, in any spelling: `apiKey`, `API-KEY`, `api key`. Counters are not:
`input_tokens` is a number that people want to see. When in doubt a name is sensitive: a record that hides too much is a
nuisance, one that shows too much is a leak. Of a name longer than any that people give only both ends are looked at, so
that it costs no more than another.

Must stay true (tests/redaction/test_patterns.py): names are known in every style, counters and rate limits are not
hidden, and every sensitive name holds one of the beginnings that patterns.py looks for.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_plus

_MAX_DECODINGS: Final = 3
_END_LETTERS: Final = 1000
_COMMON_LETTERS: Final = 64
"""Names that are not longer come again and again, and are judged once."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME: Final = re.compile(
    r"secret|pass[^a-z0-9]?(?:word|wd|phrase|code)|pwd|jwt|bearer|credential|authori[sz]ation|cookie"
    r"|(?:api|access|private|signing|encryption|auth|refresh|master|service|subscription|ssh|shared|account|storage"
    r"|client|session|host|deploy|license)[^a-z0-9]?(?:key|tokens)"
    r"|token(?!s|i[sz]|[^a-z]?(?:count|limit|usage|budget|type|detail|estimate|expir|id|index))"
)
_SECRET_HEADER: Final = re.compile(
    r"key|secret|password|credential|auth(?!or(?:$|[^i]|i[^sz]))|cookie|signature|session|[cx]srf"
)
_PARAMETER_WORDS: Final = frozenset({"key", "sig", "signature", "auth", "session", "sid", "pass", "pw"})


def is_secret_name(name: str) -> bool:
    """Whether what stands under this JSON key is nobody's business."""
    return _judge_common_name(name) if len(name) <= _COMMON_LETTERS else _judge_name(_shorten(name))


def is_secret_header(name: str) -> bool:
    """Whether a header's value is nobody's business. The tokens that a rate limit counts are everybody's."""
    squashed = _shorten(name).lower().replace("-", "").replace("_", "")
    if "ratelimit" in squashed:
        squashed = squashed.replace("tokens", "")
    is_token = "token" in squashed and "ratelimit" not in squashed
    return is_token or is_secret_name(squashed) or _SECRET_HEADER.search(squashed) is not None


def is_secret_parameter(name: str) -> bool:
    """Whether a query parameter's value is nobody's business. In a query a `key` is one, and a `code` opens doors."""
    plain = decode(_shorten(name))
    words = re.split(r"[^a-z]+", _part_words(plain))
    return is_secret_name(plain) or words == ["code"] or not _PARAMETER_WORDS.isdisjoint(words)


def decode(text: str) -> str:
    """What the percent signs of an address stand for, up to three deep."""
    for _ in range(_MAX_DECODINGS):
        text = unquote_plus(text)
    return text


def _judge_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name.lower()) or _SECRET_NAME.search(_part_words(name)))


_judge_common_name: Final = lru_cache(maxsize=4096)(_judge_name)


def _part_words(name: str) -> str:
    return _HUMP.sub("_", name).lower()


def _shorten(name: str) -> str:
    return name if len(name) <= 2 * _END_LETTERS else f"{name[:_END_LETTERS]}\n{name[-_END_LETTERS:]}"
