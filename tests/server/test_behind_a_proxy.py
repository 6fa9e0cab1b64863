"""Behind a proxy: whose headers are believed, under which path and name we are served, and other sites' pages."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any

import pytest
from starlette.datastructures import Headers
from tests.server.asking import read_problem
from tests.server.logging_in import bearer, open_browser
from tests.support.app_harness import AppHarness
from tests.support.running_server import API

from indelible.errors import Invalid
from indelible.server.authentication import COOKIE, Proxies, normalize_base_path, split_path

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client", "scheme"),
    [
        ("10.0.0.1", "203.0.113.9", "203.0.113.9", "https"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9", "https"),
        ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9", "https"),
        ("10.0.0.1", "", "10.0.0.1", "https"),
        ("203.0.113.5", "1.1.1.1", "203.0.113.5", "http"),
        ("nonsense", "1.1.1.1", "nonsense", "http"),
    ],
)
def test_a_forwarded_address_counts_from_a_trusted_proxy_alone(
    migrated: str, peer: str, forwarded: str, client: str, scheme: str
) -> None:
    scope: dict[str, Any] = {"client": (peer, 1), "scheme": "http"}
    through = Proxies(["10.0.0.0/8"]).resolve(
        scope, Headers({"x-forwarded-for": forwarded, "x-forwarded-proto": "https"})
    )
    assert (scope["client"][0], scope["scheme"]) == (client, scheme)
    assert through is (scheme == "https")


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        (["1.1.1.1", "203.0.113.9"], "203.0.113.9"),  # the client's own line, and the proxy's
        (["1.1.1.1", "203.0.113.9, 10.0.0.2", "10.0.0.3"], "203.0.113.9"),
        (["1.1.1.1", "unknown"], "10.0.0.1"),
        (["1.1.1.1", "unknown, 10.0.0.2"], "10.0.0.2"),
        (["x" * 60_000], "10.0.0.1"),
        (["203.0.113.9:4711"], "203.0.113.9"),
        (["[2001:db8::1]:4711"], "2001:db8::1"),
        (["2001:DB8:0::1"], "2001:db8::1"),
        (["::ffff:203.0.113.9"], "203.0.113.9"),
        (["", " , "], "10.0.0.1"),
    ],
)
def test_all_lines_of_forwarded_addresses_are_one_list_read_from_the_right(
    migrated: str, lines: list[str], client: str
) -> None:
    scope: dict[str, Any] = {"client": ("10.0.0.1", 1), "scheme": "http"}
    raw = [(b"x-forwarded-for", line.encode()) for line in lines]
    raw += [(b"x-forwarded-proto", b"http"), (b"x-forwarded-proto", b"https")]
    Proxies(["10.0.0.0/8"]).resolve(scope, Headers(raw=raw))
    assert (scope["client"][0], scope["scheme"]) == (client, "https")


def test_what_is_no_network_is_refused_at_the_start(migrated: str) -> None:
    with pytest.raises(Invalid, match=r"trusted_proxies: 'proxy' is neither"):
        Proxies(["proxy"])


@pytest.mark.parametrize("path", ["/chat", "chat", "/chat/", " /chat "])
def test_a_base_path_is_the_same_however_it_is_written(migrated: str, path: str) -> None:
    assert normalize_base_path(path) == "/chat"
    for asked, below in (("/chat/login", "/login"), ("/login", "/login"), ("/chat", "/"), ("/chatter", "/chatter")):
        scope: dict[str, Any] = {"path": asked}
        assert split_path(scope, "/chat") == below
        assert (scope["path"], scope["root_path"]) == (f"/chat{below}", "/chat")


async def test_mounted_under_a_path_it_works_stripped_or_not(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, base_path="/chat")
    for base in ("/chat", ""):
        async with open_browser(server, base=base) as browser:
            async with browser.request("GET", "/", headers={"Accept": "text/html"}) as response:
                assert response.headers["Location"] == "/chat/login?next=/chat/"
            async with browser.request("GET", "/login") as response:
                assert 'src="/chat/web/login.js"' in await response.text()
            async with browser.request("GET", "/web/login.js") as response:
                assert response.status == 200
            async with browser.request("POST", f"{API}/session", json={"token": TOKEN}) as response:
                assert "Path=/chat;" in response.headers["Set-Cookie"]
            async with browser.request("GET", f"{API}/models", headers=bearer(TOKEN)) as response:
                assert response.status == 200


async def test_a_proxy_names_the_user_and_nobody_else_can(harness: AppHarness) -> None:
    named = {"X-Forwarded-User": "ada", "Sec-Fetch-Site": "same-origin"}
    given: dict[str, Any] = {"proxy_user_header": "X-Forwarded-User", "worker": False}
    trusted = await harness.start_server(trusted_proxies=["127.0.0.1"], **given)
    async with trusted.request("GET", "/session", headers=named) as response:
        assert (await response.json())["user"] == {"name": "ada", "role": "user"}
    async with trusted.request("GET", "/session", headers={"X-Forwarded-User": "local"}) as response:
        assert response.status == 401  # the first admin is not the proxy's to name
    async with trusted.request("GET", "/session") as response:
        assert response.status == 401
    async with trusted.request("POST", "/chats", json={}, headers={"X-Forwarded-User": "ada"}) as response:
        assert (await read_problem(response))["kind"] == "forbidden"  # a page of another site could have sent it
    async with trusted.request("POST", "/chats", json={}, headers=named) as response:
        assert response.status == 201
    await trusted.app.accounts.update_user("ada", disabled=True)
    async with trusted.request("GET", "/session", headers=named) as response:
        assert response.status == 401

    other = await harness.start_server(trusted_proxies=["10.0.0.1"], token=TOKEN, **given)
    await other.app.accounts.add_user("grace")
    for name in ("grace", "nobody-yet", "local"):  # this connection comes from no trusted proxy
        async with other.request("GET", "/session", headers={**named, "X-Forwarded-User": name}) as response:
            assert response.status == 401, name
    assert await other.app.accounts.find_user("nobody-yet") is None


async def test_a_user_header_that_comes_twice_names_nobody(harness: AppHarness) -> None:
    """A proxy that adds its header, and does not replace the client's, sends both."""
    server = await harness.start_server(
        trusted_proxies=["127.0.0.1"], proxy_user_header="X-Forwarded-User", worker=False
    )
    both = [("X-Forwarded-User", "eve"), ("X-Forwarded-User", "ada")]
    async with server.request("GET", "/session", headers=both) as response:
        assert response.status == 401


@pytest.mark.parametrize(
    ("base", "name", "path"), [("", "__Host-indelible_session", "/"), ("/chat", "__Secure-indelible_session", "/chat")]
)
async def test_over_https_only_a_cookie_with_a_prefix_counts(
    harness: AppHarness, base: str, name: str, path: str
) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, trusted_proxies=["127.0.0.1"], base_path=base)
    headers = {"X-Forwarded-Proto": "https", "Sec-Fetch-Site": "same-origin"}
    async with server.request("POST", "/session", json={"token": TOKEN}, headers=headers) as response:
        (cookie,) = SimpleCookie(response.headers["Set-Cookie"]).values()
    assert (cookie.key, cookie["path"], cookie["secure"], cookie["httponly"]) == (name, path, True, True)
    assert (cookie["samesite"], cookie["domain"]) == ("strict", "")
    for given, proto, status in (
        (name, "https", 200),
        (COOKIE, "https", 401),
        ("__Host-indelible_session" if base else "__Secure-indelible_session", "https", 401),
        (name, "http", 401),
        (COOKIE, "http", 200),
    ):
        sent = {**headers, "X-Forwarded-Proto": proto, "Cookie": f"theme=dark; {given}={cookie.value}; x=1"}
        async with server.request("GET", "/models", headers=sent) as response:
            assert response.status == status, (given, proto)
    async with server.request(
        "DELETE", "/session", headers={**headers, "Cookie": f"{name}={cookie.value}"}
    ) as response:
        (cleared,) = SimpleCookie(response.headers["Set-Cookie"]).values()
        assert (cleared.key, cleared.value, cleared["path"], cleared["max-age"]) == (name, "", path, "0")


async def test_only_listed_names_and_origins_are_answered(harness: AppHarness) -> None:
    server = await harness.start_server(
        worker=False, token=TOKEN, hosts=["chats.example"], cors_origins=["https://app.example"]
    )
    for host, status in (
        ("chats.example", 200),
        ("chats.example:8443", 200),
        ("evil.example", 421),
        ("localhost", 200),
    ):
        async with server.request("GET", "/models", headers={**bearer(TOKEN), "Host": host}) as response:
            assert response.status == status, host
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with server.request("OPTIONS", "/chats", headers=asked) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert "Access-Control-Allow-Credentials" not in response.headers
        assert "X-Indelible-Chat" in response.headers["Access-Control-Allow-Headers"]
        assert "X-Indelible-Chat" in response.headers["Access-Control-Expose-Headers"]
    named = {**asked, "Access-Control-Request-Headers": "authorization,x-stainless-os, OpenAI-Project,x-remote-user"}
    async with server.request("OPTIONS", "/chats", headers=named) as response:  # as OpenAI's client asks
        allowed = {name.strip().lower() for name in response.headers["Access-Control-Allow-Headers"].split(",")}
        assert {"authorization", "x-stainless-os", "openai-project"} <= allowed
        assert "x-remote-user" not in allowed
    async with server.request("OPTIONS", "/chats", headers={**asked, "Origin": "https://evil.example"}) as response:
        assert "Access-Control-Allow-Origin" not in response.headers
    for origin in ("https://app.example", "https://evil.example"):
        async with server.request("GET", "/models", headers={**bearer(TOKEN), "Origin": origin}) as response:
            assert (response.headers.get("Access-Control-Allow-Origin") == origin) == (origin == asked["Origin"])
            assert response.headers["Vary"] == "Origin"
    async with server.request("POST", "/session", json={"token": TOKEN}) as response:
        cookie = response.cookies[COOKIE].value
    for given, status in (({"Origin": "https://app.example"}, 403), ({"Origin": server.url}, 201)):
        async with server.request("POST", "/chats", json={}, headers=given, cookies={COOKIE: cookie}) as response:
            assert response.status == status, given  # a listed page sends tokens, never the user's cookie
