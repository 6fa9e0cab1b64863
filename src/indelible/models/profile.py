"""What is known of a model by its name: its context window, its price, its abilities.

Context windows and prices come from the `genai-prices` data, which is maintained by hand and current. A model that is
not in it has neither, and everything else works. Loading the data costs a tenth of a second, so it happens once, when
the first model of a provider is looked up. Abilities are our own short table of name patterns, because no data set
lists them.

Must stay true (tests/models/test_profile.py): cached and reasoning tokens are priced as their provider prices them; an
unknown model has no price rather than a wrong one.

The operator's own prices (setting `prices`) come first: a gateway, a discount, a model that the data does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal

import msgspec

from indelible.content import Usage
from indelible.models.protocol import ModelTraits

NANO: Final = 10**9

_THINKS_FIRST: Final = re.compile(
    r"deepseek-r1|deepseek-reasoner|\bqwq\b|qwen3.*thinking|glm-z1|magistral", re.IGNORECASE
)
"""Models whose chat template opens the thinking tag: their text begins inside it (rule 5.6)."""

_RETURNS_REASONING: Final = re.compile(r"deepseek|kimi.*thinking|minimax-m2|glm-4\.[5-9]|glm-5", re.IGNORECASE)
"""Chat Completions models that need their reasoning back while they call tools."""

_CLAUDE_NAME: Final = re.compile(
    r"claude-(?:(?P<family>[a-z]+)-)?(?P<major>\d+)(?:[-.](?P<minor>\d{1,2})(?!\d))?", re.IGNORECASE
)
_THINKING_FAMILIES: Final = frozenset({"fable", "mythos"})
_LATER_THAN_ALL: Final = (99, 0)
_CLAUDE_OUTPUT_TOKENS: Final = (((3, 5), 4096), ((3, 7), 8192), ((4, 5), 32_000))
"""The maximum output tokens of older Claude models: before version 3.5, before 3.7, before 4.5."""

_THINKS_IN_SILENCE: Final = re.compile(r"\bo\d(-mini)?-(pro|deep-research)|gpt-5(\.\d+)?-pro", re.IGNORECASE)
_LONG_SILENCE_S: Final = 1800.0
"""Models that may think for many minutes before their first part."""

_TEXT_ONLY: Final = re.compile(
    r"gpt-3\.5|gpt-4(-0\d|-32k|$)|\bo1-(mini|preview)|\bo3-mini|gpt-oss|claude-(1|2|instant)|deepseek|codestral|mixtral"
    r"|mistral-(7b|nemo|tiny)|ministral|devstral|magistral|\bqwq\b|qwen(?!.*(vl|omni|3\.5))|kimi-k2(?!\.[5-9])"
    r"|glm-4(?!.*v)|glm-5(?!.*v)|minimax-m\d|llama-?[123](?!.*vision)|phi-?[1234](?!.*(vision|multimodal))|command-r",
    re.IGNORECASE,
)
"""Models that reject pictures or cannot see them. Any other model is sent what the user attached."""
_OWN_WIRES: Final = frozenset({"anthropic", "openai"})
_READS_PDFS: Final = re.compile(r"claude|gemini|gpt-|\bo[134]\b|chatgpt", re.IGNORECASE)
"""Models that read PDFs behind compatible servers; few others do."""

Effort = Literal["level", "budget", "none"]


class Profile(ModelTraits, frozen=True, kw_only=True):
    """What is known of one model: its traits, and what its wire format needs. The defaults fit an unknown model.

    max_output_tokens: the maximum length of a reply, for wire formats that require it. returns_reasoning: it needs its
    reasoning back while it calls tools. samples: it accepts sampling parameters such as temperature. always_thinks: its
    thinking cannot be switched off. binds_thinking: it rejects its signed thinking after a changed conversation.
    effort: how to set the thinking effort: by the name of a level, by a token budget, or not at all.
    """

    context_limit: int | None = None
    max_output_tokens: int = 32_000
    returns_reasoning: bool = False
    samples: bool = True
    always_thinks: bool = False
    binds_thinking: bool = False
    effort: Effort = "level"


def find_profile(wire: str, model: str, *, provider_id: str | None) -> Profile:
    """What is known of this model. `provider_id` selects the prices and windows; None if they are unknown."""
    known = Profile(
        price=None if provider_id is None else partial(_price, provider_id, model),
        context_limit=_find_window(provider_id, model),
        silence_timeout_s=_LONG_SILENCE_S if _THINKS_IN_SILENCE.search(model) else 0.0,
        accepts_images=_TEXT_ONLY.search(model) is None,
        accepts_pdfs=_TEXT_ONLY.search(model) is None and (wire in _OWN_WIRES or bool(_READS_PDFS.search(model))),
    )
    if wire == "anthropic":
        return msgspec.structs.replace(known, inline_thinking=False, **_describe_claude(model))
    if wire == "openai":
        return msgspec.structs.replace(known, inline_thinking=False)
    return msgspec.structs.replace(
        known,
        thinks_first=_THINKS_FIRST.search(model) is not None,
        returns_reasoning=_RETURNS_REASONING.search(model) is not None,
    )


def _price(provider_id: str, model: str, usage: Usage) -> int | None:
    """The cost of this usage, in billionths of a dollar; None if the price is unknown."""
    import genai_prices  # noqa: PLC0415  (the import takes a tenth of a second)

    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        priced = genai_prices.calc_price(counted, model, provider_id=provider_id)
    except (LookupError, ValueError):
        return None
    return round(priced.total_price * NANO)


def _describe_claude(model: str) -> dict[str, Any]:
    """The abilities of a Claude model by its version; a name without a version counts as the newest."""
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


def price_by(rates: Sequence[float], usage: Usage) -> int:
    """The cost of this usage, in billionths of a dollar, by dollars per million tokens (setting `prices`)."""
    per_input, per_output = rates[:2]
    per_read = rates[2] if len(rates) > 2 else per_input
    per_write = rates[3] if len(rates) > 3 else per_input
    fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    dollars = fresh * per_input + usage.cache_read_tokens * per_read + usage.cache_write_tokens * per_write
    return round((dollars + usage.output_tokens * per_output) * NANO / 1_000_000)


@lru_cache(maxsize=256)
def _find_window(provider_id: str | None, model: str) -> int | None:
    if provider_id is None:
        return None
    from genai_prices import data_snapshot  # noqa: PLC0415  (the import takes a tenth of a second)

    try:
        _, found = data_snapshot.get_snapshot().find_provider_model(model, None, provider_id, None)
    except LookupError:
        return None
    return found.context_window
