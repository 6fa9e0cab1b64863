"""What is known of a model by its name: its window, its price, its habits.

Windows and prices are those of the `genai-prices` data, which is kept by hand and current; a model that it does not
know has neither, and everything works without. Loading it takes a tenth of a second, so it is done once, when the
first model of a provider is looked up. Habits are ours: a short table of name patterns, because no data has them.

Must stay true (tests/models/test_profile.py): cached and reasoning tokens are priced as their provider does it; an
unknown model has no price rather than a wrong one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, Literal

import msgspec

from indelible.content import Usage

NANO: Final = 10**9

_THINKS_FIRST: Final = re.compile(
    r"deepseek-r1|deepseek-reasoner|\bqwq\b|qwen3.*thinking|glm-z1|magistral", re.IGNORECASE
)
"""Models whose template opens the thinking for them: their text begins inside it (SPEC 5.6)."""

_RETURNS_REASONING: Final = re.compile(r"deepseek|kimi.*thinking|minimax-m2|glm-4\.[5-9]|glm-5", re.IGNORECASE)
"""Models of Chat Completions that want their reasoning back while they call tools."""

_CLAUDE_NAME: Final = re.compile(
    r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d+)(?:[-.](?P<minor>\d{1,2})(?!\d))?", re.IGNORECASE
)
_THINKING_FAMILIES: Final = frozenset({"fable", "mythos"})
_LATER_THAN_ALL: Final = (99, 0)
_CLAUDE_OUTPUT_TOKENS: Final = (((3, 5), 4096), ((3, 7), 8192), ((4, 5), 32_000))
"""The most that a reply of an older Claude model holds: before version 3.5, before 3.7, before 4.5."""

Effort = Literal["level", "budget", "none"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one model. The defaults are what holds of a model that nobody knows.

    provider_id, model: under which name its prices are found. max_output_tokens: the most a reply may hold, for wires
    that must be told. returns_reasoning: it wants its reasoning back while it calls tools. continues_prefix: it goes on
    with a reply that is the last message. samples: it takes a temperature and the like. always_thinks: that can not be
    switched off. binds_thinking: its signed thinking is refused behind a conversation that has changed. chains: whether
    the user wants chain mode (SPEC §4) for it. effort: how it is told how hard to think: by a level's name, by a budget
    of tokens, or not at all.
    """

    provider_id: str | None = None
    model: str = ""
    context_limit: int | None = None
    max_output_tokens: int = 32_000
    inline_thinking: bool = True
    thinks_first: bool = False
    continues_prefix: bool = False
    returns_reasoning: bool = False
    samples: bool = True
    always_thinks: bool = False
    binds_thinking: bool = False
    chains: bool = False
    effort: Effort = "level"

    def price(self, usage: Usage) -> int | None:
        """What this usage costs, in billionths of a dollar; None if the price is not known."""
        if self.provider_id is None:
            return None
        import genai_prices  # noqa: PLC0415  (it takes a tenth of a second)

        counted = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        try:
            priced = genai_prices.calc_price(counted, self.model, provider_id=self.provider_id)
        except (LookupError, ValueError):
            return None
        return round(priced.total_price * NANO)


def find_profile(wire: str, model: str, *, provider_id: str | None) -> Profile:
    """What is known of this model. `provider_id` is whose prices and windows hold; None if nobody's are known."""
    known = Profile(provider_id=provider_id, model=model, context_limit=_find_window(provider_id, model))
    if wire == "anthropic":
        return msgspec.structs.replace(known, inline_thinking=False, **_describe_claude(model))
    if wire == "openai":
        return msgspec.structs.replace(known, inline_thinking=False)
    return msgspec.structs.replace(
        known,
        thinks_first=_THINKS_FIRST.search(model) is not None,
        returns_reasoning=_RETURNS_REASONING.search(model) is not None,
    )


def _describe_claude(model: str) -> dict[str, Any]:
    """The habits of a Claude model by its version; one without a version is taken for a new one."""
    name = _CLAUDE_NAME.search(model)
    version = (int(name["major"]), int(name["minor"] or 0)) if name else _LATER_THAN_ALL
    family = (name["family"] or "").lower() if name else ""
    limits = [tokens for before, tokens in _CLAUDE_OUTPUT_TOKENS if version < before]
    effort: Effort = "none" if version < (3, 7) else "budget" if version < (4, 6) else "level"
    return {
        "max_output_tokens": limits[0] if limits else 64_000,
        "continues_prefix": version < (4, 6),
        "samples": version < (4, 7),
        "always_thinks": family in _THINKING_FAMILIES or (family == "opus" and version >= (5, 5)),
        "binds_thinking": version >= (5, 1),
        "effort": effort,
    }


@lru_cache(maxsize=256)
def _find_window(provider_id: str | None, model: str) -> int | None:
    if provider_id is None:
        return None
    from genai_prices import data_snapshot  # noqa: PLC0415  (it takes a tenth of a second)

    try:
        _, found = data_snapshot.get_snapshot().find_provider_model(model, None, provider_id, None)
    except LookupError:
        return None
    return found.context_window
