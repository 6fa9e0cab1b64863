"""Others read a shared chat's conversation, and nothing of what its owner keeps beside it."""

from __future__ import annotations

import aiohttp
import pytest
from tests.server.logging_in import bearer
from tests.support.app_harness import AppHarness
from tests.support.running_server import API

from indelible.service.inputs import ChatChanges

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
BESIDE = ("system-canary", "label-canary", "draft-canary")
pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def test_what_stands_beside_a_shared_chat_is_its_owners_alone(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace = await app.accounts.add_user("ada"), await app.accounts.add_user("grace")
    service = app.service_of(ada.id)
    chat = await service.create_chat("Hello", system="system-canary")
    await service.update_chat(chat.id, ChatChanges(labels=["label-canary"], pinned=True))
    await service.lists.save_draft(chat.id, "draft-canary")
    _, key = await app.shares.share_by_link(chat.id, owner_id=ada.id)
    await app.shares.share_with_user(chat.id, "grace", owner_id=ada.id)
    hers, guests = [
        bearer((await app.accounts.create_token(id_, label="", scopes=["read"]))[1]) for id_ in (ada.id, grace.id)
    ]
    paths = [f"/chats/{chat.id}{rest}" for rest in ("", "/messages", "/tree", "/export", "/export?format=md")]
    shown = {}
    for path, headers in (
        (paths[0], hers),
        *((path, guests) for path in [*paths, "/chats?shared=true"]),
        (f"/shared/{key}", {}),
        (f"/shared/{key}/messages", {}),
    ):
        async with server.request("GET", path, headers=headers) as response:
            assert response.status == 200, (path, await response.text())
            shown[path, bool(headers == hers)] = await response.text()
    for path, headers in (
        (f"{paths[0]}/events", guests),
        (f"/shared/{key}/events", {}),
        (f"/events?chat={chat.id}", guests),
    ):
        async with (
            aiohttp.ClientSession() as session,
            session.get(server.url + API + path, headers=headers) as response,
        ):
            assert response.status == 200
            shown[path, False] = (await response.content.readuntil(b"\n\n")).decode()
    for (path, is_owner), text in shown.items():
        found = [canary for canary in BESIDE if canary in text]
        assert found == (list(BESIDE) if is_owner else []), path
