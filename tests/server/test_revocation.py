"""Rights that are taken away end what is open: on this replica, on others, and when a hint is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from tests.server.logging_in import bearer, open_browser
from tests.support.app_harness import AppHarness
from tests.support.running_server import API, RunningServer
from tests.support.waiting import deadline

from indelible.api.inputs import CreateChat
from indelible.errors import StoreFailed
from indelible.notify import Changed, LocalNotifier
from indelible.server.authentication import COOKIE
from indelible.server.compat.openai import ResponseName
from indelible.server.revocation import OpenRequest, Revocation, is_about_rights
from indelible.store.accounts import CredentialKey
from indelible.testing import ManualClock

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
on_sqlite = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


@asynccontextmanager
async def read_feed(server: RunningServer, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
    """An open stream that has begun."""
    url = f"{server.url}{API}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, **more) as response:
        assert response.status == 200, await response.text()
        assert (await response.content.readline()).startswith(b"id: ")
        yield response


async def read_to_end(response: aiohttp.ClientResponse) -> None:
    """The stream ends as a response does: complete, and not as a lost connection."""
    async with deadline():
        await response.read()


@pytest.mark.both_databases
async def test_a_revoked_token_ends_streams_on_every_replica(harness: AppHarness) -> None:
    here = await harness.start_server(worker=False, token=TOKEN)
    there = await harness.start_server(worker=False, token=TOKEN)
    accounts = here.app.accounts
    ada = await accounts.add_user("ada")
    made, secret = await accounts.create_token(ada.id, label="", scopes=["read", "write"])
    kept, other = await accounts.create_token(ada.id, label="", scopes=["read", "write"])
    chat = await here.app.service_of(ada.id).create_chat(CreateChat(title="Rain"))
    feed = f"/chats/{chat.id}/events"
    async with (
        read_feed(here, feed, headers=bearer(secret)) as first,
        read_feed(there, feed, headers=bearer(secret)) as second,
        read_feed(there, feed, headers=bearer(other)) as kept_open,
    ):
        await accounts.revoke_token(made.id)
        await read_to_end(first)
        await read_to_end(second)
        for server in (here, there):
            async with server.request("GET", "/models", headers=bearer(secret)) as response:
                assert response.status == 401
        assert not kept_open.content.at_eof()
    assert [token.id for token in await accounts.list_tokens(ada.id)] == [kept.id]


@on_sqlite
async def test_logout_disabling_and_expiry_end_streams(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    accounts, now = server.app.accounts, server.app.clock.now()
    ada = await accounts.add_user("ada")
    chat = await server.app.service_of(ada.id).create_chat(CreateChat(title="Rain"))
    feed, later = f"/chats/{chat.id}/events", now + timedelta(hours=1)
    own = {"Sec-Fetch-Site": "same-origin"}

    async def log_in() -> str:
        return await accounts.add_session(ada.id, method="oidc", scopes=["read", "write"], expires_at=later)

    secret = await log_in()
    async with (
        read_feed(server, feed, cookies={COOKIE: secret}, headers=own) as stream,
        open_browser(server) as browser,
    ):
        browser.session.cookie_jar.update_cookies({COOKIE: secret}, stream.url.with_path("/"))
        async with browser.request("DELETE", f"{API}/session") as response:
            assert response.status == 204
        await read_to_end(stream)

    secret = await log_in()
    async with read_feed(server, feed, cookies={COOKIE: secret}, headers=own) as stream:
        await accounts.update_user("ada", disabled=True)
        await read_to_end(stream)
    await accounts.update_user("ada", disabled=False)

    secret = await log_in()
    async with read_feed(server, feed, cookies={COOKIE: secret}, headers=own) as stream:
        # Nobody tells: the row is changed by another program.
        await server.app.store.database.write(
            lambda transaction: transaction.run("UPDATE sessions SET expires_at = $1", now - timedelta(seconds=1))
        )
        state = server.server.server_state
        assert state is not None
        await state.revocation.check()
        await read_to_end(stream)


@on_sqlite
async def test_a_removed_share_ends_the_streams_of_its_readers_and_no_others(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace = await app.accounts.add_user("ada"), await app.accounts.add_user("grace")
    chat = await app.service_of(ada.id).create_chat(CreateChat(title="Rain"))
    link, key = await app.shares.share_by_link(chat.id, owner_id=ada.id)
    hers = await app.shares.share_with_user(chat.id, "grace", owner_id=ada.id)
    tokens = [(await app.accounts.create_token(user.id, label="", scopes=["read"]))[1] for user in (ada, grace)]
    feed = f"/chats/{chat.id}/events"
    async with (
        read_feed(server, feed, headers=bearer(tokens[0])) as owners,
        read_feed(server, feed, headers=bearer(tokens[1])) as guests,
        read_feed(server, f"/shared/{key}/events") as strangers,
    ):
        await app.shares.delete_share(chat.id, hers.id, owner_id=ada.id)
        await read_to_end(guests)
        assert not strangers.content.at_eof()
        await app.shares.delete_share(chat.id, link.id, owner_id=ada.id)
        await read_to_end(strangers)
        assert not owners.content.at_eof()
    for path, headers in ((feed, bearer(tokens[1])), (f"/shared/{key}/events", {})):
        async with server.request("GET", path, headers=headers) as response:
            assert response.status == 404


@on_sqlite
async def test_a_revoked_token_ends_the_streams_of_tabs_and_of_every_wire_and_stops_no_reply(
    harness: AppHarness,
) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada = await app.accounts.add_user("ada")
    made, secret = await app.accounts.create_token(ada.id, label="", scopes=["read", "write"])
    chat = await app.service_of(ada.id).create_chat(CreateChat(message="Hello"))
    name = ResponseName(chat.id, (await app.store.status(chat.id)).seq)
    said = [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"{API}/events?chat={chat.id}", None),
        ("GET", f"/v1/responses/{name}?stream=true", None),
        ("POST", "/v1/responses", {"input": "Hi", "stream": True}),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": True}),
        ("POST", "/ai-sdk/chat", {"id": "mine", "messages": said}),
        ("GET", f"/ai-sdk/chat/{chat.id}/stream", None),
    ]
    async with aiohttp.ClientSession(headers=bearer(secret)) as session, AsyncExitStack() as stack:
        streams = []
        for method, path, body in asked:
            stream = await stack.enter_async_context(session.request(method, server.url + path, json=body))
            assert stream.status == 200, (path, await stream.text())
            streams.append(stream)
        await app.accounts.revoke_token(made.id)
        tab, *halves = streams
        await read_to_end(tab)
        for half in halves:
            with pytest.raises(aiohttp.ClientPayloadError):
                await read_to_end(half)
    listed = await app.service_of(ada.id).list_chats()
    assert {shown.status for shown in listed.items} == {"pending"}


async def test_a_request_that_comes_while_a_check_is_under_way_is_not_cut_by_it() -> None:
    """Its rights were not asked for."""
    old, new = CredentialKey("token", "token_old"), CredentialKey("token", "token_new")
    earlier, later = OpenRequest(old), OpenRequest(new)
    forgotten: list[str] = []

    class SlowAccounts:
        async def find_valid(self, keys: list[CredentialKey]) -> set[CredentialKey]:
            assert keys == [old]
            revocation._open.add(later)
            return set()

    revocation = Revocation(
        SlowAccounts(),  # type: ignore[arg-type]
        LocalNotifier(),
        clock=ManualClock(),
        session_timeout_s=60,
        forget=lambda: forgotten.append("all"),
    )
    revocation._open.add(earlier)
    await revocation.check()
    assert (earlier.is_cut, later.is_cut, forgotten) == (True, False, ["all"])


@on_sqlite
@pytest.mark.may_log("checking open streams for revoked logins failed")
async def test_streams_are_cut_after_a_check_that_failed_for_any_reason(
    harness: AppHarness, caplog: pytest.LogCaptureFixture
) -> None:
    server = await harness.start_server(worker=False)
    accounts, failures = server.app.accounts, [ValueError("a mistake in the program"), StoreFailed("away")]

    class FailingAccounts:
        async def find_valid(self, keys: Any) -> set[CredentialKey]:
            if failures:
                raise failures.pop()
            return await accounts.find_valid(keys)

    revocation = Revocation(
        FailingAccounts(),  # type: ignore[arg-type]
        server.app.feed.notifier,
        clock=server.app.clock,
        session_timeout_s=60,
        forget=lambda: None,
    )
    request, never = OpenRequest(CredentialKey("token", "token_gone")), asyncio.Event()
    watched = request.watch(never.wait)  # type: ignore[arg-type]
    request._is_read = True
    revocation._open.add(request)
    running, leaving = asyncio.create_task(revocation.run()), asyncio.ensure_future(watched())
    try:
        async with deadline():
            while not leaving.done():
                revocation.wake()
                await asyncio.sleep(0)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert leaving.result()["type"] == "http.disconnect"
    assert failures == []
    assert "trying again" in caplog.text


@on_sqlite
async def test_use_is_noted_and_a_session_then_lasts_longer(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    accounts, soon = server.app.accounts, server.app.clock.now() + timedelta(minutes=5)
    ada = await accounts.add_user("ada")
    _, token = await accounts.create_token(ada.id, label="", scopes=["read"])
    secret = await accounts.add_session(ada.id, method="oidc", scopes=["read"], expires_at=soon)
    for more in ({"headers": bearer(token)}, {"cookies": {COOKIE: secret}}):
        async with server.request("GET", "/models", **more) as response:
            assert response.status == 200
    state = server.server.server_state
    assert state is not None
    await state.revocation.note_used()
    assert (await accounts.list_tokens(ada.id))[0].last_used_at is not None
    found = await accounts.find_session(secret)
    assert found is not None
    assert found.expires_at is not None
    assert found.expires_at > soon


@on_sqlite
async def test_a_request_that_is_cut_sees_its_client_leave_and_leaves_no_task(harness: AppHarness) -> None:
    never = asyncio.Event()
    body: list[Any] = [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b"},
    ]

    async def receive() -> Any:
        if not body:
            await never.wait()
        return body.pop(0)

    request = OpenRequest()
    watched = request.watch(receive)
    assert [(await watched())["body"] for _ in range(2)] == [b"a", b"b"]
    leaving: asyncio.Future[Any] = asyncio.ensure_future(watched())
    await asyncio.sleep(0)
    request.cut()
    assert (await leaving)["type"] == "http.disconnect"
    assert (await watched())["type"] == "http.disconnect"


def test_hints_about_chats_are_not_about_rights() -> None:
    assert not is_about_rights(Changed(frozenset({"chat_1"}), for_readers=frozenset({"chat_2"})))
    assert is_about_rights(Changed(for_readers=frozenset({"user_1"})))
    assert is_about_rights(Changed(everything=True))
