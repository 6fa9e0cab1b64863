"""Models by name: what is found, what is refused and with which message, and where keys go (and never go)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from indelible.content import Usage
from indelible.errors import ModelFailed
from indelible.models.catalog import PROVIDERS, Catalog, check_address
from indelible.models.http.http_model import HttpModel
from indelible.models.protocol import traits_of
from indelible.models.providers.demo import DemoModel
from indelible.settings import load_settings

KEYS = {provider.key: f"key-of-{name}" for name, provider in PROVIDERS.items() if provider.key is not None}
LOCAL = "http://localhost:8000/v1"


def find(name: str, environment: Mapping[str, str] = KEYS, **settings: Any) -> HttpModel:
    model = Catalog(load_settings(**settings), environment=environment).find(name)
    assert isinstance(model, HttpModel)
    return model


def refuse(name: str, environment: Mapping[str, str] = KEYS, **settings: Any) -> ModelFailed:
    with pytest.raises(ModelFailed) as caught:
        Catalog(load_settings(**settings), environment=environment).find(name)
    return caught.value


def read_key(model: HttpModel) -> str | None:
    """What would be sent as a key."""
    headers = model.headers
    return headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ") or None


# --- what is found ---


def test_the_demo_needs_nothing() -> None:
    assert isinstance(Catalog(load_settings(), environment={}).find("demo"), DemoModel)


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_is_asked_at_its_own_address_with_its_own_key(name: str) -> None:
    model = find(f"{name}:some-model")
    assert (model.provider, model.name) == (name, "some-model")
    assert model.base_url == PROVIDERS[name].address
    assert read_key(model) == KEYS.get(PROVIDERS[name].key or "")


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_has_a_row_in_the_documentation(name: str) -> None:
    page = Path(__file__).parents[2].joinpath("docs/models.md").read_text("utf-8")
    assert f"| `{name}:NAME` |" in page


def test_a_model_name_may_hold_a_colon_a_slash_and_an_at() -> None:
    assert find("openrouter:anthropic/claude-sonnet-4.5:thinking").name == "anthropic/claude-sonnet-4.5:thinking"
    assert find("openai-chat:claude@20250101").name == "claude@20250101"
    assert find(f"openai-chat:claude@2025@{LOCAL}", base_urls={LOCAL: ""}).name == "claude@2025"


def price(model: HttpModel, usage: Usage) -> int | None:
    return None if model.traits.price is None else model.traits.price(usage)


def test_windows_and_prices_are_known_where_the_provider_itself_is_asked() -> None:
    model = find("anthropic:claude-sonnet-4-5")
    assert model.context_limit is not None
    assert model.context_limit >= 200_000
    usage = Usage(input_tokens=1000, output_tokens=100, cache_read_tokens=500, cache_write_tokens=100)
    assert price(model, usage) == 400 * 3000 + 500 * 300 + 100 * 3750 + 100 * 15000


def test_elsewhere_the_same_name_may_be_anything() -> None:
    model = find(f"openai-chat:gpt-4o@{LOCAL}", base_urls={LOCAL: ""})
    assert model.context_limit is None
    assert price(model, Usage(input_tokens=1000)) is None
    assert model.provider == "localhost:8000"


def test_an_unknown_model_of_a_known_provider_has_neither_window_nor_price() -> None:
    model = find("openai:brand-new")
    assert model.context_limit is None
    assert price(model, Usage(input_tokens=1000)) is None


def test_habits_are_known_by_name() -> None:
    assert not find("anthropic:claude-sonnet-4-5").traits.inline_thinking
    assert find("anthropic:claude-sonnet-4-5").traits.continues_prefix
    assert not find("anthropic:claude-opus-4-6").traits.continues_prefix
    assert find("groq:deepseek-r1-distill-llama-70b").traits.thinks_first
    assert not find("groq:llama-3.3-70b-versatile").traits.thinks_first


def test_chain_mode_is_for_the_models_that_the_setting_names() -> None:
    assert find("openai:gpt-5.1", chain_models=["openai:gpt-5.1"]).traits.chains
    assert not find("openai:gpt-5.1-mini", chain_models=["openai:gpt-5.1"]).traits.chains


def test_what_is_offered_is_the_settings_own_model_first_and_each_once() -> None:
    settings = load_settings(model="openai:gpt-5.1", models=["anthropic:x", "openai:gpt-5.1"])
    assert Catalog(settings).list_names() == ["openai:gpt-5.1", "anthropic:x", "demo"]


# --- addresses ---


@pytest.mark.parametrize("name", ["openai", "openai-chat", "anthropic"])
def test_the_environment_moves_a_provider_and_its_key_with_it(name: str) -> None:
    variable = "ANTHROPIC_BASE_URL" if name == "anthropic" else "OPENAI_BASE_URL"
    model = find(f"{name}:m", {**KEYS, variable: "https://gateway.test/v1/"})
    assert model.base_url == "https://gateway.test/v1"
    assert read_key(model) == KEYS[PROVIDERS[name].key or ""]
    assert price(model, Usage(input_tokens=1)) is None


def test_a_setting_wins_over_the_environment() -> None:
    environment = {"OPENAI_BASE_URL": "https://environment.test", "OPENAI_API_KEY": "environment"}
    model = find("openai:m", environment, openai_base_url="https://setting.test", openai_api_key="setting")
    assert (model.base_url, read_key(model)) == ("https://setting.test", "setting")


def test_a_gateway_may_need_no_key() -> None:
    assert read_key(find("openai-chat:m", {"OPENAI_BASE_URL": LOCAL})) is None


def test_an_address_that_nobody_allowed_is_refused() -> None:
    failure = refuse(f"openai-chat:m@{LOCAL}")
    assert failure.kind == "config"
    assert LOCAL in failure.message
    assert "base_urls" in failure.message


@pytest.mark.parametrize("written", [LOCAL, f"{LOCAL}/", "HTTP://LOCALHOST:8000/v1"])
def test_an_address_that_is_listed_is_taken_however_it_is_written(written: str) -> None:
    assert find(f"openai-chat:m@{written}", base_urls={written: ""}).base_url == LOCAL


def test_whoever_runs_it_may_name_any_address_as_its_own_model() -> None:
    name = f"openai-chat:m@{LOCAL}"
    assert find(name, model=name).base_url == LOCAL
    assert find(name, models=[name]).base_url == LOCAL
    assert refuse(f"openai-chat:other@{LOCAL}", model=name).kind == "config"


@pytest.mark.parametrize(
    "address",
    [
        "https://api.openai.com@evil.test/v1",
        "https://user:password@host.test/v1",
        "https://host.test/v1?key=1",
        "https://host.test/v1#fragment",
        "https:///v1",
        "https://host.test\\@evil.test/v1",
        "https://host.test/v1 x",
        "https://host.test:99999/v1",
        "ftp://host.test",
        "",
    ],
)
def test_an_odd_address_is_refused_wherever_it_stands(address: str) -> None:
    with pytest.raises(ModelFailed, match="address"):
        check_address(address)


# --- keys ---


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.test/v1",
        "http://api.openai.com/v1",  # not encrypted
        "https://api.openai.com:8443/v1",
        "https://api.openai.com.evil.test/v1",
        "https://evil.test/api.openai.com/v1",
    ],
)
@pytest.mark.parametrize("wire", ["openai", "openai-chat"])
def test_a_key_of_the_environment_goes_to_no_other_host(wire: str, address: str) -> None:
    name = f"{wire}:m@{address}"
    assert read_key(find(name, base_urls={address: ""})) is None
    assert read_key(find(name, model=name)) is None
    assert read_key(find(name, model=name, openai_api_key="setting")) is None


@pytest.mark.parametrize(
    "address", ["https://api.openai.com/v1", "https://api.openai.com/v2", "https://API.openai.com"]
)
def test_a_key_goes_to_its_own_host_also_by_address(address: str) -> None:
    assert read_key(find(f"openai:m@{address}", base_urls={address: ""})) == KEYS["OPENAI_API_KEY"]


def test_once_a_provider_was_moved_its_key_does_not_go_to_its_old_place() -> None:
    environment = {**KEYS, "OPENAI_BASE_URL": "https://gateway.test/v1"}
    failure = refuse("openai:m@https://api.openai.com/v1", environment, base_urls={"https://api.openai.com/v1": ""})
    assert failure.kind == "missing_key"


def test_an_address_may_have_a_key_of_its_own() -> None:
    addresses = {"https://x.test/v1": "X_KEY"}
    model = find("openai-chat:m@https://x.test/v1", {**KEYS, "X_KEY": "key-of-x"}, base_urls=addresses)
    assert read_key(model) == "key-of-x"

    failure = refuse("openai-chat:m@https://x.test/v1", KEYS, base_urls=addresses)
    assert failure.kind == "missing_key"
    assert "X_KEY" in failure.message


@pytest.mark.parametrize("name", [name for name, provider in PROVIDERS.items() if provider.key is not None])
@pytest.mark.parametrize("set_to", [None, "", "  "])
def test_a_missing_key_says_what_to_set(name: str, set_to: str | None) -> None:
    variable = PROVIDERS[name].key
    assert variable is not None
    failure = refuse(f"{name}:m", {} if set_to is None else {variable: set_to})
    assert failure.kind == "missing_key"
    assert not failure.retryable
    assert variable in failure.message


def test_no_failure_shows_a_key() -> None:
    environment = {"OPENAI_API_KEY": "sk-canary", "OPENAI_BASE_URL": "not an address"}
    assert "canary" not in str(vars(refuse("openai:m", environment)))


def test_a_key_with_a_line_end_behind_it_is_the_key() -> None:
    assert read_key(find("openai:m", {"OPENAI_API_KEY": " sk-x\n"})) == "sk-x"
    addresses = {"https://x.test/v1": "X_KEY"}
    assert read_key(find("openai-chat:m@https://x.test/v1", {"X_KEY": "x\n"}, base_urls=addresses)) == "x"


@pytest.mark.parametrize("key", ["sk-a\nsk-b", "sk-\u00e4", "sk-\x00"])
def test_a_key_that_no_header_takes_is_reported_without_being_shown(key: str) -> None:
    failure = refuse("openai:m", {"OPENAI_API_KEY": key})
    assert failure.kind == "config"
    assert "sk-" not in str(vars(failure))


def test_the_same_name_elsewhere_is_another_model() -> None:
    """What one place signed or stored is nothing to the other (rule 4.1, 5.4)."""
    for wire in ("openai", "anthropic"):
        here, elsewhere = find(f"{wire}:m"), find(f"{wire}:m@{LOCAL}", base_urls={LOCAL: ""})
        assert (here.provider, here.name) != (elsewhere.provider, elsewhere.name)
        assert elsewhere.name == "m@localhost:8000"


# --- names that nobody knows ---


@pytest.mark.parametrize(
    "name", ["", "gpt-5", "nobody:m", "openai:", "openai", ":m", "openai:@http://x.test", "demo:x", "openai: "]
)
def test_an_unknown_name_says_which_there_are(name: str) -> None:
    failure = refuse(name, base_urls={"http://x.test": ""})
    assert failure.kind == "config"
    for known in PROVIDERS:
        assert known in failure.message


def test_a_wrong_address_in_the_settings_is_reported_as_such() -> None:
    failure = refuse(f"openai-chat:m@{LOCAL}", base_urls={"nowhere": "", LOCAL: ""})
    assert "In the setting base_urls" in failure.message


def test_a_near_miss_is_pointed_out() -> None:
    assert "Did you mean anthropic:NAME?" in refuse("antropic:claude").message


# --- what is refused where it is given ---


@pytest.mark.parametrize("name", ["demo", "openai:gpt-5.1", "ollama:llama3", f"openai-chat:m@{LOCAL}"])
def test_a_name_is_checked_without_a_key(name: str) -> None:
    Catalog(load_settings(base_urls={LOCAL: ""}), environment={}).check(name)


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", "nobody:m", "openai:a b", "openai:m@http://elsewhere/v1"])
def test_a_name_that_no_model_can_have_is_refused(name: str) -> None:
    with pytest.raises(ModelFailed) as caught:
        Catalog(load_settings(), environment={}).check(name)
    assert caught.value.kind == "config"


OWN_PRICES = {"ollama:free": [0.0, 0.0], "ollama:*": [1.0, 2.0], "openai:*@https://gateway.test/*": [3.0, 4.0]}


@pytest.mark.parametrize(
    ("name", "nano"),
    [
        ("ollama:llama3", 3_000),
        ("ollama:free", 0),
        ("openai:gpt-5@https://gateway.test/v1", 7_000),
        ("openai:gpt-5", None),
    ],
)
def test_the_operators_prices_come_first_by_name_or_pattern(name: str, nano: int | None) -> None:
    settings = load_settings(
        models=[name], openai_api_key="k", base_urls={"https://gateway.test/v1": ""}, prices=OWN_PRICES
    )
    price = traits_of(Catalog(settings, environment={}).find(name)).price
    assert price is not None
    cost = price(Usage(input_tokens=1, output_tokens=1))
    assert cost == nano or (nano is None and cost not in (None, 3_000, 7_000))


def test_models_whose_price_nobody_knows_are_listed_whether_their_key_is_here_or_not() -> None:
    names = ["openai:gpt-5", "openai:no-such-model", "openai:gpt-5@https://gateway.test/v1", "ollama:llama3", "demo"]
    settings = load_settings(model="groq:nothing", models=[*names, "own"], prices={"ollama:*": [0.0, 0.0]})
    unpriced = ["groq:nothing", "openai:no-such-model", "openai:gpt-5@https://gateway.test/v1"]
    assert Catalog(settings, environment={}).list_unpriced() == unpriced
    moved = load_settings(models=["openai:gpt-5"], openai_base_url="https://gateway.test/v1")
    assert Catalog(moved, environment={}).list_unpriced() == ["openai:gpt-5"]


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("demo", True),
        ("openai:gpt-5", True),
        ("openai:gpt-5@https://gateway.test/v1", False),
        ("openai:no-such-model", False),
        ("nobody:nothing", False),
        ("openai:gpt-5@https://user:password@gateway.test", False),
    ],
)
def test_a_window_is_found_without_a_key_and_is_the_one_that_the_model_has(name: str, is_known: bool) -> None:
    assert (Catalog(load_settings(), environment={}).find_window(name) is not None) == is_known
    if is_known:
        with_key = Catalog(load_settings(openai_api_key="k"), environment={})
        assert with_key.find_window(name) == with_key.find(name).context_limit


@pytest.mark.parametrize("start", ["", "openai:", "openai:x@https://"])
def test_a_name_without_end_is_refused_before_anybody_looks_at_it(start: str) -> None:
    catalog = Catalog(load_settings(), environment={})
    for check in (catalog.check, catalog.check_for_user, catalog.find):
        with pytest.raises(ModelFailed, match="at most 1,000 characters"):
            check(start + "x" * 1_000_000)
