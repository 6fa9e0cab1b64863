"""Call ids and tool names that a provider accepts.

Providers disagree about ids: Anthropic accepts only letters, digits, `_` and `-` and rejects an id
that appears twice in a request; OpenAI accepts almost any character, but some of its models no more
than 40 of them. A history ignores that: it holds ids of other providers, and ids that
one provider reused in every step. So ids are made legal for each prompt, never in the store.

A legal and unused id does not change: some models read meaning into their own ids. Others
change as little as possible, and the first use keeps its id, so that the beginning of a growing
prompt does not change and stays in the provider's cache.

Must stay true (tests/loop/test_any_history.py): every id is legal and none is
given twice. Providers not named here follow OpenAI's rules, which compatible wire formats share.
pair.py decides which result answers which call.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import Final

import msgspec

UNKNOWN_NAME: Final = "unknown_tool"
UNKNOWN_ID: Final = "call"

_ILLEGAL_IN_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


class _Limits(msgspec.Struct, frozen=True):
    illegal_in_id: re.Pattern[str]
    max_id_chars: int
    max_name_chars: int


_ANTHROPIC: Final = _Limits(re.compile(r"[^a-zA-Z0-9_-]"), max_id_chars=sys.maxsize, max_name_chars=128)
_OPENAI: Final = _Limits(re.compile(r"[^!-~]"), max_id_chars=40, max_name_chars=64)


def _limits_of(provider: str) -> _Limits:
    return _ANTHROPIC if provider == "anthropic" else _OPENAI


def make_legal_name(name: str, *, provider: str) -> str:
    """`name` if the provider accepts it, else the nearest legal name."""
    return _ILLEGAL_IN_NAME.sub("_", name)[: _limits_of(provider).max_name_chars] or UNKNOWN_NAME


class CallIds:
    """The call ids of one prompt."""

    def __init__(self, *, provider: str) -> None:
        self._limits = _limits_of(provider)
        self._used: set[str] = set()
        self._copies: Counter[str] = Counter()

    def claim(self, wished: str) -> bool:
        """Reserve `wished` unchanged, if it is legal and free. For ids that may not change."""
        if not wished or wished in self._used or wished != self._make_legal(wished):
            return False
        self._used.add(wished)
        return True

    def give(self, wished: str) -> str:
        """Reserve `wished`, or the nearest id that is legal and free."""
        legal = self._make_legal(wished)
        given = legal
        while given in self._used:
            self._copies[legal] += 1
            ending = f"_{self._copies[legal] + 1}"
            given = legal[: self._limits.max_id_chars - len(ending)] + ending
        self._used.add(given)
        return given

    def _make_legal(self, wished: str) -> str:
        return self._limits.illegal_in_id.sub("_", wished)[: self._limits.max_id_chars] or UNKNOWN_ID
