"""Models by name.

A name is what a user writes: in the settings, for a chat, with a message.

    demo                                      built in; needs nothing
    anthropic:claude-sonnet-4-5               Anthropic Messages
    openai:gpt-5.1                            OpenAI Responses
    openai-chat:gpt-4o                        OpenAI Chat Completions, and every server that speaks it
    groq:…, openrouter:…, ollama:…, …         the same, at well-known providers (PROVIDERS)
    openai-chat:NAME@http://localhost:8000/v1 the same, at another address

Keys come from the settings or the environment, and each belongs to one address: it is sent to its provider's own
address (ANTHROPIC_BASE_URL and OPENAI_BASE_URL move it) and to no other. An address inside a name is accepted only if
the operator chose it: it is in the setting `base_urls`, which also names the variable of its key, or the name is the
setting `model` itself. A chat or a message can name no other address. Otherwise a user could make the server send
requests to anything that it can reach.

A key is money, so on a server a user may spend it only on the names in the settings `model` and `models`
(`find_for_user`). Names that need no key are free.

An unknown name, a forbidden address or a missing key is a `ModelFailed` that says what to set. A name or an address
that cannot work is refused where it is given (`check`). Without a key the user sees a failed reply; everything before
it is saved, and Retry may name another model.

Must stay true (tests/models/test_catalog.py): a key is never sent to an address that it was not given for.

How to add a provider is docs/where-things-go.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

import msgspec
from msgspec.structs import replace

from indelible.clock import Clock, SystemClock
from indelible.content import Usage
from indelible.errors import ModelFailed
from indelible.models.failures.classify import get_display_name
from indelible.models.protocol import Model
from indelible.models.providers.demo import DemoModel
from indelible.settings import Settings

if TYPE_CHECKING:
    from indelible.models.http.client import Http
    from indelible.models.http.http_model import WireFormat
    from indelible.models.profile import Profile
    from indelible.models.providers.anthropic.response import AnthropicWire
    from indelible.models.providers.openai_chat.response import ChatWire
    from indelible.models.providers.openai_responses.response import ResponsesWire

DEMO: Final = "demo"


class Provider(NamedTuple):
    """A provider that is known by name. `prices` is its id in the price data; `key` is None if it needs no key."""

    wire: str
    address: str
    key: str | None
    prices: str | None


PROVIDERS: Final[dict[str, Provider]] = {
    "anthropic": Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "anthropic"),
    "openai": Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "openai"),
    "openai-chat": Provider("openai-chat", "https://api.openai.com/v1", "OPENAI_API_KEY", "openai"),
    "deepseek": Provider("openai-chat", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", "deepseek"),
    "gemini": Provider(
        "openai-chat", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", "google"
    ),
    "groq": Provider("openai-chat", "https://api.groq.com/openai/v1", "GROQ_API_KEY", "groq"),
    "ollama": Provider("openai-chat", "http://localhost:11434/v1", None, None),
    "openrouter": Provider("openai-chat", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "openrouter"),
    "together": Provider("openai-chat", "https://api.together.xyz/v1", "TOGETHER_API_KEY", "together"),
    "xai": Provider("openai-chat", "https://api.x.ai/v1", "XAI_API_KEY", "x-ai"),
}
_SETTING_OF: Final = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai"}
"""Providers with settings of their own: the prefix of `…_api_key`, `…_base_url` and of the variable `…_BASE_URL`."""

PRICES_UNKNOWN: Final = (
    "their prices are not known. Set them in the setting prices; a model of your own has its price in its traits."
)
_LONGEST_NAME: Final = 1000
_SOME_USAGE: Final = Usage(input_tokens=1000, output_tokens=1000)
_BEFORE_ADDRESS: Final = re.compile(r"@(?=https?://)", re.IGNORECASE)
"""Where the name ends and the address begins. Model names may contain an `@`, too."""


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """The address and the key of a request. `official`: this is the provider itself, so its prices apply."""

    address: str
    key: str | None
    official: bool


class Catalog:
    """Finds models. All HTTP models share one connection pool: close the catalog when you are done."""

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._environment = os.environ if environment is None else environment
        self._http: Http | None = None

    def load(self) -> None:
        """Import what a provider's model needs, so that no request pays this half second. Safe to call in a thread."""
        from genai_prices import data_snapshot  # noqa: PLC0415

        _load_wire_formats()
        from indelible.models.http.client import Http  # noqa: PLC0415

        data_snapshot.get_snapshot()
        self._http = self._http or Http()

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def list_names(self) -> list[str]:
        """The models to offer, the configured one first."""
        return list(dict.fromkeys([self._settings.model, *self._settings.models, DEMO]))

    def check(self, name: str) -> None:
        """Raises `ModelFailed` if no model can have this name. A key is not needed: another process may have it."""
        if name != DEMO:
            address = _parse_name(name).address
            if address is not None:
                self._find_allowed(name, check_address(address))

    def find_for_user(self, name: str) -> Model:
        """The same for a name that a user chose. Raises `ModelFailed` if the operator's key would be used for it."""
        self.check_for_user(name)
        return self.find(name)

    def check_for_user(self, name: str) -> None:
        """Raises `ModelFailed` if a user may not choose this name: unknown, or at the operator's expense."""
        if name in self.list_names():
            return
        try:
            needs_key = self._find_place(_parse_name(name)).key is not None
        except ModelFailed as failure:
            if failure.kind != "missing_key":
                raise
            needs_key = True  # here there is none, but there may be one where the reply is made
        if needs_key:
            raise ModelFailed(
                f"The model '{name}' is not available. Choose one of: {', '.join(self.list_names())}. The operator can "
                "add others in the setting models.",
                kind="config",
            )

    def find(self, name: str) -> Model:
        """Find the model of this name. Raises `ModelFailed` if it does not exist or cannot be used."""
        if name == DEMO:
            return DemoModel(self._clock)
        parsed = _parse_name(name)
        return self._make(parsed, self._find_place(parsed))

    def _make(self, parsed: _ParsedName, place: _Place) -> Model:
        """Imports aiohttp and the price data only here: the demo model needs neither."""
        name, provider_name, provider, _, model = parsed
        from indelible.models.http.client import Http  # noqa: PLC0415
        from indelible.models.http.http_model import HttpModel  # noqa: PLC0415
        from indelible.models.profile import find_profile  # noqa: PLC0415

        self._http = self._http or Http()
        host = _read_host(place.address)
        provider_label = provider_name if place.official or provider.wire != "openai-chat" else host
        is_openai = place.official and provider.wire == provider_name
        wire = make_wire_format(provider.wire, official=is_openai, provider=provider_label)
        profile = find_profile(provider.wire, model, provider_id=provider.prices if place.official else None)
        return HttpModel(
            wire,
            provider=provider_label,
            name=model if place.official or provider_label == host else f"{model}@{host}",
            remote_name=model,
            base_url=place.address,
            headers=wire.authorise(place.key) if place.key else {},
            profile=replace(
                profile, chains=name in self._settings.chain_models, price=self._find_own_price(name) or profile.price
            ),
            http=self._http,
            clock=self._clock,
        )

    # --- prices ---

    def _find_own_price(self, name: str) -> Callable[[Usage], int] | None:
        """What the operator says that this model costs: the first of the setting's patterns that fits."""
        rates = next((rates for pattern, rates in self._settings.prices.items() if fnmatchcase(name, pattern)), None)
        if rates is None:
            return None
        from indelible.models.profile import price_by  # noqa: PLC0415

        return partial(price_by, rates)

    def list_unpriced(self) -> list[str]:
        """The models of the settings whose price is not known, so that a limit in dollars does not hold for them.

        It reads the price data, which takes a tenth of a second. The demo model costs nothing, and neither does a name
        that no model can have: it may be that of a model of the program's own.
        """
        return [name for name in self.list_names() if name != DEMO and not self._has_price(name)]

    def _has_price(self, name: str) -> bool:
        if self._find_own_price(name) is not None:
            return True
        try:
            price = self._find_profile(name).price
        except ModelFailed:
            return True
        return price is not None and price(_SOME_USAGE) is not None

    # --- what is known of a model, whether or not there is a key for it ---

    def find_window(self, name: str) -> int | None:
        """The model's context window in tokens; None if it is unknown. It reads the price data."""
        if name == DEMO:
            return DemoModel.context_limit
        try:
            return self._find_profile(name).context_limit
        except ModelFailed:
            return None

    def _find_profile(self, name: str) -> Profile:
        from indelible.models.profile import find_profile  # noqa: PLC0415

        _, provider_name, provider, given, model = _parse_name(name)
        address = self._read_own_address(provider_name, provider) if given is None else check_address(given)
        official = _read_origin(address) == _read_origin(provider.address)
        return find_profile(provider.wire, model, provider_id=provider.prices if official else None)

    # --- addresses and keys ---

    def _find_place(self, parsed: _ParsedName) -> _Place:
        """The provider's own address or the one in the name, with the key that belongs to it."""
        name, provider_name, provider, given, _ = parsed
        own = self._read_own_address(provider_name, provider)
        address = own if given is None else check_address(given)
        variable = None if given is None else self._find_allowed(name, address)
        key: str | None = None
        if variable:
            key = _clean_key(self._environment.get(variable)) or _fail_without_key(_read_host(address), variable)
        elif _read_origin(address) == _read_origin(own):
            key = self._read_own_key(provider_name, provider)
        official = _read_origin(address) == _read_origin(provider.address)
        if key is None and provider.key is not None and official:
            _fail_without_key(provider_name, provider.key)
        return _Place(address=address, key=key, official=official)

    def _find_allowed(self, name: str, address: str) -> str | None:
        """The variable that holds the key for this address. Raises if the operator did not allow the address."""
        allowed = {_check_listed(listed): variable for listed, variable in self._settings.base_urls.items()}
        if address not in allowed and name not in (self._settings.model, *self._settings.models):
            raise ModelFailed(
                f"The address {address} is not allowed. The operator can allow it in the setting base_urls.",
                kind="config",
            )
        return allowed.get(address)

    def _read_own_address(self, provider_name: str, provider: Provider) -> str:
        prefix = _SETTING_OF.get(provider_name)
        if prefix is None:
            return check_address(provider.address)
        given = getattr(self._settings, f"{prefix}_base_url") or self._environment.get(f"{prefix.upper()}_BASE_URL")
        return check_address(given or provider.address)

    def _read_own_key(self, provider_name: str, provider: Provider) -> str | None:
        prefix = _SETTING_OF.get(provider_name)
        given = getattr(self._settings, f"{prefix}_api_key") if prefix is not None else None
        key = given or (self._environment.get(provider.key) if provider.key is not None else None)
        return _clean_key(key)


# --- names and addresses ---


class _ParsedName(NamedTuple):
    """`address` is the one inside the name, if there is one."""

    name: str
    provider_name: str
    provider: Provider
    address: str | None
    model: str


def _parse_name(name: str) -> _ParsedName:
    if len(name) > _LONGEST_NAME:  # first: looking at it takes long if it has megabytes
        raise ModelFailed(f"A model's name has at most {_LONGEST_NAME:,} characters.", kind="config")
    provider_name, _, rest = name.partition(":")
    provider = PROVIDERS.get(provider_name)
    if provider is None or not rest:
        _fail_unknown(name)
    model, *given = _BEFORE_ADDRESS.split(rest, maxsplit=1)
    if not model or any(letter <= " " for letter in name):
        _fail_unknown(name)
    return _ParsedName(name, provider_name, provider, given[0] if given else None, model)


@lru_cache(maxsize=256)
def check_address(address: str) -> str:
    """Normalize the address. Raises `ModelFailed` if it is not one that a key may be sent to."""
    from yarl import URL  # noqa: PLC0415  (it comes with aiohttp)

    try:
        url = URL(address)
        is_web = url.scheme in ("http", "https") and bool(url.host)
        is_plain = not (url.user or url.password or url.query_string or url.fragment)
        if is_web and is_plain and not any(letter <= " " or letter == "\\" for letter in address):
            return str(url).rstrip("/")
    except ValueError:
        pass
    raise ModelFailed(
        "Invalid provider address. It must look like https://host/v1, without a user name, a password or a query.",
        kind="config",
    )


def _check_listed(address: str) -> str:
    try:
        return check_address(address)
    except ModelFailed as failure:
        raise ModelFailed(f"In the setting base_urls: {failure.message}", kind="config") from failure


def _clean_key(key: str | None) -> str | None:
    """The key as it is sent, without the newline of the file that it was read from."""
    if key is None or not key.strip():
        return None
    if not key.strip().isascii() or not key.strip().isprintable():
        raise ModelFailed("The API key contains characters that no key has. Set it again.", kind="config")
    return key.strip()


@lru_cache(maxsize=256)
def _read_origin(address: str) -> tuple[str, str | None, int | None]:
    from yarl import URL  # noqa: PLC0415

    url = URL(address)
    return url.scheme, url.host, url.port


@lru_cache(maxsize=256)
def _read_host(address: str) -> str:
    from yarl import URL  # noqa: PLC0415

    return URL(address).authority


# --- failures ---


def _fail_unknown(name: str) -> NoReturn:
    given = name.partition(":")[0]
    similar = get_close_matches(given, [DEMO, *PROVIDERS], n=1)
    hint = f" Did you mean {similar[0]}{':NAME' if similar[0] != DEMO else ''}?" if similar else ""
    raise ModelFailed(
        f"Unknown model '{name}'.{hint} Use {DEMO}, or provider:NAME with one of these providers: "
        f"{', '.join(PROVIDERS)}.",
        kind="config",
    )


def _fail_without_key(provider_name: str, variable: str) -> NoReturn:
    raise ModelFailed(
        f"No API key for {get_display_name(provider_name)}. Set the environment variable {variable}, or "
        f"choose another model.",
        kind="missing_key",
        provider=provider_name,
    )


def make_wire_format(name: str, *, official: bool, provider: str | None = None) -> WireFormat:
    """`official`: the server is OpenAI itself, not a `provider` that speaks the same format."""
    anthropic, responses, chat = _load_wire_formats()
    match name:
        case "anthropic":
            return anthropic()
        case "openai":
            return responses()
        case _:
            return chat(official=official, provider=provider or name)


def _load_wire_formats() -> tuple[type[AnthropicWire], type[ResponsesWire], type[ChatWire]]:
    """Imported on first use: the demo model needs none of them."""
    from indelible.models.providers.anthropic.response import AnthropicWire  # noqa: PLC0415
    from indelible.models.providers.openai_chat.response import ChatWire  # noqa: PLC0415
    from indelible.models.providers.openai_responses.response import ResponsesWire  # noqa: PLC0415

    return AnthropicWire, ResponsesWire, ChatWire
