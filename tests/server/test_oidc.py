"""Logging in at an OpenID Connect provider: what it takes, and everything that must not be enough."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable
from http.cookies import SimpleCookie
from typing import Any

import pytest
from joserfc import jwk
from tests.server.logging_in import Browser, open_browser
from tests.server.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider, make_key, run_provider
from tests.support.app_harness import AppHarness
from tests.support.running_server import API, RunningServer
from yarl import URL

from indelible.errors import Invalid
from indelible.server.app import Server
from indelible.settings import load_settings

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "cross-site"}
FAILED = "/login?problem=oidc"


async def start(harness: AppHarness, provider: Provider, **more: Any) -> RunningServer:
    given = {"oidc_issuer": provider.url, "oidc_client_id": CLIENT_ID, "oidc_client_secret": CLIENT_SECRET}
    return await harness.start_server(worker=False, **{**given, **more})


async def log_in(browser: Browser, *, change_callback: Callable[[str], str] = lambda url: url) -> tuple[int, str]:
    """Go through the provider as a browser does. The last status, and where it leads or what the page says."""
    async with browser.request("GET", "/login/oidc?next=/c/chat_1") as response:
        assert response.status == 303, await response.text()
        leaving = response.headers["Location"]
    assert CLIENT_SECRET not in leaving
    async with browser.session.get(leaving, allow_redirects=False) as response:
        back = change_callback(response.headers["Location"])
    async with browser.request("GET", back.removeprefix(browser.server.url), headers=NAVIGATION) as response:
        return response.status, response.headers.get("Location") or await response.text()


async def test_a_user_logs_in_and_goes_where_they_wanted(harness: AppHarness) -> None:
    async with run_provider() as provider:
        server = await start(harness, provider)
        await server.app.accounts.add_user("ada@example.com")
        async with open_browser(server) as browser:
            async with browser.request("GET", "/login/methods") as response:
                assert (await response.json())["oidc"] is True
            status, page = await log_in(browser)
            assert status == 200
            assert "url=/c/chat_1" in page
            async with browser.request("GET", f"{API}/session") as response:
                about = await response.json()
            assert (about["user"]["name"], about["methods"]) == ("ada@example.com", ["token", "oidc"])


@pytest.mark.may_log("a login by OpenID Connect was refused")
async def test_who_is_no_user_here_or_disabled_stays_outside_unless_everybody_may_come(harness: AppHarness) -> None:
    async with run_provider() as provider:
        server = await start(harness, provider)
        async with open_browser(server) as browser:
            assert await log_in(browser) == (303, "/login?problem=user")
            assert await browser.get_status("/models") == 401
        everybody = await start(harness, provider, oidc_create_users=True)
        async with open_browser(everybody) as browser:
            assert (await log_in(browser))[0] == 200
        await server.app.accounts.update_user("ada@example.com", disabled=True)
        async with open_browser(everybody) as browser:
            assert await log_in(browser) == (303, "/login?problem=user")


def forge_key(provider: Provider) -> None:
    provider.signing_key = make_key(2)


def sign_with_public_key(provider: Provider) -> None:
    """The oldest trick: the public key as the secret of a symmetric signature."""
    provider.algorithm = "HS256"
    provider.signing_key = jwk.OctKey.import_key(provider.key.as_pem(private=False).hex())


WRONG: dict[str, Callable[[Provider], None]] = {
    "another key": forge_key,
    "a symmetric signature": sign_with_public_key,
    "another issuer": lambda provider: bend(provider, iss="https://evil.example"),
    "another audience": lambda provider: bend(provider, aud="somebody"),
    "several audiences": lambda provider: bend(provider, aud=[CLIENT_ID, "somebody"]),
    "another party": lambda provider: bend(provider, azp="somebody"),
    "expired": lambda provider: bend(provider, exp=int(time.time()) - 3600),
    "another nonce": lambda provider: bend(provider, nonce="x"),
    "an e-mail that is not verified": lambda provider: bend(provider, email_verified=False),
    "no name": lambda provider: bend(provider, email=None),
}


def bend(provider: Provider, **claims: Any) -> None:
    provider.bend = lambda found: found.update(claims)


@pytest.mark.may_log("a login by OpenID Connect failed")
async def test_a_token_with_anything_wrong_opens_nothing_and_shows_no_secret(
    harness: AppHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with run_provider() as provider:
        server = await start(harness, provider)
        await server.app.accounts.add_user("ada@example.com")
        async with open_browser(server) as browser:
            for what, spoil in WRONG.items():
                provider.signing_key, provider.algorithm, provider.bend = provider.key, "RS256", lambda _claims: None
                spoil(provider)
                assert await log_in(browser) == (303, FAILED), what
            provider.signing_key, provider.algorithm, provider.bend = provider.key, "RS256", lambda _claims: None
            for change in (
                lambda url: url.replace("state=", "state=x"),
                lambda url: url.replace("code=", "code=x"),
                lambda url: url.partition("?")[0] + "?error=access_denied",
            ):
                assert await log_in(browser, change_callback=change) == (303, FAILED)
            assert await browser.get_status("/models") == 401
        callback = "/login/oidc/callback?code=x&state=x"  # without the cookie of the browser that asked
        async with open_browser(server) as stranger, stranger.request("GET", callback) as response:
            assert response.headers["Location"] == FAILED
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("indelible"))
    assert "the ID token was refused" in logged
    for secret in (*provider.seen, CLIENT_SECRET, "access-canary"):
        assert secret not in logged


@pytest.mark.may_log("a login by OpenID Connect failed")
async def test_a_provider_that_cannot_be_reached_or_is_another_is_an_ordinary_failure(harness: AppHarness) -> None:
    async with run_provider() as provider:
        for issuer in ("http://127.0.0.1:9", "http://provider.example", f"{provider.url}/other"):
            server = await start(harness, provider, oidc_issuer=issuer)
            async with open_browser(server) as browser, browser.request("GET", "/login/oidc") as response:
                assert (response.status, response.headers["Location"]) == (303, FAILED)


@pytest.mark.may_log("a login by OpenID Connect was refused")
async def test_nobody_becomes_the_first_admin_by_their_name_at_the_provider(harness: AppHarness) -> None:
    async with run_provider() as provider:
        bend(provider, preferred_username="local")
        for creates in (False, True):
            server = await start(harness, provider, oidc_user_claim="preferred_username", oidc_create_users=creates)
            async with open_browser(server) as browser:
                assert await log_in(browser) == (303, "/login?problem=user")
                assert await browser.get_status("/models") == 401


async def test_a_long_answer_is_read_to_its_end_and_a_forged_cookie_leads_nowhere_else(harness: AppHarness) -> None:
    async with run_provider() as provider:
        provider.padding = "x" * 700_000  # more than arrives at once
        server = await start(harness, provider)
        await server.app.accounts.add_user("ada@example.com")

        def forge(url: str) -> str:
            """What a page of another subdomain can do: replace the cookie by its own."""
            (kept,) = [cookie for cookie in browser.session.cookie_jar if cookie.key == "indelible_oidc"]
            flow = json.loads(base64.urlsafe_b64decode(kept.value)) | {"next": "https://evil.example/"}
            forged = base64.urlsafe_b64encode(json.dumps(flow).encode()).decode()
            browser.session.cookie_jar.update_cookies({"indelible_oidc": forged}, URL(f"{server.url}/login/oidc/x"))
            return url

        async with open_browser(server) as browser:
            status, page = await log_in(browser, change_callback=forge)
        assert status == 200
        assert "url=/" in page
        assert "evil" not in page


@pytest.mark.parametrize(
    ("base", "name", "path"), [("", "__Host-indelible_oidc", "/"), ("/chat", "__Secure-indelible_oidc", "/chat")]
)
@pytest.mark.may_log("a login by OpenID Connect failed")
async def test_over_https_the_cookie_of_a_login_under_way_has_a_prefix(
    harness: AppHarness, base: str, name: str, path: str
) -> None:
    async with run_provider() as provider:
        server = await start(harness, provider, trusted_proxies=["127.0.0.1"], base_path=base)
        await server.app.accounts.add_user("ada@example.com")
        secure = {"X-Forwarded-Proto": "https"}
        async with open_browser(server, base=base) as browser:
            async with browser.request("GET", "/login/oidc", headers=secure) as response:
                (flow,) = SimpleCookie(response.headers["Set-Cookie"]).values()
                leaving = response.headers["Location"]
            assert (flow.key, flow["path"], flow["secure"], flow["httponly"]) == (name, path, True, True)
            async with browser.session.get(leaving, allow_redirects=False) as response:
                back = URL(response.headers["Location"]).raw_path_qs.removeprefix(base)
            for given, status in (("indelible_oidc", 303), (name, 200)):
                headers = {**NAVIGATION, **secure, "Cookie": f"{given}={flow.value}"}
                async with browser.request("GET", back, headers=headers) as response:
                    assert response.status == status, given
                    set_cookies = [SimpleCookie(line) for line in response.headers.getall("Set-Cookie")]
                    cleared = [cookie[name] for cookie in set_cookies if name in cookie]
                    assert [(morsel.value, morsel["path"]) for morsel in cleared] == [("", path)]


@pytest.mark.may_log("a login by OpenID Connect failed")
async def test_the_provider_sends_nobody_to_a_name_that_is_not_ours(harness: AppHarness) -> None:
    async with run_provider() as provider:
        for hosts, host, where in (
            ([], "evil.example", None),
            ([], "127.0.0.1.evil.example", None),
            ([], "localhost:8000", "http://localhost:8000/login/oidc/callback"),
            (["Chats.example"], "chats.example:8443", "http://chats.example:8443/login/oidc/callback"),
        ):
            server = await start(harness, provider, hosts=hosts)
            headers = {**NAVIGATION, "Host": host}
            async with server.request("GET", "//login/oidc", headers=headers, allow_redirects=False) as response:
                leaving = URL(response.headers["Location"])
            if where is None:
                assert str(leaving) == FAILED
            else:
                assert leaving.query["redirect_uri"] == where


def test_a_server_that_others_reach_names_itself_before_it_sends_users_to_a_provider(database: str) -> None:
    given = {"host": "0.0.0.0", "oidc_issuer": "https://idp.example", "oidc_client_id": "x"}  # noqa: S104
    with pytest.raises(Invalid, match="oidc_issuer is set, and hosts is not"):
        Server(load_settings(database=database, **given))
    Server(load_settings(database=database, hosts=["chats.example"], **given))
