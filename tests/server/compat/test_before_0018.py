"""A database from before `turns.request`: its responses repeat their requests as before, and its messages hide nothing.

`before_0018.json` has the rows that the code before that column wrote when its HTTP API was used (commit 19bb6006), and
what it answered: responses that continue others, a copy, calls of a client with and without a message beside their
results, a conversation that was brought along, a message with metadata of its user's own, and a chat of the AI SDK. It
also has what that code exported of these chats.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from sqlalchemy import text
from tests.server.compat.compat_clients import open_openai
from tests.server.compat.test_ai_sdk import Hook, read_ui_text, user
from tests.support.app_harness import serve_app
from tests.support.engine import begin_read, begin_write, is_sqlite, open_engine
from tests.support.running_server import say

from indelible.store.database.migrate import migrate
from indelible.store.store import Store
from indelible.store.transfer import parse_file
from indelible.testing import ScriptedModel

BEFORE: dict[str, Any] = json.loads(Path(__file__).with_name("before_0018.json").read_text(encoding="utf-8"))

LATER = {"chats": "head_id", "turns": "message_id"}
"""Columns that name rows of a table further below."""


def read_value(name: str, value: Any, *, sqlite: bool) -> Any:
    """JSON has no bytes, and only PostgreSQL has times and booleans."""
    if isinstance(value, dict):
        return value["text"].encode() if "text" in value else base64.b64decode(value["base64"])
    if sqlite:
        return value
    if name.endswith("_at") or name == "at":
        return datetime.fromisoformat(value)
    return bool(value) if name in {"archived", "pinned", "partial", "packed", "title_is_provisional"} else value


async def write_rows(database: str) -> None:
    engine = await open_engine(database)
    async with begin_write(engine) as connection:
        for table, rows in BEFORE["rows"].items():
            for row in rows:
                given = {name: read_value(name, value, sqlite=is_sqlite(engine)) for name, value in row.items()}
                given.pop(LATER.get(table, ""), None)
                names = ", ".join(f'"{name}"' for name in given)
                holes = ", ".join(f":{name}" for name in given)
                await connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({holes})"), given)  # noqa: S608
        for table, column in LATER.items():
            for row in BEFORE["rows"][table]:
                await connection.execute(text(f"UPDATE {table} SET {column} = :{column} WHERE id = :id"), row)  # noqa: S608
    await engine.dispose()


async def read_blocks(database: str) -> dict[str, Any]:
    engine = await open_engine(database)
    async with begin_read(engine) as connection:
        rows = (await connection.execute(text("SELECT id, blocks FROM messages"))).all()
    await engine.dispose()
    return {row.id: json.loads(bytes(row.blocks)) for row in rows}


async def test_responses_of_before_repeat_their_requests_and_can_be_continued(new_database: str) -> None:
    await migrate(new_database, target="0017")
    await write_rows(new_database)
    before = await read_blocks(new_database)
    await migrate(new_database)
    after = await read_blocks(new_database)

    assert sum("request" in (block.get("metadata") or {}) for blocks in before.values() for block in blocks) > 8
    left = [block for blocks in after.values() for block in blocks if "request" in (block.get("metadata") or {})]
    assert [block["metadata"] for block in left] == [{"request": "mine", "kept": 1}]
    for id_, blocks in before.items():
        assert [strip(block) for block in blocks] == [strip(block) for block in after[id_]]
    model = ScriptedModel([say("Three."), say("Hook three.")])
    async with serve_app(new_database, model) as server:
        for response_id, answered in BEFORE["answers"].items():
            async with server.request("GET", f"//v1/responses/{response_id}") as response:
                assert await response.json() == answered["response"]
            async with server.request("GET", f"//v1/responses/{response_id}/input_items") as response:
                assert await response.json() == answered["input_items"]
        async with server.request("GET", f"/chats/{BEFORE['chat']}/messages") as response:
            assert (await response.json())["items"] == BEFORE["messages"]["items"]
        hook = Hook(server)
        assert await hook.load() == BEFORE["hook"]
        async with open_openai(server) as client:
            second = list(BEFORE["answers"])[1]
            third = await client.responses.create(input="Third?", previous_response_id=second, instructions="Be long.")
            assert (third.output_text, third.instructions) == ("Three.", "Be long.")
        await hook.post(user("c", "More?"))
        assert [read_ui_text(message) for message in (await hook.load())[-2:]] == ["More?", "Hook three."]


async def test_a_chat_that_was_exported_before_is_imported_as_it_was_migrated(new_database: str) -> None:
    await migrate(new_database, target="0017")
    await write_rows(new_database)
    (owner_id,) = {row["owner_id"] for row in BEFORE["rows"]["chats"]}
    noted = [metadata for file in BEFORE["exports"].values() for metadata in list_metadata(file["messages"])]
    assert sum("request" in metadata for metadata in noted) > 8
    left = []
    async with Store.open(new_database) as store:
        for chat_id, exported in BEFORE["exports"].items():
            file = parse_file(json.dumps(exported).encode())
            imported_id = (await store.import_chat(file, owner_id=owner_id)).chat_id
            migrated, imported = await store.export_chat(chat_id), await store.export_chat(imported_id)
            assert imported.messages == migrated.messages == file.messages
            left += list_metadata(to_builtins(imported.messages))
    assert [metadata for metadata in left if "request" in metadata] == [{"request": "mine", "kept": 1}]
    assert any("ui_id" in metadata for metadata in left)


def list_metadata(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block["metadata"] for message in messages for block in message["blocks"] if block.get("metadata")]


def strip(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name != "metadata"}
