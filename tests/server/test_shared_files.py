"""A guest of a shared chat opens the files that the chat shows: by the share's authority, and no others."""

from __future__ import annotations

import pytest
from tests.server.logging_in import bearer
from tests.server.test_access_matrix import make_picture
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

from indelible.api.inputs import CreateChat, NewMessage
from indelible.api.shapes import StoredFile
from indelible.content import Message, Text
from indelible.ids import new_id
from indelible.machine import commands as c
from indelible.service.files import Upload
from indelible.store.payloads import NewChat

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def get(server: RunningServer, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    async with server.request("GET", path, headers=headers) as response:
        return response.status, await response.read()


async def test_guests_open_what_the_shared_chat_shows_and_nothing_else(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    app = server.app
    ada, grace, ida = [await app.accounts.add_user(name) for name in ("ada", "grace", "ida")]
    service = app.service_of(ada.id)

    async def upload(name: str) -> StoredFile:
        return await service.files.upload(Upload(make_picture(), name).open_chunks, name=name)

    shown, queued, hidden, elsewhere = [await upload(name) for name in ("shown", "queued", "hidden", "elsewhere")]
    only_model = Message(role="user", visibility="model", blocks=[hidden.to_block()])
    new = NewChat(owner_id=ada.id, history=[only_model], blocks=[Text("Look"), shown.to_block()])
    chat_id = (await app.store.execute(new_id("chat"), c.Create(with_message=True), new)).chat_id
    await service.send(chat_id, NewMessage(content=[queued.to_block(), hidden.to_block()]))
    await service.create_chat(CreateChat(message=[elsewhere.to_block()]))
    link, key = await app.shares.share_by_link(chat_id, owner_id=ada.id)
    share = await app.shares.share_with_user(chat_id, "grace", owner_id=ada.id)
    guest, stranger = [
        bearer((await app.accounts.create_token(id_, label="", scopes=["read"]))[1]) for id_ in (grace.id, ida.id)
    ]
    by_link = f"/shared/{key}/files"
    for rest in ("", "/preview", "/info"):
        assert (await get(server, f"/files/{shown.id}{rest}", guest))[0] == 200
        assert (await get(server, f"{by_link}/{shown.id}{rest}", {}))[0] == 200
        assert (await get(server, f"/files/{shown.id}{rest}", stranger))[0] == 404
        assert (await get(server, f"/files/{shown.id}{rest}", {}))[0] == 401
        for other in (queued, hidden, elsewhere):
            assert (await get(server, f"/files/{other.id}{rest}", guest))[0] == 404
            assert (await get(server, f"{by_link}/{other.id}{rest}", {}))[0] == 404
    assert (await get(server, f"{by_link}/{shown.id}", {}))[1] == make_picture()
    assert (await get(server, f"/files/{shown.id}", guest | {"range": "bytes=1-3"})) == (206, make_picture()[1:4])
    assert (await get(server, "/files", guest))[1] == b'{"items":[],"next":null}'
    for gone in (link, share):
        await app.shares.delete_share(chat_id, gone.id, owner_id=ada.id)
    assert (await get(server, f"{by_link}/{shown.id}", {}))[0] == 404
    assert (await get(server, f"/files/{shown.id}", guest))[0] == 404
