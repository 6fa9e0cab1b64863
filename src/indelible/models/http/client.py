"""The HTTP client: a streaming POST, and the body as it arrives.

One connection pool per process. Proxies come from the environment (HTTPS_PROXY, NO_PROXY…), and so do certificates
(SSL_CERT_FILE, SSL_CERT_DIR). Connecting has a timeout. A reply has none, because a long reply is legitimate: the loop
decides whether it is still alive (its silence guard), not the socket. Redirects are not followed: a key belongs to the
host that it was given for.

A body is always closed, however its reader exits. If it was read to its end, the connection returns to the pool. If
not, the connection is closed, which is how a stop reaches the provider.

Recording attaches at one seam (hooks.py). Tests may forbid calls that leave this machine
(`indelible.testing.forbid_model_calls`).

Must stay true (tests/models/test_http_client.py): no body stays open; no part of a request is sent to another host.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from indelible.errors import ModelFailed
from indelible.loopback import is_loopback
from indelible.models.http.hooks import Answer, HttpRequest, recording

CONNECT_TIMEOUT_S: Final = 15.0
_MAX_HEADER_BYTES: Final = 64 * 1024


class CallSwitch:
    """Whether this process may call providers on other machines. Forbidden as long as one caller forbids it."""

    VARIABLE: Final = "INDELIBLE_FORBID_MODEL_CALLS"

    def __init__(self) -> None:
        self.forbidden_by = 0

    def check(self, url: URL) -> None:
        if (self.forbidden_by or os.environ.get(self.VARIABLE)) and not is_loopback(url.host or ""):
            raise ModelFailed(f"Calls of real models are forbidden here, so {url.host} was not called.", kind="config")


call_switch: Final = CallSwitch()


@contextmanager
def forbid_model_calls() -> Iterator[None]:
    """Make every call of a model on another machine fail, until the end of the block.

    So a test cannot spend money or depend on a network. A call that would leave this machine fails with `ModelFailed`
    of the kind `config`, which is not retried, and nothing is sent (tests/testing/test_forbid.py). A provider on
    loopback, such as `SimulatedProvider`, may still be called. INDELIBLE_FORBID_MODEL_CALLS=1 does the same for a
    process and its children.
    """
    call_switch.forbidden_by += 1
    try:
        yield
    finally:
        call_switch.forbidden_by -= 1


@functools.lru_cache(maxsize=1)
def _load_certificates(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    """Read once per process: it takes as long as a short reply. OpenSSL itself looks into the environment."""
    return ssl.create_default_context()


class Http:
    """The connection pool. Close it after the last request."""

    def __init__(self, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._certificates = _load_certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        self._session: aiohttp.ClientSession | None = None
        self._proxies: Mapping[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[Answer]:
        """Send the request. The block begins with the response's head; its body is closed when the block ends."""
        recorder = recording.get()
        exchange = recorder.begin(request) if recorder is not None else None
        try:
            response: Answer = await self._open(request)
        except BaseException as error:
            if exchange is not None:
                exchange.failed(error)
            raise
        try:
            if exchange is not None:
                response = exchange.wrap(response)
            yield response
        finally:
            await response.aclose()

    async def _open(self, request: HttpRequest) -> Answer:
        if self._session is None:
            self._session = self._make_session()
            self._proxies = getproxies()  # once: it reads every variable of the environment, some of them twice
        url = URL(request.url, encoded=True)
        call_switch.check(url)
        answer = await self._session.request(
            request.method,
            url,
            headers={"accept-encoding": "identity", **request.headers},
            data=request.body,
            allow_redirects=False,
            proxy=find_proxy(url, self._proxies),
        )
        return _Response(answer)

    def _make_session(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._certificates)
        return aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_field_size=_MAX_HEADER_BYTES,
            max_line_size=_MAX_HEADER_BYTES,
        )


def find_proxy(url: URL, proxies: Mapping[str, str]) -> str | None:
    """Which of the environment's proxies is for this address, if any.

    aiohttp's own `trust_env` would also read ~/.netrc, and then refuse a request that carries a key.
    """
    if not url.host or not proxies or proxy_bypass(f"{url.host}:{url.port}" if url.port else url.host):
        return None
    kind = url.scheme if proxies.get(url.scheme) else "all"
    proxy = proxies.get(kind)
    if not proxy:
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.lower().startswith(("http://", "https://")):
        raise ModelFailed(
            f"The proxy in {kind.upper()}_PROXY is not an HTTP proxy. Set one that starts with http:// or https://.",
            kind="config",
        )
    return proxy


class _Response:
    """aiohttp's response."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self.method = answer.method
        self.read = answer.content.readany
        self._answer = answer

    def settle(self) -> None:
        """Nothing records this exchange."""

    async def aclose(self) -> None:
        """After a body that was read to its end, the connection is back in the pool already."""
        self._answer.close()
