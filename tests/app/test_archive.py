"""A chat with its files as an archive: written whole, read into another account, in process and over HTTP."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import say

import indelible
from indelible.content import File, ToolResult
from indelible.errors import Invalid
from indelible.files.bytes import CHUNK_BYTES
from indelible.testing import ScriptedModel, parts

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
NOTES = b"It rains in Oslo.\n" * (CHUNK_BYTES // 8)


def list_names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def plot() -> list[Any]:
    return ["Here:", File("text/csv", name="plot.csv", data=b"a,b\n1,2\n")]


async def test_an_imported_archive_has_the_same_messages_and_files(harness: AppHarness, tmp_path: Path) -> None:
    calls = [parts.tool_call("c", "plot", "{}"), parts.finish("tool_calls")]
    server = await harness.start_server(ScriptedModel([calls, say("Done.")]), tools=[plot])
    async with indelible.Client(server.url) as ada:
        notes = await ada.upload(NOTES, name="notes å.txt")
        chat = await ada.create_chat()
        assert (await chat.send(["Plot this", notes])).text == "Done."
        await chat.export_archive(tmp_path / "far.zip")
        before = await chat.messages()
        copied = await ada.import_archive(tmp_path / "far.zip")
    grace = server.app.user("grace")
    copies = [await server.app.chat(copied.id), await grace.import_archive(tmp_path / "far.zip")]
    await copies[1].export_archive(str(tmp_path / "near.zip"))
    await (await server.app.chat(chat.id)).delete()  # and its files: what is left was in the archives
    copies.append(await grace.import_archive(tmp_path / "near.zip"))
    assert list_names(tmp_path) == ["far.zip", "near.zip"]
    for user, copy in zip((server.app, grace, grace), copies, strict=True):
        after = await copy.messages()
        assert [message.text for message in after] == [message.text for message in before]
        sent, made = after[0].blocks[1], after[2].blocks[0]
        assert isinstance(sent, File)
        assert isinstance(made, ToolResult)
        assert (sent.name, made.files[0].name) == ("notes å.txt", "plot.csv")
        assert await user.read_file(sent.file_id or "") == NOTES
        assert await user.read_file(made.files[0].file_id or "") == b"a,b\n1,2\n"
    assert len(await grace.files()) == 4


def make(**members: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_json", ".json"), content)
    return written.getvalue()


WHOLE = make(chat_json=b"x" * 9)
DAMAGED = WHOLE[: (begin := WHOLE.index(b"chat.json") + len("chat.json"))] + b"\xff" + WHOLE[begin + 1 :]


@pytest.mark.parametrize(
    "content",
    [b"PK\5\6" + bytes(18), make(), make(chat_json=b"{}"), WHOLE[:-40], DAMAGED, b"no archive at all"],
    ids=["empty", "nothing in it", "no chat", "cut", "damaged", "no archive"],
)
async def test_a_broken_archive_is_refused(harness: AppHarness, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chat.zip"
    path.write_bytes(content)
    with pytest.raises(Invalid):
        await harness.app.import_archive(path)
    assert await harness.app.chats() == []
    with pytest.raises(Invalid, match="Can't use"):
        await harness.app.import_archive(tmp_path / "none.zip")


async def test_an_export_that_fails_leaves_no_archive(
    harness: AppHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = await harness.app.upload(NOTES, name="notes.txt")
    chat = await harness.app.create_chat([notes])

    async def fail(*_given: Any, **_more: Any) -> AsyncIterator[bytes]:
        yield NOTES[:CHUNK_BYTES]
        raise RuntimeError("the storage is on fire")

    monkeypatch.setattr("indelible.files.store.FileStore.read_file", fail)
    with pytest.raises(RuntimeError, match="on fire"):
        await chat.export_archive(tmp_path / "chat.zip")
    with pytest.raises(Invalid, match="Can't use"):
        await chat.export_archive(tmp_path / "nowhere" / "chat.zip")
    assert list_names(tmp_path) == []
