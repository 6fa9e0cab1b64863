"""What is known of a model by its name: context window, price, abilities."""

from __future__ import annotations

import pytest

from indelible.content import Usage
from indelible.models.profile import NANO, find_profile, price_by

MILLION = 1_000_000


def price(model: str, provider_id: str, **tokens: int) -> float | None:
    """In dollars."""
    compute = find_profile("openai", model, provider_id=provider_id).price
    assert compute is not None
    cost = compute(Usage(**tokens))
    return None if cost is None else cost / 1e9


# Prices in dollars per million tokens, from the providers' own pages.


def test_input_and_output_are_priced() -> None:
    assert price("gpt-4o", "openai", input_tokens=MILLION) == pytest.approx(2.5)
    assert price("gpt-4o", "openai", output_tokens=MILLION) == pytest.approx(10)


def test_cached_input_is_cheaper_and_counted_once() -> None:
    assert price("gpt-4o", "openai", input_tokens=MILLION, cache_read_tokens=MILLION) == pytest.approx(1.25)
    half = price("gpt-4o", "openai", input_tokens=MILLION, cache_read_tokens=MILLION // 2)
    assert half == pytest.approx(1.25 + 0.625)


def test_writing_the_cache_costs_more_at_anthropic() -> None:
    plain = price("claude-haiku-4-5", "anthropic", input_tokens=100_000)
    written = price("claude-haiku-4-5", "anthropic", input_tokens=100_000, cache_write_tokens=100_000)
    read = price("claude-haiku-4-5", "anthropic", input_tokens=100_000, cache_read_tokens=100_000)
    assert plain is not None
    assert written == pytest.approx(plain * 1.25)
    assert read == pytest.approx(plain * 0.1)


def test_reasoning_is_output_and_is_not_charged_twice() -> None:
    thinking = price("o3", "openai", output_tokens=MILLION, reasoning_tokens=MILLION // 2)
    assert thinking == price("o3", "openai", output_tokens=MILLION)


def test_what_nobody_knows_has_no_price_rather_than_a_wrong_one() -> None:
    assert price("gpt-of-next-century", "openai", input_tokens=MILLION) is None
    assert price("gpt-4o", "nobody", input_tokens=MILLION) is None
    assert find_profile("openai", "gpt-4o", provider_id=None).price is None
    assert price("gpt-4o", "openai", input_tokens=10, cache_read_tokens=50) is None  # counters that make no sense


def test_nothing_used_costs_nothing() -> None:
    assert price("gpt-4o", "openai") == 0


@pytest.mark.parametrize(
    ("model", "provider_id", "window"),
    [
        ("claude-sonnet-4-5-20250929", "anthropic", 200_000),
        ("gpt-4o", "openai", 128_000),
        ("gpt-of-next-century", "openai", None),
        ("gpt-4o", None, None),
    ],
)
def test_windows(model: str, provider_id: str | None, window: int | None) -> None:
    assert find_profile("openai", model, provider_id=provider_id).context_limit == window


@pytest.mark.parametrize(
    ("model", "effort", "prefix", "max_output"),
    [
        ("claude-3-haiku-20240307", "none", True, 4096),
        ("claude-3-5-sonnet-20241022", "none", True, 8192),
        ("claude-3-7-sonnet-latest", "budget", True, 32_000),
        ("claude-sonnet-4-20250514", "budget", True, 32_000),
        ("claude-opus-4-1", "budget", True, 32_000),
        ("claude-sonnet-4-5", "budget", True, 64_000),
        ("claude-opus-4-6", "level", False, 64_000),
        ("claude-sonnet-5", "level", False, 64_000),
        ("claude-haiku-5-5-20260901", "level", False, 64_000),
        ("something-new", "level", False, 64_000),
    ],
)
def test_what_a_claude_model_takes_by_its_version(model: str, effort: str, prefix: bool, max_output: int) -> None:
    profile = find_profile("anthropic", model, provider_id=None)
    assert (profile.effort, profile.continues_prefix, profile.max_output_tokens) == (effort, prefix, max_output)
    assert not profile.inline_thinking


@pytest.mark.parametrize(
    ("model", "samples"), [("claude-sonnet-4-5", True), ("claude-opus-4-6", True), ("claude-opus-4-7", False)]
)
def test_newer_claude_models_take_no_temperature(model: str, samples: bool) -> None:
    assert find_profile("anthropic", model, provider_id=None).samples is samples


@pytest.mark.parametrize(
    ("model", "thinks_first", "returns_reasoning"),
    [
        ("deepseek-r1:14b", True, True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", True, True),
        ("qwq", True, False),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", True, False),
        ("qwen3:8b", False, False),
        ("llama-3.3-70b", False, False),
        ("deepseek-chat", False, True),
    ],
)
def test_what_models_of_chat_completions_do(model: str, thinks_first: bool, returns_reasoning: bool) -> None:
    profile = find_profile("openai-chat", model, provider_id=None)
    assert (profile.thinks_first, profile.returns_reasoning) == (thinks_first, returns_reasoning)
    assert profile.inline_thinking


@pytest.mark.parametrize(
    ("rates", "dollars"),
    [([1.0, 10.0], 3.0), ([1.0, 10.0, 0.5], 2.75), ([1.0, 10.0, 0.5, 2.0], 2.95), ([0.0, 0.0], 0.0)],
)
def test_the_operators_price_counts_cached_input_as_it_says(rates: list[float], dollars: float) -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=200_000, cache_read_tokens=500_000, cache_write_tokens=200_000)
    assert price_by(rates, usage) == round(dollars * NANO)
