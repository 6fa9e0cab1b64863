"""The settings: where they come from, and which values are allowed.

Each setting has a meaning, a unit in its name, a rule and a default, all in one line of
`Settings`; docs/settings.md repeats them for people. The first place that has a
value wins:

    1. an argument of `load_settings` (the command line passes its options here)
    2. the environment: INDELIBLE_MAX_STEPS
    3. `indelible.toml` in the working directory: max_steps
    4. the default

`load_settings` is the entry point. A user who set something wrong should not have to read a
traceback of ours, so it raises `BadSettings`, which names every wrong setting, the place it came
from and what is allowed there. A key in the file that no setting has is an error as well: a
misspelt limit that is ignored in silence is worse than one that stops the start. (Variables
that name no setting are left alone: the environment is shared.)

The rule and its sentence are written together (`Allowed`), so that what the error says is
what is checked.

Must stay true (tests/test_settings.py): the order of places above; docs/settings.md holds every
setting with its rule, default and meaning.
"""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

FILE: Final = "indelible.toml"
ENV_PREFIX: Final = "INDELIBLE_"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadSettings(ValueError):
    """A setting has an invalid value. The message is for the user."""


class Allowed(NamedTuple):
    """A type's rule in words, for errors and docs."""

    sentence: str


def _split_names(value: object) -> object:
    """The environment has no lists."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _split_addresses(value: object) -> object:
    """The environment has no tables. An address without a variable needs no key."""
    if not isinstance(value, str):
        return value
    return {address: name for address, _, name in (pair.strip().partition("=") for pair in value.split(",")) if address}


def _split_prices(value: object) -> object:
    """The environment has no tables."""
    if not isinstance(value, str):
        return value
    pairs = (pair.strip().rpartition("=") for pair in value.split(",") if pair.strip())
    return {name.strip(): rates.split("/") for name, _, rates in pairs}


def _check_variables(addresses: dict[str, str]) -> dict[str, str]:
    """A key written where the name of its variable belongs must not be shown."""
    if any(name and not _VARIABLE.fullmatch(name) for name in addresses.values()):
        raise ValueError("not the name of a variable")
    return addresses


Duration = Annotated[float, Field(gt=0, allow_inf_nan=False), Allowed("a number of seconds greater than 0")]
DurationOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False), Allowed("a number of seconds, 0 or more")]
Days = Annotated[float, Field(ge=0, allow_inf_nan=False, le=36_500), Allowed("a number of days, 0 or more")]
Count = Annotated[int, Field(ge=1), Allowed("a whole number, 1 or more")]
CountOrNone = Annotated[int, Field(ge=0), Allowed("a whole number, 0 or more")]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False), Allowed("a number, 0 or more")]
Share = Annotated[float, Field(gt=0, le=1), Allowed("a number greater than 0 and at most 1")]
Name = Annotated[str, Field(min_length=1), Allowed("a name, not empty")]
Port = Annotated[int, Field(ge=0, le=65535), Allowed("a whole number from 0 to 65535")]
Text = Annotated[str, Allowed("any text")]
Secret = Annotated[str, Field(repr=False), Allowed("any text; it is never shown")]
Names = Annotated[
    list[Name], NoDecode, BeforeValidator(_split_names), Allowed("a list of names; in the environment with commas")
]
Addresses = Annotated[
    dict[str, str],
    NoDecode,
    BeforeValidator(_split_addresses),
    AfterValidator(_check_variables),
    Allowed("a table of addresses, each with the name of the variable that holds its key; `address=NAME,…`"),
]
Prices = Annotated[
    dict[Name, Annotated[list[Amount], Field(min_length=2, max_length=4)]],
    NoDecode,
    BeforeValidator(_split_prices),
    Allowed("a table of names or patterns, each with two to four numbers, 0 or more; `pattern=1.25/10,…`"),
]
Debug = Annotated[Literal["off", "errors", "all"], Allowed("off, errors or all")]
OnDisconnect = Annotated[Literal["finish", "stop"], Allowed("finish or stop")]
LogFormatName = Annotated[Literal["text", "json"], Allowed("text or json")]
LogLevelName = Annotated[Literal["debug", "info", "warning", "error"], Allowed("debug, info, warning or error")]
Switch = Annotated[bool, Allowed("true or false")]
Files = Annotated[
    str,
    Field(pattern=r"^(database|directory:.+|s3://.+)$"),
    Allowed("`database`, `directory:/path` or `s3://bucket/prefix?endpoint=URL&region=NAME`"),
]
Database = Annotated[str, Field(min_length=1), Allowed("a file or a URL, not empty")]


class Settings(BaseSettings):
    """See the module header. Frozen: the settings do not change while the process runs."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, toml_file=FILE, extra="forbid", frozen=True)

    model: Name = Field(
        "demo",
        description="The default model: `demo`, which needs no key, or `provider:NAME` as in docs/models.md.",
    )
    models: Names = Field([], description="Further models that users can choose. No others may use the API keys.")
    chain_models: Names = Field(
        [], description="Models that keep the conversation at the provider (`previous_response_id`)."
    )
    anthropic_api_key: Secret = Field("", description="The API key for Anthropic. Default: ANTHROPIC_API_KEY.")
    anthropic_base_url: Text = Field("", description="The base URL of Anthropic's API. Default: ANTHROPIC_BASE_URL.")
    openai_api_key: Secret = Field("", description="The API key for OpenAI. Default: OPENAI_API_KEY.")
    openai_base_url: Text = Field("", description="The base URL of OpenAI's API. Default: OPENAI_BASE_URL.")
    base_urls: Addresses = Field(
        {}, repr=False, description="Further base URLs that a chat or a message may use (`provider:NAME@address`)."
    )
    prices: Prices = Field(
        {},
        description="Prices of models, by name or pattern (`ollama:*`): dollars per million tokens of input and "
        "output, then of cached input and of written cache.",
    )
    database: Database = Field(
        "indelible.db", description="Where chats are stored: a SQLite file, or `postgresql://user:password@host/name`."
    )
    redis_url: Secret = Field(
        "",
        description="Redis or Valkey, which carries the parts of replies between processes on one PostgreSQL: "
        "`redis://:password@host:6379/0`. Empty: they read them from the database.",
    )

    host: Name = Field(
        "127.0.0.1", description="The address to listen on. One that is reachable from other machines needs a login."
    )
    port: Port = Field(8000, description="The port to listen on; 0 picks a free one.")
    token: Secret = Field(
        "",
        description="The first admin's token: 20 characters or more. With it, a login is needed on loopback too.",
    )

    hosts: Names = Field(
        [],
        description=(
            "Host names that the server answers to. Empty: loopback names; any name if a login is needed. "
            "OpenID Connect goes back to these alone."
        ),
    )
    base_path: Text = Field("", description="The path that a proxy serves Indelible under, such as `/chat`.")
    cors_origins: Names = Field([], description="Origins of other sites whose pages may use the API, with a token.")
    trusted_proxies: Names = Field(
        [], description="Addresses and networks of proxies whose `X-Forwarded-For` and `-Proto` are believed."
    )
    proxy_user_header: Text = Field(
        "", description="The header in which these proxies name the user who has logged in. Empty: none."
    )
    session_timeout_s: Duration = Field(
        14 * 86400, description="A browser's login ends when it is unused for this long."
    )
    oidc_issuer: Text = Field("", description="The URL of an OpenID Connect provider to log in with.")
    oidc_client_id: Text = Field("", description="The id of this server at that provider.")
    oidc_client_secret: Secret = Field(
        "", description="The client secret for OpenID Connect; empty for a public client."
    )
    oidc_user_claim: Name = Field(
        "email", description="The claim that is the user's name here. `email` must be verified by the provider."
    )
    oidc_create_users: Switch = Field(
        default=False, description="Whether everyone who can log in at the provider becomes a user here."
    )
    user_max_requests_per_s: CountOrNone = Field(
        0, description="Requests per second of one user, with bursts of ten times as many; 0 means no limit."
    )
    user_max_tokens_per_day: CountOrNone = Field(
        0, description="Tokens of one user in a day (UTC), input and output; 0 means no limit."
    )
    user_max_usd_per_day: Amount = Field(
        0,
        description="Known costs of one user in a day (UTC); 0 means no limit. Models without a price are not limited.",
    )

    max_connections: Count = Field(
        10_000, description="Maximum number of open connections. At the limit, idle ones are closed for new ones."
    )
    address_max_connections: Count = Field(
        2_000, description="Maximum number of open connections from one address, which may be a proxy's."
    )
    head_max_bytes: Count = Field(
        64 * 1024, description="Maximum size of a request's first line and headers; larger ones are refused."
    )
    head_timeout_s: Duration = Field(
        10, description="How long a connection may take to send its request line and headers."
    )
    body_timeout_s: Duration = Field(60, description="How long a request may take to send its body.")
    user_max_feeds: Count = Field(
        1_000,
        description="Maximum number of feeds that one user may have open; further ones are refused.",
    )
    completions_on_disconnect: OnDisconnect = Field(
        "finish",
        description="Whether a chat completion whose client has disconnected is finished or stopped; both keep it.",
    )

    log_format: LogFormatName = Field("text", description="Logs for people, or as one JSON object per line.")
    log_level: LogLevelName = Field("warning", description="The least severe lines that are logged.")
    access_log: Switch = Field(default=False, description="Whether every request is logged, without its query.")

    max_steps: Count = Field(200, description="Maximum number of model calls in one turn; the turn then ends.")
    silence_timeout_s: Duration = Field(
        300, description="A model that sends nothing for this long has failed, and the call is retried."
    )
    keep_alive_timeout_s: Duration = Field(
        1800, description="A model that sends nothing but keep-alives for this long has failed."
    )
    reply_max_characters: Count = Field(
        4_000_000, description="Where a reply that does not end is ended; it is kept, with the reason `length`."
    )
    compact_at: Share = Field(
        0.8, description="The share of the context window at which older turns are replaced by a summary."
    )

    tool_timeout_s: Duration = Field(300, description="A tool that runs longer gets an error result.")
    tool_grace_s: DurationOrNone = Field(
        5, description="How long a cancelled tool may take to stop before it is abandoned."
    )
    tool_concurrency: Count = Field(16, description="Maximum number of tools of one step that run at the same time.")

    retry_base_s: DurationOrNone = Field(
        1, description="The longest wait before the first retry; it doubles with each retry."
    )
    retry_max_delay_s: DurationOrNone = Field(60, description="The longest wait before any retry.")
    retry_after_cap_s: DurationOrNone = Field(
        300, description="The longest wait that a provider may ask for; longer ones are shortened to this."
    )
    retry_max_attempts: Count = Field(
        25, description="Maximum number of attempts at one model call, including the first."
    )
    retry_budget_s: DurationOrNone = Field(
        900, description="No attempt is started this long after the first. A running attempt is never interrupted."
    )

    queue_max: Count = Field(20, description="Maximum number of queued messages in one chat; further ones are refused.")
    message_max_bytes: Count = Field(256 * 1024, description="Maximum size of a message; larger ones are refused.")
    system_max_bytes: Count = Field(256 * 1024, description="Maximum size of a chat's instructions.")
    parameters_max_bytes: Count = Field(16 * 1024, description="Maximum size of a chat's model parameters, as JSON.")
    tools_max_bytes: Count = Field(64 * 1024, description="Maximum size of a chat's own tools, as JSON.")
    tool_result_max_bytes: Count = Field(
        4 * 1024 * 1024, description="Maximum size of a tool result that a client submits; larger ones are refused."
    )
    import_max_bytes: Count = Field(
        64 * 1024 * 1024, description="Maximum size of an exported chat that is imported over HTTP."
    )
    files: Files = Field("database", description="Where the bytes of files are stored.")
    file_max_bytes: Count = Field(32 * 1024 * 1024, description="Maximum size of a file; larger ones are refused.")
    file_types: Names = Field(
        [], description="Media types of files that are accepted, such as `image/*`. Empty: every type."
    )
    user_max_files: Count = Field(10_000, description="Maximum number of files that one user may have stored.")
    user_max_file_bytes: Count = Field(
        10 * 1024 * 1024 * 1024, description="Maximum total size of the files that one user may have stored."
    )
    client_tool_timeout_s: DurationOrNone = Field(
        600, description="How long a client has to submit the results of its tools; 0 means no limit."
    )
    system: Text = Field("", description="The system prompt of chats that have none of their own.")
    auto_archive_days: Days = Field(
        0, description="Chats in which nothing was said for so long are archived, unless pinned or unread; 0: never."
    )
    auto_titles: Switch = Field(default=True, description="Ask the model for a title beside the first reply.")

    journal_interval_s: DurationOrNone = Field(
        0.02, description="How often the journal of all running replies is committed."
    )
    journal_flush_max_bytes: Count = Field(
        64 * 1024, description="The journal is committed sooner when this much is pending."
    )
    journal_max_pending_bytes: Count = Field(
        4 * 1024 * 1024, description="With this much pending for a slow database, streams from models are paused."
    )
    debug: Debug = Field(
        "errors",
        description="Which exchanges with providers are recorded, redacted: none, those of failed steps, or all.",
    )
    debug_retention_s: Duration = Field(30 * 86400, description="How long debug records are kept.")
    pack_after_s: Duration = Field(
        3600, description="The journal of a reply is packed this long after its end. Nothing is lost."
    )

    heartbeat_interval_s: Duration = Field(2, description="How often a worker sends a heartbeat.")
    lease_timeout_s: Duration = Field(
        8, description="A worker without a heartbeat for this long is considered dead, and its chats are taken over."
    )
    poll_interval_s: Duration = Field(
        0.5, description="How often a worker polls for work and stops. A notification is faster."
    )
    drain_s: DurationOrNone = Field(
        0,
        description="On SIGTERM a worker lets running replies end for this long before it hands them over, and a "
        "server streams them to clients that cannot resume elsewhere.",
    )
    worker_max_chats: Count = Field(1000, description="Maximum number of chats that one worker runs at the same time.")
    user_max_chats: Count = Field(
        500, description="Maximum number of chats of one user that run at the same time; further ones wait."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (the signature is pydantic's)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The places, the strongest first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings(**given: Any) -> Settings:
    """Read the settings; `given` wins over every other place, and None in it means "not given"."""
    given = {name: value for name, value in given.items() if value is not None}
    if Path(FILE).is_dir():
        raise BadSettings(f"{Path(FILE).absolute()} can't be read: it is a directory, not a file.")
    try:
        settings = Settings(**given)
    except ValidationError as error:
        problems = [_explain(str(detail["loc"][0]), detail["input"], given) for detail in error.errors()]
        raise BadSettings("\n".join(problems)) from error
    except (TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadSettings(f"{Path(FILE).absolute()} can't be read: {error}") from error
    if settings.lease_timeout_s < 2 * settings.heartbeat_interval_s:
        problem = f"lease_timeout_s = {settings.lease_timeout_s:g} must be at least twice heartbeat_interval_s"
        raise BadSettings(f"{problem} ({settings.heartbeat_interval_s:g}), or a live worker is considered dead.")
    return settings


def describe_allowed(field: FieldInfo) -> str:
    """What values this setting takes, in words."""
    return next(rule.sentence for rule in field.metadata if isinstance(rule, Allowed))


def _is_secret(field: FieldInfo) -> bool:
    return not field.repr


def list_secrets(settings: Settings) -> list[str]:
    """The keys and tokens among the settings: no log line and no debug record may hold one."""
    given = (getattr(settings, name) for name, field in Settings.model_fields.items() if _is_secret(field))
    return [secret for secret in given if isinstance(secret, str) and secret]


def _explain(name: str, value: object, given: dict[str, Any]) -> str:
    place = _find_place(name, given)
    field = Settings.model_fields.get(name)
    if field is None:
        similar = get_close_matches(name, Settings.model_fields, n=1)
        hint = f" Did you mean {similar[0]}?" if similar else ""
        return f"{name}, from {place}: unknown setting.{hint}"
    shown = "(not shown)" if _is_secret(field) else repr(value)
    return f"{name} = {shown}, from {place}: it must be {describe_allowed(field)} (default: {field.default})."


def _find_place(name: str, given: dict[str, Any]) -> str:
    if name in given:
        return "an argument"
    variable = ENV_PREFIX + name.upper()
    if any(key.upper() == variable for key in os.environ):
        return f"the environment variable {variable}"
    return str(Path(FILE).absolute())
