"""Others read a shared chat's conversation, and nothing of what its owner keeps beside it."""

from __future__ import annotations

import aiohttp
import pytest
from tests.server.logging_in import bearer
from tests.server.test_access_matrix import make_picture
from tests.support.app_harness import AppHarness
from tests.support.json_client import JsonClient
from tests.support.running_server import API

from indelible.api.events import Position
from indelible.api.inputs import ChatChanges, CreateChat, DraftRequest, EditedMessage, NewMessage
from indelible.app.app import User
from indelible.client.client import RemoteService
from indelible.content import Message, Text
from indelible.errors import NotFound, ReadOnly
from indelible.feed import Cursors
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.server.compat.openai import ResponseName
from indelible.service.files import Upload
from indelible.store.payloads import NewChat

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
BESIDE = {"system-canary", "label-canary", "draft-canary", "queue-canary"}
REQUEST = "request-canary"
MODELS = "model-canary"
RECORDED = '"debug":"all"'
END = "The end"
AWAY = "edited-away-canary"
pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def test_what_stands_beside_a_shared_chat_is_its_owners_alone(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace = await app.accounts.add_user("ada"), await app.accounts.add_user("grace")
    service = app.service_of(ada.id)
    said = Text("Hello", metadata={"kept": "kept-metadata"})
    request = {"response": {"instructions": "request-canary"}}
    above = [
        Message(role="user", blocks=[Text("First")]),
        Message(role="user", visibility="model", blocks=[Text(MODELS)]),
    ]
    new = NewChat(owner_id=ada.id, system_prompt="system-canary", history=above, blocks=[said], request=request)
    created = await app.store.execute(new_id("chat"), c.Create(with_message=True), new)
    chat_id = created.chat_id
    assert (await service.send(chat_id, NewMessage(text="queue-canary"))).queued is not None
    await service.lists.save_draft(chat_id, DraftRequest(text="draft-canary"))
    await service.update_chat(chat_id, ChatChanges(labels=["label-canary"], pinned=True, debug="all", title=END))
    _, key = await app.shares.share_by_link(chat_id, owner_id=ada.id)
    await app.shares.share_with_user(chat_id, "grace", owner_id=ada.id)
    hers, guests = [
        bearer((await app.accounts.create_token(id_, label="", scopes=["read"]))[1]) for id_ in (ada.id, grace.id)
    ]
    chat = f"/chats/{chat_id}"
    paths = [f"{chat}{rest}" for rest in ("", "/messages", "/tree", "/export", "/export?format=md")]
    shown = {}
    for path, headers in (
        (chat, hers),
        (f"{chat}/export", hers),
        *((path, guests) for path in [*paths, "/chats?shared=true"]),
        (f"/shared/{key}", {}),
        (f"/shared/{key}/messages", {}),
    ):
        async with server.request("GET", path, headers=headers) as response:
            assert response.status == 200, (path, await response.text())
            shown[path, bool(headers == hers)] = await response.text()
    for path, headers in (
        (f"{chat}/events", guests),
        (f"{chat}/events?after=start", guests),
        (f"/shared/{key}/events", {}),
        (f"/shared/{key}/events?after=start", {}),
        (f"/events?chat={chat_id}&after=start", guests),
    ):
        async with (
            aiohttp.ClientSession() as session,
            session.get(server.url + API + path, headers=headers) as response,
        ):
            assert response.status == 200
            shown[path, False] = (await response.content.readuntil(b"event: snapshot")).decode()
            shown[path, False] += (await response.content.readuntil(b"\n\n")).decode()
    for (path, is_owner), text in shown.items():
        assert REQUEST not in text, path
        found = {canary for canary in (*BESIDE, MODELS) if canary in text}
        if not is_owner:
            assert not found, path
            assert RECORDED not in text, path
            assert "Hello" in text or path == "/chats?shared=true", path
        elif path == chat:
            assert found == BESIDE, path
            assert RECORDED in text
        else:
            assert found == {"system-canary", "label-canary", MODELS}, path
    assert all("kept-metadata" in shown[path, False] for path in paths[:2])
    response_url = f"{server.url}/v1/responses/{ResponseName(chat_id, created.seq)}"
    async with aiohttp.ClientSession() as session:
        async with session.get(response_url, headers=hers) as response:
            assert REQUEST in await response.text()
        async with session.get(response_url, headers=guests) as response:
            assert response.status == 403
            assert REQUEST not in await response.text()


async def test_a_guest_opens_the_chat_in_process_and_over_http(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace = await app.accounts.add_user("ada"), await app.accounts.add_user("grace")
    created = await app.service_of(ada.id).create_chat(CreateChat(message="Hello"))
    await app.shares.share_with_user(created.id, "grace", owner_id=ada.id)
    _, token = await app.accounts.create_token(grace.id, label="", scopes=["read", "write"])
    async with JsonClient(server.url, token=token) as http:
        for guest in (app.user("grace"), User(RemoteService(http))):
            chat = await guest.chat(created.id)
            assert [message.text for message in await chat.messages()] == ["Hello"]
            assert (await chat.details()).queue == []
            with pytest.raises(ReadOnly):
                await chat.post("Mine")
            with pytest.raises(NotFound):
                await guest.chat(new_id("chat"))


async def test_what_was_edited_away_is_not_shown_to_guests(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace = await app.accounts.add_user("ada"), await app.accounts.add_user("grace")
    service = app.service_of(ada.id)
    picture = await service.files.upload(Upload(make_picture(), "away").open_chunks, name="away")
    above = [Message(role="user", blocks=[Text("First")]), Message(role="assistant", blocks=[Text("Second")])]
    new = NewChat(owner_id=ada.id, history=above, blocks=[Text(AWAY), picture.to_block()])
    created = await app.store.execute(new_id("chat"), c.Create(with_message=True), new)
    chat_id, away_id = created.chat_id, created.messages[-1].id or ""
    cursor = Cursors(chat_id).write(Position(1))  # anybody can write one
    edited = await service.edit(chat_id, away_id, EditedMessage(text="Third"))
    await service.update_chat(chat_id, ChatChanges(title=END))
    _, key = await app.shares.share_by_link(chat_id, owner_id=ada.id)
    await app.shares.share_with_user(chat_id, "grace", owner_id=ada.id)
    hers, guest = [
        bearer((await app.accounts.create_token(id_, label="", scopes=["read"]))[1]) for id_ in (ada.id, grace.id)
    ]
    chat, link = f"/chats/{chat_id}", f"/shared/{key}"

    async def get(path: str, headers: dict[str, str]) -> tuple[int, str]:
        async with server.request("GET", path, headers=headers) as response:
            return response.status, await response.text(errors="replace")

    for path in ("", "/messages", "/tree", "/export"):
        status, text = await get(chat + path, hers)
        assert (status, away_id in text or AWAY in text) == (200, True), path
    for path, headers in (
        *((chat + path, guest) for path in ("", "/messages", "/tree", "/export", "/export?format=md")),
        *((link + path, {}) for path in ("", "/messages")),
    ):
        status, text = await get(path, headers)
        assert status == 200, path
        assert "Third" in text, path
        assert not [word for word in (AWAY, away_id) if word in text], path
    for path, headers in (
        (f"{chat}/messages?before={away_id}", guest),
        (f"{chat}/messages?after={away_id}", guest),
        (f"{link}/messages?before={away_id}", {}),
        *((f"/files/{picture.id}{rest}", guest) for rest in ("", "/preview", "/info")),
        *((f"{link}/files/{picture.id}{rest}", {}) for rest in ("", "/preview", "/info")),
    ):
        assert (await get(path, headers))[0] == 404, path
    assert [name in (await get(f"{chat}/messages?before={edited.message}", guest))[1] for name in ("Second", AWAY)] == [
        True,
        False,
    ]
    assert (await get(f"{chat}/messages?before={away_id}", hers))[0] == 200
    assert (await get(f"/files/{picture.id}", hers))[0] == 200
    for after in ("start", cursor):
        for path, headers in (
            (f"{chat}/events?after={after}", guest),
            (f"{link}/events?after={after}", {}),
            (f"/events?chat={chat_id}&after={after}", guest),
        ):
            async with (
                aiohttp.ClientSession() as session,
                session.get(server.url + API + path, headers=headers) as response,
            ):
                text = (await response.content.readuntil(END.encode())).decode()
                assert "event: snapshot" in text, path
                text += (await response.content.readuntil(b"\n\n")).decode()
                assert "Third" in text, path
                assert not [word for word in (AWAY, away_id) if word in text], path
                later = f"{END} of {path}"
                await service.update_chat(chat_id, ChatChanges(title=later))
                assert (await response.content.readuntil(later.encode())).count(b"event: ") == 1, path
                await service.update_chat(chat_id, ChatChanges(title=END))


async def test_a_guests_export_leaves_no_gap_where_a_row_was_left_out(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace = await app.accounts.add_user("ada"), await app.accounts.add_user("grace")
    hidden = Message(role="user", visibility="model", blocks=[Text(MODELS)])
    above = [hidden, Message(role="user", blocks=[Text("First")]), hidden, hidden]
    new = NewChat(owner_id=ada.id, history=above, blocks=[Text("Second")])
    chat_id = (await app.store.execute(new_id("chat"), c.Create(with_message=True), new)).chat_id
    await app.shares.share_with_user(chat_id, "grace", owner_id=ada.id)
    exported = await app.service_of(grace.id).lists.export_chat(chat_id)
    copied = await app.service_of(grace.id).lists.import_chat(exported)
    page = await app.service_of(grace.id).list_messages(copied.id)
    assert [message.text for message in page.items] == ["First", "Second"]
