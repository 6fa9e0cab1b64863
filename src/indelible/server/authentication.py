"""Who sends a request: through which proxy it came, whose login it has, and how many wrong tokens an address may send.

Anybody can send `X-Forwarded-For`. It counts only if the connection comes from an address in the setting
`trusted_proxies`, and then the last address in it that is no trusted proxy itself is the client. A proxy may add a line
of its own to those that the client sent: all lines are one list. What is no address (`unknown`, a page of text) names
nobody, so the client is then the proxy that wrote it. The connection's own address is what the limits of
connections.py count. A proxy may serve us under a path (`base_path`) and pass that path on, or strip it: a request is
the same either way.

The first of these that the request has decides:

    1. a header of a trusted proxy that names the user (`proxy_user_header`, `trusted_proxies`)
    2. `Authorization: Bearer …`: the setting `token`, which is the first admin's, or a token of the database
    3. the cookie of a session
    4. nothing, where no login is needed: the user `local`, on loopback alone

A request with an invalid credential never falls back to a weaker one: with a revoked token it has no user, even on
loopback. There are two exceptions where no login is needed. A stale cookie is ignored, because a browser sends the
cookies of every server on localhost. And on `/v1` a key that is no token of ours is ignored, because OpenAI's clients
always send one.

What was found is remembered for `REMEMBERED_S` seconds, so that a busy client costs no query per request. Everything is
forgotten as soon as anybody's rights change in this process, or a hint tells that they did in another one.

A secret of ours has 256 random bits and cannot be guessed, so it is looked up first, by one indexed
read, and a valid one is never refused because of what others at its address sent. Only wrong ones are counted: an
address may send `GUESSES` of them at once and one more every two seconds; beyond that the answer to a wrong one is 429.
Nor do they occupy the database: an address without a guess left looks up few at a time, and every lookup in progress
counts. Wrong cookies do not count: a page with a stale one sends it with everything that it loads.

The token in the settings is somebody's choice, and may be short enough to guess. If it is, being right must not help
who has used up their guesses: then it waits for a turn, one every two seconds, as every wrong one at this address does.
Few may wait. An IPv6 host has a whole /64 to itself, so that counts as one address.

Must stay true (tests/server/test_authentication.py, tests/server/test_behind_a_proxy.py): the order above; no login
outlasts its rights. (tests/server/test_guesses.py): a valid token gets in whatever else its address sends; nobody can
try a short one more often than that.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, TypeVar

from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.types import Scope

from indelible.app.app import App
from indelible.clock import Clock
from indelible.errors import Invalid, RateLimited
from indelible.loopback import is_loopback
from indelible.server.connections import name_network
from indelible.server.limits import TokenBuckets
from indelible.service.access import Identity
from indelible.settings import Settings
from indelible.store.accounts import CredentialKey
from indelible.store.shares import hash_secret

T = TypeVar("T")
GUESSES: Final = 30
"""So many wrong credentials at once from one address, and one more every two seconds."""
_PER_S: Final = 0.5
_MAX_LOOKUPS: Final = 4
MAX_IN_LINE: Final = 8
COOKIE: Final = "indelible_session"
"""The session's cookie on plain http; see `name_cookie`."""
REMEMBERED_S: Final = 2.0
_MAX_REMEMBERED: Final = 10_000
LONG_TOKEN: Final = 20
"""A token in the settings with fewer characters can be guessed by who may try often."""


# --- proxies ---


class Proxies:
    """Raises `Invalid` if one of `trusted` is no address and no network."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = [_parse_network(text) for text in trusted]

    def is_trusted(self, host: str) -> bool:
        if not self._networks:
            return False
        address = _parse_address(host)
        return address is not None and any(address in network for network in self._networks)

    def resolve(self, scope: Scope, headers: Headers) -> bool:
        """Put the client's address and scheme into the scope. Whether the request came through a trusted proxy."""
        client = scope.get("client")
        if client is None or not self.is_trusted(client[0]):
            return False
        scheme = ",".join(headers.getlist("x-forwarded-proto")).rpartition(",")[2].strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        for text in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            if not text.strip():
                continue
            address = _parse_address(_remove_port(text.strip()))
            if address is None:
                break
            scope["client"] = (str(address), 0)
            if not self.is_trusted(scope["client"][0]):
                break
        return True


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address; of an IPv4 address that is written as an IPv6 address, the former."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _remove_port(text: str) -> str:
    """Some proxies write `203.0.113.9:4711` and `[2001:db8::1]:4711`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise Invalid(f"trusted_proxies: {text!r} is neither an address nor a network such as 10.0.0.0/8.") from None


def normalize_base_path(text: str) -> str:
    """`/chat` for `chat`, `/chat` and `/chat/`; empty for the root."""
    inner = text.strip().strip("/")
    return f"/{inner}" if inner else ""


def split_path(scope: Scope, base_path: str) -> str:
    """The path below the base path. The scope then has both, as ASGI has it, whether the proxy stripped it or not."""
    path: str = scope["path"]
    if not base_path:
        return path
    if path == base_path or path.startswith(f"{base_path}/"):
        path = path[len(base_path) :] or "/"
    scope["root_path"] = base_path
    scope["path"] = base_path + path
    scope["raw_path"] = scope["path"].encode()
    return path


# --- logins ---


def needs_login(settings: Settings) -> bool:
    """Whether there is a login: on every address that others can reach, and wherever a way to log in is configured."""
    return not is_loopback(settings.host) or has_login(settings)


def has_login(settings: Settings) -> bool:
    """Whether the settings have a way to log in."""
    return bool(settings.token or settings.oidc_issuer or (settings.proxy_user_header and settings.trusted_proxies))


class Authenticator:
    """One per process, of the app that it serves."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.needs_login = needs_login(settings)
        self._app = app
        self._settings = settings
        self._token_hash = hash_secret(settings.token) if settings.token else None
        self._is_guessable = 0 < len(settings.token) < LONG_TOKEN
        self._user_header = settings.proxy_user_header.lower() if settings.trusted_proxies else ""
        self._remembered: dict[bytes, tuple[Identity, float]] = {}
        self._changes = 0
        self._guesses = Guesses(app.clock)
        self._local = Identity(user_id=app.owner_id, user="local", role="admin", how="none")

    def forget(self) -> None:
        """Somebody's rights have changed. What is being looked up now is not remembered either."""
        self._remembered.clear()
        self._changes += 1

    async def identify(self, scope: Scope, headers: Headers, *, through_proxy: bool) -> Identity | None:
        """The login of a request; None if there is none, or none that is valid. Raises `RateLimited`."""
        named = headers.getlist(self._user_header) if through_proxy and self._user_header else []
        if any(named):  # two: the proxy added its own to one that the client sent
            return await self._find_proxied(named[0]) if len(named) == 1 else None
        given = headers.get("authorization")
        if given is not None and not self.needs_login and _is_openai(scope):
            return await self._find_bearer(given) or self._local
        if given is not None:
            return await self._find_bearer(given, find_address(scope))
        cookie = read_cookie(headers, name_cookie(COOKIE, scope["scheme"], scope.get("root_path", "")))
        if cookie is not None:
            found = await self._find_session(cookie)
            if found is not None or self.needs_login:
                return found
        return None if self.needs_login else self._local

    async def try_token(
        self,
        secret: str,
        address: str,
        *,
        first: Callable[[], Awaitable[T | None]],
        stored: Callable[[], Awaitable[T | None]],
    ) -> T | None:
        """What `first` finds if this is the setting `token`, or else `stored`. If it is none, the address has guessed.

        Raises `RateLimited` if it has guessed too often.
        """
        is_first = self._token_hash is not None and hmac.compare_digest(hash_secret(secret), self._token_hash)

        async def compare() -> T | None:
            return await first() if is_first else None

        if self._is_guessable:
            return await self._guesses.find(address, stored, compare=compare)
        return await first() if is_first else await self._guesses.find(address, stored)

    async def _find_bearer(self, given: str, guesser: str | None = None) -> Identity | None:
        """The user of a token. With `guesser`, an address, a wrong one counts."""
        scheme, _, secret = given.encode("latin-1").decode("utf-8", "replace").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            return None
        key = b"token" + hash_secret(secret)
        if (known := self._recall(key)) is not None:
            return known
        changes = self._changes

        async def first() -> Identity:
            return replace(self._local, how="token")

        async def stored() -> Identity | None:
            found = await self._app.accounts.find_token(secret)
            return None if found is None else self._remember(key, Identity.of(found, "token"), changes)

        return await stored() if guesser is None else await self.try_token(secret, guesser, first=first, stored=stored)

    async def _find_session(self, secret: str) -> Identity | None:
        key = b"session" + hash_secret(secret)
        if (known := self._recall(key)) is not None:
            return known
        changes = self._changes
        found = await self._app.accounts.find_session(secret)
        if found is None and self._settings.token:
            found = await self._app.accounts.find_session(secret, bound_to=self._settings.token)
        return None if found is None else self._remember(key, Identity.of(found, "session"), changes)

    async def _find_proxied(self, name: str) -> Identity | None:
        name = name.encode("latin-1").decode("utf-8", "replace")
        key = b"proxy" + hash_secret(name)
        if (known := self._recall(key)) is not None:
            return known
        changes = self._changes
        try:
            account = await self._app.accounts.ensure_account(name)
        except Invalid:
            return None
        if account.disabled or account.id == self._app.owner_id:  # the first admin's name is not the proxy's to give
            return None
        row = CredentialKey("user", account.id)
        found = Identity(user_id=account.id, user=account.name, role=account.role, how="proxy", key=row)
        return self._remember(key, found, changes)

    def _recall(self, key: bytes) -> Identity | None:
        found = self._remembered.get(key)
        if found is None or self._app.clock.monotonic() - found[1] >= REMEMBERED_S:
            return None
        expires_at = found[0].expires_at
        return None if expires_at is not None and expires_at <= self._app.clock.now() else found[0]

    def _remember(self, key: bytes, identity: Identity, changes: int) -> Identity:
        if changes != self._changes:
            return identity
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[key] = (identity, self._app.clock.monotonic())
        return identity


def _is_openai(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")).startswith("/v1/")


def find_address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def name_cookie(name: str, scheme: str, base_path: str) -> str:
    """The name that a cookie has where it can be trusted.

    A cookie that others can set would log the user in as somebody else. A browser accepts `__Host-` only from this host
    itself, over https and for its root; `__Secure-`, for a cookie of a path, at least only over https.
    """
    if scheme != "https":
        return name
    return f"__Secure-{name}" if base_path else f"__Host-{name}"


def read_cookie(headers: Headers, wanted: str) -> str | None:
    for pair in headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted and value:
            return value
    return None


# --- wrong tokens ---


class Guesses:
    """One per process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = TokenBuckets(_PER_S, GUESSES, monotonic=clock.monotonic)
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)
        self._lines: dict[str, _Line] = {}

    async def find(
        self,
        address: str,
        load: Callable[[], Awaitable[T | None]],
        *,
        compare: Callable[[], Awaitable[T | None]] | None = None,
    ) -> T | None:
        """What `compare` finds, which compares with a secret that can be guessed, or else `load`.

        If both find nothing, that was a guess. Raises `RateLimited` if the address had none left.
        """
        network = name_network(address)
        if self._left.acquire(network):
            async with self._lookups:
                found = await load()
            if found is None and compare is not None and await self._wait_for_turn(network):
                found = await compare()
            if found is None:
                raise RateLimited("Too many failed logins from this address. Wait a minute.", retry_after_s=60)
            return found
        is_wrong = False
        try:
            found = None if compare is None else await compare()
            if found is None:
                is_wrong = compare is not None  # that was a guess, even if the database fails now
                found = await load()
                is_wrong = found is None
        finally:
            if not is_wrong:  # valid, or the database failed
                self._left.give_back(network)
        return found

    async def _wait_for_turn(self, network: str) -> bool:
        """Wait until this address may guess again. False: too many wait already."""
        line = self._lines.setdefault(network, _Line())
        if line.length >= MAX_IN_LINE:
            return False
        line.length += 1
        try:
            async with line.first:
                while wait_s := self._left.acquire(network):
                    await self._clock.sleep(wait_s)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[network]
        return True


class _Line:
    """Who waits at one address, in order."""

    def __init__(self) -> None:
        self.length = 0
        self.first = asyncio.Lock()
