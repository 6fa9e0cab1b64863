"""Who a request comes from: the order of credentials, what is remembered, and what is not passed over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.server.logging_in import bearer
from tests.support.app_harness import AppHarness

from indelible.api.inputs import CreateChat
from indelible.server.authentication import COOKIE, GUESSES, REMEMBERED_S
from indelible.testing import ManualClock

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def test_on_loopback_a_token_is_its_user_a_wrong_one_nobody_and_a_stale_cookie_nothing(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(worker=False)
    ada = await server.app.accounts.add_user("ada")
    made, secret = await server.app.accounts.create_token(ada.id, label="", scopes=["read"])
    cookies = {COOKIE: "ids_stale"}
    for more, name in (({}, "local"), ({"headers": bearer(secret)}, "ada"), ({"cookies": cookies}, "local")):
        async with server.request("GET", "/session", **more) as response:
            about = await response.json()
            assert (about["user"]["name"], about["login"]) == (name, "none")
    await server.app.accounts.revoke_token(made.id)
    for given in (secret, "idt_wrong"):
        async with server.request("GET", "/session", headers=bearer(given), cookies=cookies) as response:
            assert response.status == 401


async def test_a_token_is_looked_up_once_in_a_while_and_forgotten_at_any_change(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    state, accounts = server.server.server_state, server.app.accounts
    assert state is not None
    ada = await accounts.add_user("ada")
    _, secret = await accounts.create_token(ada.id, label="", scopes=["read"])
    brief = await accounts.add_session(
        ada.id, method="oidc", scopes=["read"], expires_at=server.app.clock.now() + timedelta(hours=1)
    )
    remembered = state.authenticator._remembered
    for more in ({"headers": bearer(secret)}, {"cookies": {COOKIE: brief}}):
        async with server.request("GET", "/models", **more) as response:
            assert response.status == 200
    assert len(remembered) == 2
    assert secret.encode() not in b"".join(remembered)
    await accounts.update_user("ada", role="admin")
    assert not remembered
    async with server.request("GET", "/session", headers=bearer(secret)) as response:
        assert (await response.json())["user"]["role"] == "admin"


async def test_what_is_remembered_ends_by_itself_if_nobody_tells_of_a_change(harness: AppHarness) -> None:
    """Another program changes the rows, and its hints are lost."""
    clock = ManualClock()
    server = await harness.start_server(
        worker=False, clock=clock, trusted_proxies=["127.0.0.1"], proxy_user_header="X-User"
    )
    accounts, end = server.app.accounts, clock.now() + timedelta(days=9)
    ada = await accounts.add_user("ada")
    _, token = await accounts.create_token(ada.id, label="", scopes=["read"])
    session = await accounts.add_session(ada.id, method="oidc", scopes=["read"], expires_at=end)
    ways: list[dict[str, Any]] = [
        {"headers": bearer(token)},
        {"cookies": {COOKIE: session}},
        {"headers": {"X-User": "ada"}},
    ]

    async def list_statuses() -> list[int]:
        statuses = []
        for more in ways:
            async with server.request("GET", "/models", **more) as response:
                statuses.append(response.status)
        return statuses

    assert await list_statuses() == [200, 200, 200]
    await server.app.store.database.write(
        lambda transaction: transaction.run("UPDATE users SET disabled_at = $1 WHERE id = $2", clock.now(), ada.id)
    )
    assert await list_statuses() == [200, 200, 200]
    clock.advance(REMEMBERED_S)
    assert await list_statuses() == [401, 401, 401]


async def test_what_was_looked_up_before_a_change_is_not_remembered_after_it(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    assert server.server.server_state is not None
    authenticator = server.server.server_state.authenticator
    before = authenticator._changes
    authenticator.forget()  # while the lookup is under way
    assert authenticator._remember(b"key", authenticator._local, before) is authenticator._local
    assert authenticator._remembered == {}


async def test_a_remembered_login_ends_at_its_expiry(harness: AppHarness) -> None:
    clock = ManualClock()
    server = await harness.start_server(worker=False, clock=clock, token=TOKEN)
    ada, end = await server.app.accounts.add_user("ada"), clock.now() + timedelta(seconds=REMEMBERED_S / 2)
    _, token = await server.app.accounts.create_token(ada.id, label="", scopes=["read"], expires_at=end)
    for status in (200, 401):
        async with server.request("GET", "/models", headers=bearer(token)) as response:
            assert response.status == status
        clock.advance(REMEMBERED_S / 2)


async def test_another_cookie_may_stand_before_ours(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    ada = await server.app.accounts.add_user("ada")
    end = server.app.clock.now() + timedelta(hours=1)
    session = await server.app.accounts.add_session(ada.id, method="oidc", scopes=["read"], expires_at=end)
    for before in ("theme=dark; ", f"x{COOKIE}=1; ", f"{COOKIE}=; ", "flag; ", "a=b=c;"):
        async with server.request("GET", "/models", headers={"Cookie": f"{before}{COOKIE}={session}"}) as response:
            assert response.status == 200, before


async def test_on_openais_wire_without_a_login_a_token_is_its_user_and_any_other_key_the_local_one(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(worker=False)
    ada = await server.app.accounts.add_user("ada")
    made, secret = await server.app.accounts.create_token(ada.id, label="", scopes=["read"])
    created = await server.app.service_of(ada.id).create_chat(CreateChat(title="Hers"))
    hers = f"//v1/conversations/conv_{created.id.removeprefix('chat_')}/items"
    for given, status in ((secret, 200), ("none", 404), ("sk-1", 404)):
        async with server.request("GET", hers, headers=bearer(given)) as response:
            assert response.status == status, given
    async with server.request("POST", "//v1/conversations", json={}, headers=bearer(secret)) as response:
        assert response.status == 403  # a token for reading stays one
    await server.app.accounts.revoke_token(made.id)
    for _ in range(GUESSES + 5):  # a client of OpenAI that has some key guesses nothing
        async with server.request("GET", "//v1/models", headers=bearer(secret)) as response:
            assert response.status == 200
    for path in ("/models", "//ai-sdk/chat/x/messages", "//docs?/v1/"):
        async with server.request("GET", path, headers=bearer(secret)) as response:
            assert response.status == 401, path


async def test_a_stale_cookie_is_no_guess(harness: AppHarness) -> None:
    for settings, status in (({}, 200), ({"token": TOKEN}, 401)):
        server = await harness.start_server(worker=False, **settings)
        for _ in range(GUESSES + 5):
            async with server.request("GET", "/models", cookies={COOKIE: "ids_stale"}) as response:
                assert response.status == status


async def test_static_files_are_asked_for_by_nobody_and_cut_for_nobody(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    state = server.server.server_state
    assert state is not None
    ada = await server.app.accounts.add_user("ada")
    session = await server.app.accounts.add_session(
        ada.id, method="oidc", scopes=["read"], expires_at=server.app.clock.now() + timedelta(hours=1)
    )
    async with server.request("GET", "//web/login.css", cookies={COOKIE: session}) as response:
        assert response.status == 200
        assert {"Content-Security-Policy", "Cache-Control"} <= set(response.headers)
    assert (state.authenticator._remembered, state.revocation._used) == ({}, set())
