"""Databases that the server of an earlier commit filled are upgraded: nothing is lost, and their chats go on.

tests/store/earlier has one of each schema that had a change after it, for both databases; make.py there made them.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.databases import execute
from tests.frozen.schema import describe_database, list_comments
from tests.support.commands import start_indelible
from tests.support.engine import begin_read, close_databases, open_engine
from tests.support.messages import outline
from tests.support.waiting import deadline

import indelible
from indelible.app.chat import Chat
from indelible.content import ToolCall, ToolResult
from indelible.store.database.migrate import FIRST, HEAD, VERSION_TABLE, Migrated, list_revisions, migrate
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

EARLIER = Path(__file__).parent / "earlier"
NUMBERS = sorted(path.name[:4] for path in EARLIER.glob("*.db.gz"))


@pytest.fixture(params=NUMBERS)
def number(request: pytest.FixtureRequest) -> str:
    """The schema of an earlier database."""
    return str(request.param)


async def restore(number: str, database: str) -> None:
    """Make the database what an earlier server left."""
    if database.startswith("postgresql"):
        await execute(database, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        await execute(database, gzip.decompress((EARLIER / f"{number}.sql.gz").read_bytes()).decode())
    else:
        restore_file(number, Path(database))


def restore_file(number: str, path: Path) -> None:
    for left in path.parent.glob(f"{path.name}*"):
        left.unlink()
    path.write_bytes(gzip.decompress((EARLIER / f"{number}.db.gz").read_bytes()))


async def read_rows(database: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table that there was at first, but for the number of the schema."""
    engine = await open_engine(database)
    is_sqlite = engine.dialect.name == "sqlite"
    listed = "SELECT name FROM pragma_table_list WHERE type = 'table' AND schema = 'main' AND name NOT LIKE 'sqlite_%'"
    tables = listed if is_sqlite else "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    found = {}
    async with begin_read(engine) as connection:
        for name in sorted(set(await connection.scalars(text(tables))) - {VERSION_TABLE}):
            rows = (await connection.execute(text(f"SELECT * FROM {name}"))).mappings()  # noqa: S608
            found[name] = sorted((dict(row) for row in rows), key=str)
    await close_databases()
    await engine.dispose()
    return found


def test_every_migration_has_a_database_that_the_server_before_it_filled() -> None:
    """0016 to 0019 came together."""
    numbers = list_revisions()
    assert {FIRST, *numbers[numbers.index("0019") : -1]} <= set(NUMBERS)


# --- the schema -----------------------------------------------------------------------------


async def test_the_files_build_exactly_the_schema_that_the_earlier_server_had(number: str, new_database: str) -> None:
    """For 0015 that is what Alembic built: every column, constraint, index, trigger and comment."""
    await migrate(new_database, target=number)
    ours = await describe_database(new_database)
    comments = await list_comments(new_database) if new_database.startswith("postgresql") else []

    await restore(number, new_database)

    theirs = await describe_database(new_database)
    assert ours == theirs
    assert len(theirs.splitlines()) > 400
    if comments:
        assert comments == await list_comments(new_database)
        assert len(comments) > 150


async def test_an_upgraded_database_has_the_schema_of_a_new_one(number: str, new_database: str) -> None:
    await migrate(new_database)
    ours = await describe_database(new_database)
    await restore(number, new_database)

    assert await migrate(new_database) == Migrated(number, HEAD)

    assert await describe_database(new_database) == ours


# --- what is in it --------------------------------------------------------------------------


async def test_every_row_is_kept(number: str, new_database: str) -> None:
    await restore(number, new_database)
    before = await read_rows(new_database)

    assert await migrate(new_database) == Migrated(number, HEAD)

    after = await read_rows(new_database)
    assert sum(map(len, before.values())) > 500
    for table, rows in before.items():
        kept = [{name: row[name] for name in old} for row, old in zip(after[table], rows, strict=True)]
        if table == "chats" and number == FIRST:  # the imported one, see 0016_titles.sql
            assert [drop_title(row) for row in kept] == [drop_title(row) for row in rows]
        elif table == "messages" and number < "0019":  # it says what happened to a call, and what a notice tells of
            assert [drop_outcomes(row) for row in kept] == [drop_outcomes(row) for row in rows]
            own = set() if number < "0019" else {"compacted"}
            assert {each for row in kept for each in list_outcomes(row)} == {"ran", "stopped"} | own
        else:
            assert kept == rows, table


def drop_title(chat: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chat.items() if not name.startswith("title")}


def drop_outcomes(message: dict[str, Any]) -> dict[str, Any]:
    blocks = json.loads(message["blocks"])
    for block in blocks:
        for name in ("outcome", "reason"):
            block.pop(name, None)
        metadata = block.get("metadata") or {}
        metadata.pop("notice", None)
        block["metadata"] = metadata
    return {**message, "blocks": blocks}


def list_outcomes(message: dict[str, Any]) -> list[str]:
    """What the blocks of a result or a notice say of themselves."""
    blocks = json.loads(message["blocks"])
    results = [block.get("outcome", "ran") for block in blocks if block["type"] == "tool_result"]
    notices = [block["metadata"]["notice"] for block in blocks if "notice" in (block.get("metadata") or {})]
    return results + notices


async def test_its_chats_go_on(number: str, new_database: str) -> None:
    await restore(number, new_database)
    await wait_for_ever(new_database)

    def say(words: str) -> list[Step]:
        return [parts.text_delta("1", words), parts.finish()]

    model = ScriptedModel([say(f"Reply {n}.") for n in range(1, 7)])
    async with indelible.open(new_database, model=model, tools=[weather, plot]) as app:
        listed = await app.chats()
        (tools,) = [chat for chat in listed if chat.title == "Tools"]
        chats = {chat.title: await app.chat(chat.id) for chat in listed}
        running = chats["Tell me a long story, too"]
        await wait_until_answered(running)
        question, half, *rest = outline(await running.messages())
        assert (question[0], half[0]) == ("user", "assistant")
        assert len(half[1]) > 100
        assert rest == [
            ("assistant", "Reply 1."),
            ("user", "And then?"),
            ("assistant", "Reply 2."),
            ("user", "And after that?"),
            ("assistant", "Reply 3."),
        ]
        waiting = chats["Please ask_person about it"]
        (call,) = [
            block for message in await waiting.messages() for block in message.blocks if isinstance(block, ToolCall)
        ]
        answered = await waiting.submit_tool_results([ToolResult(call_id=call.id, name=call.name, output="A")])
        assert answered.text == "Reply 4."
        assert (await chats["Tell me a long story, again"].send("And now?")).text == "Reply 5."
        assert (await chats["Hello from Oslo"].send("And now?")).text == "Reply 6."
        imported = [chat.title for chat in await app.chats() if chat.labels and chat.id != tools.id]
        assert imported == ['Ask weather {"city": "Oslo"}']


async def wait_for_ever(database: str) -> None:
    """Results from outside are still awaited: it is long ago that the earlier server began to wait."""
    forever = "UPDATE chats SET deadline_at = NULL"
    if database.startswith("postgresql"):
        await execute(database, forever)
    else:
        with closing(sqlite3.connect(database)) as connection, connection:
            assert connection.execute(forever).rowcount > 0


@indelible.tool
async def weather(city: str) -> str:
    """The weather in a city."""
    raise AssertionError(city)  # it ran long ago


@indelible.tool
async def plot(city: str) -> str:
    """A plot of the weather."""
    raise AssertionError(city)


async def wait_until_answered(chat: Chat) -> None:
    async with deadline(), aclosing(chat.events()) as events:
        async for _ in events:
            details = await chat.details()
            if details.status == "idle" and not details.queue:
                return


# --- crashes and races -----------------------------------------------------------------------


STOPPED = """
import asyncio, sys
from indelible.store.database.migrate import HEAD, migrate
from indelible.store.database.migration_steps import STEPS

async def wait(transaction):
    print("in the middle", flush=True)
    sys.stdin.read()

STEPS[HEAD] = wait
asyncio.run(migrate(sys.argv[1]))
"""


async def test_a_process_that_is_killed_in_the_middle_of_an_upgrade_changes_nothing(new_database: str) -> None:
    await restore(FIRST, new_database)
    schema, rows = await describe_database(new_database), await read_rows(new_database)

    await asyncio.to_thread(kill_in_the_middle, new_database)

    assert await describe_database(new_database) == schema
    assert await read_rows(new_database) == rows
    assert await migrate(new_database) == Migrated(FIRST, HEAD)


async def test_a_process_that_is_killed_while_it_creates_a_database_leaves_it_empty(new_database: str) -> None:
    await asyncio.to_thread(kill_in_the_middle, new_database)

    assert await read_rows(new_database) == {}
    assert await migrate(new_database) == Migrated(None, HEAD)


def kill_in_the_middle(database: str) -> None:
    command = [sys.executable, "-c", STOPPED, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the middle\n"
        process.kill()


def test_processes_that_start_together_upgrade_once(new_database: str) -> None:
    asyncio.run(restore(FIRST, new_database))

    with ExitStack() as stack:
        started = [stack.enter_context(start_indelible("migrate", "--database", new_database)) for _ in range(3)]
        answers = [process.wait() for process in started]

    assert [(status, error) for status, _, error in answers] == [(0, "")] * 3
    assert sorted(output.split()[0] == "Upgraded" for _, output, _ in answers) == [False, False, True]
