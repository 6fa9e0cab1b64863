"""Settings: which place wins, what a wrong value is answered with, and that the docs are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from indelible.files.store import FileLimits
from indelible.loop import RetryPolicy, TurnOptions
from indelible.settings import ENV_PREFIX, FILE, BadSettings, Settings, describe_allowed, load_settings
from indelible.store.database.migrate import LEASE_TIMEOUT_S
from indelible.store.journal.writer import Journal
from indelible.store.payloads import StoreLimits
from indelible.tools.run import ToolLimits

DOCS = Path(__file__).parent.parent / "docs" / "settings.md"
UNITS_OR_COUNTS = re.compile(
    r".*_s|max_.*|.*_max|.*_max_(attempts|bytes|characters|chats|connections|feeds|files|file_bytes)|.*_max_pending_bytes|.*_concurrency"
)
WITHOUT_UNIT = {
    "completions_on_disconnect",
    "files",
    "file_types",
    "log_format",
    "log_level",
    "access_log",
    "model",
    "database",
    "redis_url",
    "host",
    "port",
    "token",
    "hosts",
    "base_path",
    "cors_origins",
    "trusted_proxies",
    "proxy_user_header",
    "oidc_issuer",
    "oidc_client_id",
    "oidc_client_secret",
    "oidc_user_claim",
    "oidc_create_users",
    "user_max_tokens_per_day",
    "user_max_usd_per_day",
    "compact_at",
    "auto_titles",
    "system",
    "auto_archive_days",
    "models",
    "chain_models",
    "debug",
    "prices",
}
ADDRESSES_AND_KEYS = {f"{name}_{what}" for name in ("anthropic", "openai") for what in ("api_key", "base_url")}


def find_default(made: type, argument: str) -> object:
    return inspect.signature(made).parameters[argument].default


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without a file, and an environment without our variables."""
    monkeypatch.chdir(tmp_path)
    for name in Settings.model_fields:
        monkeypatch.delenv(ENV_PREFIX + name.upper(), raising=False)
    return tmp_path


def read_problem(**given: object) -> str:
    with pytest.raises(BadSettings) as caught:
        load_settings(**given)
    return str(caught.value)


def test_prices_are_tables_or_pairs_with_slashes(monkeypatch: pytest.MonkeyPatch, empty_place: Path) -> None:
    monkeypatch.setenv("INDELIBLE_PRICES", "ollama:*=0/0, openai:gpt-5@https://x.test/v1=1.25/10/0.125")
    assert load_settings().prices == {"ollama:*": [0, 0], "openai:gpt-5@https://x.test/v1": [1.25, 10, 0.125]}
    monkeypatch.delenv("INDELIBLE_PRICES")
    (empty_place / FILE).write_text('[prices]\n"ollama:*" = [1, 2.5]\n')
    assert load_settings().prices == {"ollama:*": [1, 2.5]}
    for wrong in ({"a": [1]}, {"a": [1, 2, 3, 4, 5]}, {"a": [-1, 2]}, {"a": ["x", 2]}, "a=1", "a"):
        assert "prices = " in read_problem(prices=wrong)


def test_without_anything_set_the_defaults_hold() -> None:
    """They are on the page of the settings, too (test_the_documentation_has_every_setting_as_it_is)."""
    assert load_settings().model_dump() == {name: field.default for name, field in Settings.model_fields.items()}


def test_an_argument_beats_the_environment_which_beats_the_file(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_place / FILE).write_text("max_steps = 3\ntool_concurrency = 3\nretry_max_attempts = 3\n")
    monkeypatch.setenv("INDELIBLE_MAX_STEPS", "2")
    monkeypatch.setenv("INDELIBLE_TOOL_CONCURRENCY", "2")

    settings = load_settings(max_steps=1)

    assert (settings.max_steps, settings.tool_concurrency, settings.retry_max_attempts) == (1, 2, 3)


def test_none_as_an_argument_means_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MODEL", "from-the-environment")

    assert load_settings(model=None).model == "from-the-environment"


DEFAULTS_BELOW: dict[str, object] = {
    "queue_max": StoreLimits().queued,
    "message_max_bytes": StoreLimits().message_bytes,
    "system_max_bytes": StoreLimits().system_bytes,
    "parameters_max_bytes": StoreLimits().parameters_bytes,
    "tools_max_bytes": StoreLimits().tools_bytes,
    "tool_result_max_bytes": StoreLimits().tool_result_bytes,
    "file_max_bytes": FileLimits().file_bytes,
    "user_max_files": FileLimits().user_files,
    "user_max_file_bytes": FileLimits().user_bytes,
    "retry_base_s": RetryPolicy().base_s,
    "retry_max_delay_s": RetryPolicy().max_delay_s,
    "retry_after_cap_s": RetryPolicy().retry_after_cap_s,
    "retry_max_attempts": RetryPolicy().max_attempts,
    "retry_budget_s": RetryPolicy().budget_s,
    "tool_concurrency": ToolLimits().concurrency,
    "tool_timeout_s": ToolLimits().timeout_s,
    "tool_grace_s": ToolLimits().grace_s,
    "max_steps": TurnOptions().max_steps,
    "silence_timeout_s": TurnOptions().silence_timeout_s,
    "keep_alive_timeout_s": TurnOptions().keep_alive_timeout_s,
    "reply_max_characters": TurnOptions().reply_max_characters,
    "journal_interval_s": find_default(Journal, "interval_s"),
    "journal_flush_max_bytes": find_default(Journal, "flush_bytes"),
    "journal_max_pending_bytes": find_default(Journal, "limit_bytes"),
    "lease_timeout_s": LEASE_TIMEOUT_S,
}
"""What a part of the product assumes when it is used without settings, as in a test or in somebody's own program."""


@pytest.mark.parametrize("name", DEFAULTS_BELOW)
def test_without_settings_a_part_has_the_default_of_the_setting(name: str) -> None:
    assert DEFAULTS_BELOW[name] == Settings.model_fields[name].default


def test_a_worker_may_miss_a_heartbeat_before_it_is_taken_for_dead() -> None:
    assert load_settings(heartbeat_interval_s=0.2, lease_timeout_s=0.8).lease_timeout_s == 0.8
    assert "at least twice heartbeat_interval_s (5)" in read_problem(heartbeat_interval_s=5)


def test_settings_cannot_be_changed_after_the_start() -> None:
    settings = load_settings()

    with pytest.raises(ValidationError):
        settings.max_steps = 1


def test_a_bad_variable_is_named_with_its_value_and_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MAX_STEPS", "many")

    assert read_problem() == (
        "max_steps = 'many', from the environment variable INDELIBLE_MAX_STEPS: "
        "it must be a whole number, 1 or more (default: 200)."
    )


def test_a_bad_value_in_the_file_is_named_with_the_file(empty_place: Path) -> None:
    (empty_place / FILE).write_text("compact_at = 80\n")

    assert read_problem() == (
        f"compact_at = 80, from {empty_place / FILE}: it must be a number greater than 0 and at most 1 (default: 0.8)."
    )


def test_a_bad_argument_is_named_as_one() -> None:
    assert "tool_timeout_s = 0, from an argument: " in read_problem(tool_timeout_s=0)


def test_every_problem_is_reported_at_once(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_place / FILE).write_text('model = ""\n')
    monkeypatch.setenv("INDELIBLE_RETRY_BUDGET_S", "-1")

    told = read_problem(tool_grace_s="soon").splitlines()

    assert sorted(line.split(" ")[0] for line in told) == ["model", "retry_budget_s", "tool_grace_s"]


def test_a_misspelt_key_in_the_file_is_an_error_with_a_hint(empty_place: Path) -> None:
    (empty_place / FILE).write_text("max_step = 3\n")

    assert read_problem() == f"max_step, from {empty_place / FILE}: unknown setting. Did you mean max_steps?"


def test_a_directory_in_place_of_the_file_is_an_error_that_names_it(empty_place: Path) -> None:
    (empty_place / FILE).mkdir()

    assert read_problem() == f"{empty_place / FILE} can't be read: it is a directory, not a file."


@pytest.mark.parametrize("content", [b"max_steps = = 3\n", b'model = "\xff"\n'])
def test_a_file_that_is_not_toml_is_an_error_that_names_it(empty_place: Path, content: bytes) -> None:
    (empty_place / FILE).write_bytes(content)

    assert read_problem().startswith(f"{empty_place / FILE} can't be read: ")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if field.annotation is float])
def test_no_number_may_be_endless(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_PREFIX + name.upper(), value)

    assert f"{name} = '{value}'" in read_problem()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_a_meaning_a_rule_and_a_unit_in_its_name(name: str) -> None:
    field = Settings.model_fields[name]

    assert field.description
    assert describe_allowed(field)
    assert not field.is_required()
    assert name in WITHOUT_UNIT | ADDRESSES_AND_KEYS | {"base_urls"} or UNITS_OR_COUNTS.fullmatch(name)


def test_the_documentation_has_every_setting_as_it_is() -> None:
    documented = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]

    assert documented == [
        f"| `{name}` | `{field.default}` | {describe_allowed(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]


# --- lists, tables and secrets -----------------------------------------------------------


def test_the_environment_has_lists_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MODELS", "openai:gpt-5.1, anthropic:claude-sonnet-4-5,")

    assert load_settings().models == ["openai:gpt-5.1", "anthropic:claude-sonnet-4-5"]


def test_the_environment_has_addresses_with_the_variables_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_BASE_URLS", "http://localhost:11434/v1, https://x.test/v1=X_KEY")

    assert load_settings().base_urls == {"http://localhost:11434/v1": "", "https://x.test/v1": "X_KEY"}


def test_the_file_has_lists_and_tables(empty_place: Path) -> None:
    (empty_place / FILE).write_text('models = ["a", "b"]\n[base_urls]\n"https://x.test/v1" = "X_KEY"\n')

    settings = load_settings()
    assert (settings.models, settings.base_urls) == (["a", "b"], {"https://x.test/v1": "X_KEY"})


def test_an_empty_name_in_a_list_is_a_mistake(empty_place: Path) -> None:
    (empty_place / FILE).write_text('models = ["a", ""]\n')

    assert "models = " in read_problem()


@pytest.mark.parametrize("name", ["token", "anthropic_api_key", "openai_api_key"])
def test_a_secret_is_never_shown(name: str, empty_place: Path) -> None:
    assert "canary" not in repr(load_settings(**{name: "canary"}))

    (empty_place / FILE).write_text(f'{name} = ["canary"]\n')
    assert "canary" not in read_problem()


def test_a_key_in_the_place_of_its_variable_is_refused_and_not_shown() -> None:
    problem = read_problem(base_urls={"https://x.test/v1": "sk-live-canary"})
    assert "base_urls = (not shown)" in problem
    assert "canary" not in problem
