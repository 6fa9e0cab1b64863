"""Logging in and out, tokens and users over HTTP; and that no secret is left anywhere."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, cast

import pytest
from tests.server.asking import read_problem
from tests.server.logging_in import bearer, open_browser
from tests.support.app_harness import AppHarness
from tests.support.running_server import API

from indelible.api.inputs import CreateChat
from indelible.api.shapes import Scope
from indelible.logs import JsonFormatter, Redactor
from indelible.server.authentication import COOKIE
from indelible.server.login import offer_login
from indelible.server.oidc import is_own_path

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)


async def test_a_browser_logs_in_with_the_first_token_and_out_again(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    async with open_browser(server) as browser:
        async with browser.request("GET", "/", headers={"Accept": "text/html"}) as response:
            assert (response.status, response.headers["Location"]) == (303, "/login?next=/")
        async with browser.request("GET", "/login") as response:
            assert response.status == 200
            assert "<script>" not in await response.text()
        assert await browser.get_status("/chats") == 401

        async with browser.request("POST", f"{API}/session", json={"token": TOKEN}) as response:
            cookie = SimpleCookie(response.headers["Set-Cookie"])[COOKIE]
            assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
            assert not cookie["secure"]  # it came by http
            about = await response.json()
        assert about["user"] == {"name": "local", "role": "admin"}
        assert (about["login"], about["methods"]) == ("required", ["token"])
        async with browser.request("GET", f"{API}/session") as response:
            assert await response.json() == about
        async with browser.request("POST", f"{API}/chats", json={"title": "Rain"}) as response:
            assert response.status == 201

        async with browser.request("DELETE", f"{API}/session") as response:
            assert response.status == 204
            assert 'indelible_session=""' in response.headers["Set-Cookie"]
        assert await browser.get_status("/chats") == 401


async def test_a_session_of_the_first_token_ends_when_the_setting_changes(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    async with open_browser(server) as browser:
        await browser.log_in(TOKEN)
        (cookie,) = browser.session.cookie_jar
    for token, status in ((TOKEN, 200), ("another-token", 401)):
        other = await harness.start_server(worker=False, token=token)
        async with other.request("GET", "/models", cookies={COOKIE: cookie.value}) as response:
            assert response.status == status


async def test_the_printed_link_logs_in_once(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    path = await offer_login(server.app.accounts, clock=server.app.clock)
    token = path.partition("#token=")[2]
    async with server.request("GET", "/models", headers=bearer(token)) as response:
        assert response.status == 401  # it opens a session, and nothing else
    async with open_browser(server) as browser:
        assert (await browser.log_in(token))["user"]["role"] == "admin"
        assert await browser.get_status("/models") == 200
        async with browser.request("POST", f"{API}/session", json={"token": token}) as response:
            assert (await read_problem(response))["detail"].startswith("This token is not valid.")


async def test_a_token_gives_no_more_than_its_maker_has(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    accounts = server.app.accounts
    ada = await accounts.add_user("ada")
    made: dict[str, Any] = {}
    _, manager = await accounts.create_token(ada.id, label="", scopes=["read", "admin"])
    for scopes, status in ((["write"], 403), (["read", "read"], 422), (["read"], 201)):
        body = {"scopes": scopes, "label": "x"}
        async with server.request("POST", "/tokens", json=body, headers=bearer(manager)) as response:
            assert response.status == status
            made = await response.json()
    async with server.request("GET", "/tokens", headers=bearer(manager)) as response:
        assert made["token"] not in await response.text()
    for path, status in (("/users", 403), ("/models", 200)):
        async with server.request("GET", path, headers=bearer(manager)) as response:
            assert response.status == status
    async with server.request("DELETE", f"/tokens/{made['id']}", headers=bearer(manager)) as response:
        assert response.status == 204
    async with server.request("GET", "/models", headers=bearer(made["token"])) as response:
        assert response.status == 401


async def test_what_others_used_is_for_admins_with_a_token_of_that_scope(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    accounts = server.app.accounts
    ada, grace = await accounts.add_user("ada"), await accounts.add_user("grace", role="admin")
    for user, scopes, status in (
        (grace, ["read", "write", "admin"], 200),
        (grace, ["read", "admin"], 200),
        (grace, ["read", "write"], 403),
        (ada, ["read", "write", "admin"], 403),
        (ada, ["read", "write"], 403),
    ):
        _, token = await accounts.create_token(user.id, label="", scopes=cast(list[Scope], scopes))
        for query in ("?user=local", "?by=user"):
            async with server.request("GET", f"/usage{query}", headers=bearer(token)) as response:
                assert response.status == status, (user.name, scopes, query)
        async with server.request("GET", "/usage", headers=bearer(token)) as response:
            assert response.status == 200


async def test_a_token_ends_no_later_than_the_one_that_it_was_made_with(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    accounts, now = server.app.accounts, server.app.clock.now()
    ada, end = await accounts.add_user("ada"), now + timedelta(hours=1)
    _, brief = await accounts.create_token(ada.id, label="", scopes=["read", "admin"], expires_at=end)
    endless = await accounts.add_session(
        ada.id, method="oidc", scopes=["read", "admin"], expires_at=now + timedelta(minutes=1)
    )
    opened = await accounts.open_session(brief, expires_at=now + timedelta(days=9))
    assert opened is not None
    own = {"Sec-Fetch-Site": "same-origin"}
    makers: list[dict[str, Any]] = [
        {"headers": bearer(brief)},
        {"headers": own, "cookies": {COOKIE: opened[1]}},
        {"headers": own, "cookies": {COOKIE: endless}},
    ]
    ends: list[list[datetime | None]] = []
    for maker in makers:
        ends.append([])
        for wanted in ({}, {"expires_in_s": 86400}, {"expires_in_s": 60}):
            body = {"scopes": ["read", "admin"], **wanted}
            async with server.request("POST", "/tokens", json=body, **maker) as response:
                made = await response.json()
                expires_at = made["expires_at"]
                ends[-1].append(None if expires_at is None else datetime.fromisoformat(expires_at))
    for limited in ends[:2]:
        assert limited[:2] == [end, end]
        assert limited[2] is not None
        assert limited[2] < end
    assert ends[2][0] is None
    assert ends[2][1] is not None
    assert ends[2][1] > end


async def test_an_admin_manages_users_and_not_themselves(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    headers = bearer(TOKEN)
    async with server.request("POST", "/users", json={"name": "ada", "role": "admin"}, headers=headers) as response:
        assert response.status == 201
    ada = await server.app.accounts.find_user("ada")
    assert ada is not None
    _, hers = await server.app.accounts.create_token(ada.id, label="", scopes=["read", "admin"])
    async with server.request("PATCH", "/users/ada", json={"disabled": True}, headers=bearer(hers)) as response:
        assert "yourself" in (await read_problem(response))["detail"]
    async with server.request("PATCH", "/users/ada", json={"disabled": True}, headers=headers) as response:
        assert (await response.json())["disabled"] is True
    async with server.request("GET", "/models", headers=bearer(hers)) as response:
        assert response.status == 401


async def test_the_first_admin_is_not_disabled_or_demoted_by_a_request_that_could_not_hold(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    grace = await server.app.accounts.add_user("grace", role="admin")
    _, hers = await server.app.accounts.create_token(grace.id, label="", scopes=["read", "admin"])
    for change in ({"disabled": True}, {"role": "user"}, {"role": "user", "disabled": False}):
        async with server.request("PATCH", "/users/local", json=change, headers=bearer(hers)) as response:
            assert "first admin" in (await read_problem(response))["detail"], change
    found = await server.app.accounts.find_user("local")
    assert found is not None
    assert (found.role, found.disabled) == ("admin", False)
    for change in ({"disabled": False}, {"role": "admin"}):
        async with server.request("PATCH", "/users/local", json=change, headers=bearer(hers)) as response:
            assert response.status == 200, change


async def test_a_body_of_unknown_fields_is_refused_at_the_first_and_not_repeated(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    fields = {f"field{number}": "a-secret" for number in range(51)}
    for path in ("/session", "/tokens", "/users"):
        async with server.request("POST", path, json=fields, headers=bearer(TOKEN)) as response:
            assert (await read_problem(response))["detail"] == "body: Object contains unknown field `field0`"


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "https://evil.example", "", "/a\nb"])
def test_after_a_login_nobody_is_sent_elsewhere(migrated: str, path: str) -> None:
    assert not is_own_path(path)
    assert is_own_path("/c/chat_1?x=1#y")


async def test_secrets_are_in_no_log_no_error_and_no_file(
    harness: AppHarness, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, access_log=True)
    app = server.app
    caplog.set_level(logging.DEBUG)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    ada = await app.accounts.add_user("ada")
    _, token = await app.accounts.create_token(ada.id, label="", scopes=["read", "write", "admin"])
    session = await app.accounts.add_session(
        ada.id, method="oidc", scopes=["read"], expires_at=app.clock.now() + timedelta(hours=1)
    )
    chat = await app.service_of(ada.id).create_chat(CreateChat(title="Rain"))
    _, key = await app.shares.share_by_link(chat.id, owner_id=ada.id)
    told = []
    for path, more in (
        ("/models", {"headers": bearer(token)}),
        ("/models", {"headers": bearer(token + "x")}),
        ("/models", {"cookies": {COOKIE: session}}),
        ("/chats/nothing", {"cookies": {COOKIE: session}}),
        (f"/shared/{key}", {}),
        (f"/shared/{key}x/messages", {}),
        (f"/chats/{key}", {"headers": bearer(token)}),
    ):
        async with server.request("GET", path, **more) as response:
            told.append(await response.text())
    for body in ({"token": token, "more": token}, {"tokn": token}, {"token": [token]}, {"token": token + "x"}):
        async with server.request("POST", "/session", json=body, headers={"Origin": server.url}) as response:
            told.append(await response.text())
    formatter = JsonFormatter(Redactor([TOKEN]))
    logged = "\n".join(
        formatter.format(record) for record in caplog.records if record.name.startswith(("indelible", "uv"))
    )
    assert "/shared/***" in logged
    files = b"".join(file.read_bytes() for file in Path(database).parent.iterdir())
    for secret in (token, session, key, TOKEN):
        assert secret not in "".join(told)
        assert secret not in logged.replace(f"/chats/{secret}", "")
        assert secret.encode() not in files
