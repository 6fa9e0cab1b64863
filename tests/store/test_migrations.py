"""Migrations build exactly what tables/ declares, keep what is there, and refuse what they do not know."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.databases import execute
from tests.store.test_file_lock import start_holder
from tests.support.commands import run_indelible, start_indelible
from tests.support.engine import begin_read, begin_write, close_databases, get_database, is_sqlite, open_engine
from tests.support.stored import load_journal, load_ledger

import indelible
from indelible.api.records import RunRecord
from indelible.content import File, Text, TextDelta, Usage, encode
from indelible.machine.commands import Delete, Send, SwitchBranch, UpdateChat
from indelible.recording.storage.sql_records import SqlRecords
from indelible.store.commands.totals import Totals
from indelible.store.database import postgres
from indelible.store.database.errors import DatabaseUnusable, SchemaTooNew
from indelible.store.database.migrate import (
    HEAD,
    VERSION_TABLE,
    Migrated,
    OldProcessesRunning,
    list_revisions,
    load_revision,
    migrate,
)
from indelible.store.database.migrations.runner import _ADVISORY_LOCK
from indelible.store.database.sqlite.file_lock import exclusive_file_lock
from indelible.store.database.tables.chats import (
    chats,
    idempotency_keys,
    journal,
    metadata,
    queue,
    tool_runs,
    turns,
    workers,
)
from indelible.store.payloads import ChatPatch, UserInput
from indelible.store.store import Store

# Everything that a server knows about a schema: columns, constraints and indexes, as it would write them itself.
POSTGRES_CATALOGUE = """
SELECT c.relname, 'column', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
    a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (c.oid, a.attnum)
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT conrelid::regclass::text, 'constraint', conname, pg_get_constraintdef(oid), NULL, NULL, NULL
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT tablename, 'index', indexname, indexdef, NULL, NULL, NULL FROM pg_indexes WHERE schemaname = 'public'
"""


async def close(engine: AsyncEngine) -> None:
    await close_databases()
    await engine.dispose()


async def read_catalogue(engine: AsyncEngine) -> set[Any]:
    async with begin_read(engine) as connection:
        if engine.dialect.name == "postgresql":
            rows = (await connection.execute(text(POSTGRES_CATALOGUE))).all()
            return {tuple(row) for row in rows if row[0] != VERSION_TABLE}
        made = (await connection.scalars(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"))).all()
        return {read_statement(statement) for statement in made if VERSION_TABLE not in statement}


def read_statement(statement: str) -> tuple[str, frozenset[str], str]:
    """A statement of SQLite's without spaces: what it makes, each column and constraint, and what follows."""
    head, _, rest = "".join(statement.split()).partition("(")
    body, _, tail = rest.rpartition(")")
    return head, frozenset(place for piece in re.split(r",(?![^()]*\))", body) for place in part_reference(piece)), tail


def part_reference(piece: str) -> list[str]:
    """A column that was added later has its rule beside it; one that was always there, among the constraints."""
    found = re.fullmatch(r"(\w+?)TEXT(DEFAULT'\w*'NOTNULL)?(CONSTRAINT\w+)((REFERENCES|CHECK).*)", piece)
    if found is None:
        return [piece]
    column, default, rule, text, kind = found.groups()
    told = f"{rule}FOREIGNKEY({column}){text}" if kind == "REFERENCES" else f"{rule}{text}"
    return [f"{column}TEXT{default or ''}", told]


async def test_the_migrations_build_exactly_the_tables(new_database: str) -> None:
    await migrate(new_database)
    engine = await open_engine(new_database)
    migrated = await read_catalogue(engine)
    async with begin_write(engine) as connection:
        await connection.run_sync(drop_everything)
        await connection.run_sync(metadata.create_all)
    declared = await read_catalogue(engine)
    await close(engine)

    assert len(migrated) > 30
    assert migrated == declared


def drop_everything(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    else:
        metadata.drop_all(connection)


async def test_alembic_finds_nothing_to_add(database: str) -> None:
    engine = await open_engine(database)
    async with begin_read(engine) as connection:
        found = await connection.run_sync(find_differences)
    await close(engine)

    assert found == []


def find_differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "compare_server_default": True}
    )
    found = list(compare_metadata(context, metadata))
    if connection.dialect.name == "sqlite":  # where it does not understand a reference that stands beside its column
        found = [difference for difference in found if difference[0] not in ("add_fk", "remove_fk")]
        of_search = ("search_index", "search_entries_words")  # made by FTS5 itself; only on PostgreSQL
        found = [each for each in found if not any(name in str(each) for name in of_search)]
    return found


async def test_every_reference_of_the_tables_is_one_in_sqlite(migrated_sqlite: Path) -> None:
    with closing(sqlite3.connect(migrated_sqlite)) as connection:
        made = {
            (table, row[2], row[3], row[4], row[6])
            for table in metadata.tables
            for row in connection.execute(f"PRAGMA foreign_key_list({table})")
        }
    declared = {
        (table.name, key.column.table.name, key.parent.name, key.column.name, key.ondelete or "NO ACTION")
        for table in metadata.tables.values()
        for key in table.foreign_keys
    }
    assert made == declared


async def test_the_comments_are_in_the_database_on_postgres(new_postgres: str) -> None:
    await migrate(new_postgres)
    engine = await open_engine(new_postgres)
    async with begin_read(engine) as connection:
        told = await connection.scalars(
            text("SELECT description FROM pg_description WHERE objoid = 'journal'::regclass")
        )
        found = set(told)
    await close(engine)

    assert found == {journal.comment, *(column.comment for column in journal.columns if column.comment)}


async def test_the_upgrade_to_0003_keeps_turns_and_keys_and_begins_to_count(new_database: str) -> None:
    await migrate(new_database, target="0002")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    async with begin_write(engine) as connection:
        for statement in WORK_OF_0002.split(";"):
            given = {"bytes": b"1", "parts": encode([TextDelta("1", "Hello")])}
            await connection.execute(text(statement), {name: given[name] for name in given if f":{name}" in statement})
    await close(engine)

    assert await migrate(new_database) == Migrated("0002", HEAD)

    engine = await open_engine(new_database)
    store = Store(get_database(engine))
    async with begin_read(engine) as connection:
        turn = (await connection.execute(select(turns))).one()
        key = (await connection.execute(select(idempotency_keys))).one()
    assert (turn.id, turn.takeovers, turn.stalled_takeovers) == ("t", 2, 1)
    assert (turn.model, turn.journal_rows_at_takeover) == (None, 0)
    assert (key.key, key.body, key.chat_id) == ("k", b"1", None)
    await store.beat("w2")
    (taken,) = await store.acquire("w2", limit=1)
    assert taken.turn_id == "t"
    async with begin_read(engine) as connection:
        turn = (await connection.execute(select(turns))).one()
    counted = (turn.takeovers, turn.stalled_takeovers, turn.journal_rows_at_takeover)
    assert counted == (3, 0, 1), "what was said before counts as new once"
    await store.execute("c", Delete())
    async with begin_read(engine) as connection:
        assert (await connection.execute(select(idempotency_keys.c.key))).scalars().all() == ["k"]
    await close(engine)


async def test_the_upgrade_to_0006_renames_the_status_of_chats_and_of_their_events(new_database: str) -> None:
    await migrate(new_database, target="0005")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    async with begin_write(engine) as connection:
        for statement in STATUS_OF_0005.split(";"):
            await connection.execute(text(statement), {"status": b'{"status":"waiting"}'} if ":" in statement else {})
    await close(engine)

    assert await migrate(new_database) == Migrated("0005", HEAD)

    engine = await open_engine(new_database)
    store = Store(get_database(engine))
    assert (await store.view("c")).status == "idle"
    assert [event.payload for event in await store.events("c", after=0)] == [{"status": "idle"}]
    await store.execute("c", Send(), UserInput(blocks=[Text("Hello")]))
    assert (await store.view("c")).status == "pending"
    await close(engine)


async def test_the_upgrade_to_0004_lets_chats_of_before_be_recorded(new_database: str) -> None:
    await migrate(new_database, target="0003")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    await close(engine)

    assert await migrate(new_database) == Migrated("0003", HEAD)

    engine = await open_engine(new_database)
    store = Store(get_database(engine))
    assert (await store.view("c")).debug is None
    await store.execute("c", UpdateChat(), ChatPatch(debug="all"))
    assert (await store.view("c")).debug == "all"
    at = datetime(2026, 11, 15, tzinfo=UTC)
    run = RunRecord(id="r", chat_id="c", turn_id=None, kind="title", status="in_progress", worker_id="w", started_at=at)
    await SqlRecords(store.database).write([run])
    assert [found.id for found in await SqlRecords(store.database).list_runs("c")] == ["r"]
    await store.execute("c", Delete())
    assert await SqlRecords(store.database).list_runs("c") == []
    await close(engine)


async def test_the_upgrade_to_0009_gives_branches_their_errors_and_waiting_chats_their_time(new_database: str) -> None:
    await migrate(new_database, target="0008")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    async with begin_write(engine) as connection:
        for statement in FAILURE_OF_0008.split(";"):
            await connection.execute(text(statement), {"bytes": b'{"kind":"auth"}'} if ":bytes" in statement else {})
    await close(engine)

    assert await migrate(new_database) == Migrated("0008", HEAD)

    engine = await open_engine(new_database)
    store = Store(get_database(engine))
    async with begin_read(engine) as connection:
        chat = (await connection.execute(select(chats))).one()
    assert (chat.runnable_at, chat.tools) == (chat.updated_at, None)
    await store.execute("c", SwitchBranch(message_id="m", exact=True))
    assert ((await store.view("c")).status, (await store.view("c")).error) == ("idle", None)
    await store.execute("c", SwitchBranch(message_id="m"))
    assert ((await store.view("c")).status, (await store.view("c")).error) == ("error", {"kind": "auth"})
    async with begin_write(engine) as connection:
        await connection.execute(text("UPDATE messages SET role = 'assistant', reason = 'max_steps' WHERE id = 'm'"))
    await close(engine)


async def test_the_upgrade_to_0012_adds_up_what_chats_have_used(new_database: str) -> None:
    await migrate(new_database, target="0011")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    copy = """
        INSERT INTO messages (chat_id, id, role, blocks, usage, cost_nanousd, created_at)
        SELECT chat_id, {}, role, blocks, :usage, {}, created_at FROM messages WHERE id = 'm'
        """
    async with begin_write(engine) as connection:
        await connection.execute(text(copy.format("'n'", "5")), {"usage": b'{"input_tokens":3,"output_tokens":1}'})
        await connection.execute(text(copy.format("'o'", "NULL")), {"usage": b'{"input_tokens":4}'})
    await close(engine)

    assert await migrate(new_database) == Migrated("0011", HEAD)

    engine = await open_engine(new_database)
    totals = (await Store(get_database(engine)).view("c")).totals
    assert totals == Totals(Usage(input_tokens=7, output_tokens=1), 5)
    await close(engine)


async def test_the_upgrade_to_0016_names_untitled_chats_after_their_first_words(new_database: str) -> None:
    await migrate(new_database, target="0015")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    copy_chat = """
        INSERT INTO chats (id, owner_id, status, title, head_id, created_at, updated_at)
        SELECT {}, owner_id, status, {}, NULL, created_at, updated_at FROM chats WHERE id = 'c'
        """
    copy_message = """
        INSERT INTO messages (chat_id, id, role, blocks, visibility, created_at)
        SELECT {}, 'm', {}, :blocks, {}, created_at FROM messages WHERE chat_id = 'c'
        """
    words = encode([Text("# Is it\0 raining?\nIn Oslo")])
    chosen: dict[str, tuple[str, str, str, bytes]] = {
        "untitled": ("NULL", "'user'", "'both'", words),
        "titled": ("'Rain'", "'user'", "'both'", words),
        "hidden": ("NULL", "'user'", "'model'", words),
        "wordless": ("NULL", "'user'", "'both'", encode([File(file_id="f")])),
        "unreadable": ("NULL", "'user'", "'both'", b"{"),
        "undecodable": ("NULL", "'user'", "'both'", b'[{"type":"text","text":"\xff"}]'),
    }
    async with begin_write(engine) as connection:
        for name, (title, role, visibility, blocks) in chosen.items():
            await connection.execute(text(copy_chat.format(f"'{name}'", title)))
            given = {"blocks": blocks}
            await connection.execute(text(copy_message.format(f"'{name}'", role, visibility)), given)
            await connection.execute(text(f"UPDATE chats SET head_id = 'm' WHERE id = '{name}'"))  # noqa: S608
        await connection.execute(text(copy_chat.format("'empty'", "NULL")))
    await close(engine)

    assert await migrate(new_database) == Migrated("0015", HEAD)

    engine = await open_engine(new_database)
    async with begin_read(engine) as connection:
        rows = (await connection.execute(select(chats.c.id, chats.c.title, chats.c.title_is_provisional))).all()
    found = {row.id: (row.title, row.title_is_provisional) for row in rows if row.id != "c"}
    assert found == {
        "untitled": ("Is it\ufffd raining?", True),
        "titled": ("Rain", False),
        **dict.fromkeys(("hidden", "wordless", "unreadable", "undecodable", "empty"), (None, False)),
    }
    await close(engine)


@pytest.mark.parametrize("revision", ["0001", "0006"])
async def test_the_upgrade_to_0007_names_the_chat_of_every_row_and_keeps_all_of_it(
    new_database: str, revision: str
) -> None:
    await migrate(new_database, target=revision)
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    column = "if_busy" if revision >= "0006" else '"when"'
    async with begin_write(engine) as connection:
        for statement in WORK_OF_ANY.format(if_busy=column).split(";"):
            await connection.execute(text(statement), {"bytes": b"[]"} if ":bytes" in statement else {})
    await close(engine)

    assert await migrate(new_database) == Migrated(revision, HEAD)

    engine = await open_engine(new_database)
    async with begin_read(engine) as connection:
        rows = [tuple(row) for row in await connection.execute(select(journal).order_by(journal.c.n))]
        (run,) = (await connection.execute(select(tool_runs))).all()
        (waiting,) = (await connection.execute(select(queue))).all()
    assert [row[:4] for row in sorted(rows, key=lambda row: int(row[2]))] == [
        ("c", "a", n, b"[]") for n in range(1, len(rows) + 1)
    ]
    assert len(rows) == 3
    assert (run.chat_id, run.turn_id, run.step, run.attempt_id, run.state) == ("c", "t", 1, "a", "started")
    assert (waiting.chat_id, waiting.id, waiting.position, waiting.if_busy) == ("c", "q", 1, "steer")
    store = Store(get_database(engine))
    assert [row.n for row in await load_journal(store, "c", "a")] == [1, 2, 3]
    assert [entry.name for entry in await load_ledger(store, "c", "t")] == ["look"]
    await store.execute("c", Delete())
    async with begin_read(engine) as connection:
        for table in (journal, tool_runs, queue):
            assert (await connection.execute(select(table))).all() == []
    await close(engine)


async def test_an_upgrade_from_any_older_revision_keeps_every_row_of_every_table_and_in_its_chat(
    new_database: str, tmp_path: Path
) -> None:
    """Each older revision is made from the one before it; a copy of it is filled and upgraded in one transaction."""
    for revision in list_revisions()[:-1]:
        await migrate(new_database, target=revision)
        async with copy_database(new_database, tmp_path) as copy:
            await check_upgrade(copy, revision)


@asynccontextmanager
async def copy_database(database: str, directory: Path) -> AsyncIterator[str]:
    if not database.startswith("postgresql"):
        yield shutil.copy(database, str(directory / "copy.db"))
        return
    url, name = make_url(database), f"copy_of_{make_url(database).database}"
    server = url.set(database="postgres").render_as_string(hide_password=False)
    await execute(server, f"CREATE DATABASE {name} TEMPLATE {url.database}")
    yield url.set(database=name).render_as_string(hide_password=False)
    await execute(server, f"DROP DATABASE {name} WITH (FORCE)")


async def check_upgrade(database: str, revision: str) -> None:
    engine = await open_engine(database)
    given = {**rows_of_nobody(), **{f"{table} {chat}": row for chat in "cd" for table, row in rows_of(chat).items()}}
    async with begin_write(engine) as connection:
        known = await list_columns(connection)
        for name, row in given.items():
            today = name.split()[0]
            if (table := today if today in known else FORMER_TABLES.get(today, today)) in known:
                former = {"content": b"[]", "chat_id": name[-1]} if table == "files" else {}
                await connection.exec_driver_sql(*spell_insert(table, {**former, **row}, known[table], engine))
        former_status = "idle" if revision >= "0006" else "waiting"
        await connection.exec_driver_sql(f"UPDATE chats SET status = '{former_status}' WHERE id = 'd'")  # noqa: S608
        await connection.exec_driver_sql("UPDATE chats SET head_id = 'reply_' || id")
        await connection.execute(text("UPDATE messages SET blocks = :blocks"), {"blocks": BLOCKS})
    before = await read_everything(engine)
    await close(engine)

    assert await migrate(database) == Migrated(revision, HEAD)

    engine = await open_engine(database)
    assert await load_revision(get_database(engine)) == HEAD
    after = await read_everything(engine)
    assert [row["status"] for row in before["chats"]] == ["running", former_status]
    before["chats"][1]["status"] = "idle"
    before |= {} if "file_chunks" in before else move_files(before)
    for table in metadata.tables:
        kept = [
            {name: row[name] for name in old} for row, old in zip(after[table], before.get(table, []), strict=False)
        ]
        assert kept == before.get(table, []), (revision, table)
        rows = 0 if table not in before else 1 if table in rows_of_nobody() else 2
        assert len(after[table]) == rows, (revision, table)
    assert [row["blocks"] for row in after["messages"]] == [BLOCKS, BLOCKS]
    assert {*rows_of_nobody(), *rows_of("c")} == set(metadata.tables)
    led = [
        table
        for table in before
        if table in metadata.tables and "chat_id" in metadata.tables[table].primary_key.columns
    ]
    assert all([row["chat_id"] for row in after[table]] == ["c", "d"] for table in led), revision
    store = Store(get_database(engine))
    assert [row.n for row in await load_journal(store, "c", "attempt_c")] == [1]
    assert [entry.name for entry in await load_ledger(store, "c", "turn_c")] == ["look"]
    await store.execute("c", Delete())
    left = await read_everything(engine)
    assert all([row["chat_id"] for row in left[table]] == ["d"] for table in led), revision
    await close(engine)


AT = "2026-11-15T09:00:00.000000Z"
LONG_AGO = "2001-01-01T00:00:00.000000Z"
FORMER_NAMES = {"if_busy": "when", "stalled_takeovers": "barren_takeovers", "journal_rows_at_takeover": "said"}
FORMER_TABLES = {"ephemeral_chats": "passing_chats"}


def move_files(before: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """What becomes of the rows of files from before they had chunks and uses."""
    rows = before.pop("files", None)
    if rows is None:
        return {}
    gone = ("content", "chat_id", "name")
    return {
        "files": [{name: value for name, value in row.items() if name not in gone} for row in rows],
        "file_chunks": [{"file_id": row["id"], "content": row["content"]} for row in rows],
        "file_uses": [{"file_id": row["id"], "chat_id": row["chat_id"]} for row in rows],
    }


def rows_of_nobody() -> dict[str, dict[str, Any]]:
    """A row of each table that knows nothing of chats."""
    return {
        "users": {"id": "u", "name": "Ada", "created_at": AT},
        "tokens": {"id": "k", "user_id": "u", "hash": b"[]", "name": "laptop", "created_at": AT},
        "sessions": {"id": "s", "user_id": "u", "hash": b"[]", "method": "oidc", "scopes": "read", "created_at": AT,
                     "last_used_at": AT, "expires_at": AT},
        "workers": {"id": "w", "started_at": AT, "heartbeat_at": LONG_AGO},
        "usage_days": {"user_id": "u", "day": "2026-11-15", "model": "demo", "shard": 0, "input_tokens": 1,
                       "output_tokens": 2, "cost_nanousd": 3, "turns": 1},
        "new_drafts": {"user_id": "u", "content": b"[]", "updated_at": AT},
    }  # fmt: skip


def rows_of(chat: str) -> dict[str, dict[str, Any]]:
    """A row of each table for a chat, as they are now, in an order in which they can be written."""
    turn, attempt, run = f"turn_{chat}", f"attempt_{chat}", f"run_{chat}"
    own = {"chat_id": chat}
    text = {"chat_id": chat, "id": f"reply_{chat}", "role": "assistant", "blocks": b"[]", "created_at": AT}
    call = {"call_index": 0, "call_id": "x", "name": "look", "arguments": b"[]", "state": "started"}
    file = {"media_type": "text/plain", "size_bytes": 2, "sha256": b"[]", "created_at": AT}
    file |= {"state": "ready", "name": "a.txt", "place": "database", "preview": "none"}
    done = {"key": f"key_{chat}", "route": "POST /", "body_hash": b"[]", "status": 201, "body": b"[]", "expires_at": AT}
    said = {"method": "POST", "url": "/", "request_headers": b"[]", "request_body": b"[]", "response_body": b"[]"}
    return {
        "chats": {"id": chat, "owner_id": "u", "status": "running", "created_at": AT, "updated_at": AT, "seq": 1},
        "turns": {**own, "id": turn, "number": 1, "kind": "reply", "started_at": AT, "takeovers": 3,
                  "stalled_takeovers": 2, "journal_rows_at_takeover": 1},
        "attempts": {**own, "id": attempt, "turn_id": turn, "step": 1, "number": 1, "epoch": 4, "started_at": AT,
                     "usage": b"[]", "model": "demo"},
        "messages": {**text, "turn_id": turn, "attempt_id": attempt, "timings": b"[]"},
        "queue": {**own, "id": f"queued_{chat}", "position": 1, "if_busy": "steer", "content": b"[]", "author_id": "u",
                  "created_at": AT},
        "events": {**own, "seq": 1, "kind": "message", "ref": f"reply_{chat}", "payload": b"[]", "at": AT},
        "journal": {**own, "attempt_id": attempt, "n": 1, "parts": b"[]", "at": AT},
        "tool_runs": {**own, "turn_id": turn, "step": 1, "attempt_id": attempt, "idempotency_key": turn,
                      "started_at": AT, **call},
        "idempotency_keys": {**own, "user_id": "u", **done},
        "drafts": {**own, "user_id": "u", "content": b"[]", "updated_at": AT},
        "shares": {**own, "id": f"share_{chat}", "user_id": "u", "created_at": AT},
        "files": {"id": f"file_{chat}", "owner_id": "u", **file},
        "file_chunks": {"file_id": f"file_{chat}", "variant": "content", "n": 0, "content": b"[]"},
        "file_uses": {**own, "file_id": f"file_{chat}"},
        "search_entries": {"id": 1 if chat == "c" else 2, **own, "owner_id": "u", "words": "rain"},
        "chat_labels": {**own, "label": "weather", "owner_id": "u"},
        "ephemeral_chats": {**own},
        "debug_runs": {**own, "id": run, "turn_id": turn, "kind": "turn", "status": "in_progress", "worker_id": "w",
                       "started_at": AT, "model": "demo"},
        "debug_steps": {**own, "run_id": run, "step": 1, "status": "completed", "error": "none", "started_at": AT,
                        "ended_at": AT},
        "debug_attempts": {**own, "run_id": run, "step": 1, "number": 1, "status": "completed", "status_code": 200,
                           "started_at": AT, "ended_at": AT, "head_at": AT, **said},
    }  # fmt: skip


COLUMNS = {
    "sqlite": "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'",
    "postgresql": "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'",
}


async def list_columns(connection: AsyncConnection) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    rows: Any = await connection.exec_driver_sql(COLUMNS[connection.dialect.name])
    for table, column in rows:
        found.setdefault(table, set()).add(column)
    return found


def spell_insert(
    table: str, row: dict[str, Any], known: set[str], engine: AsyncEngine
) -> tuple[str, tuple[bytes, ...]]:
    """In plain SQL, as far as the table has these columns, under the names that they have in its revision."""
    hole = "?" if is_sqlite(engine) else "$1"
    old = {name if name in known else FORMER_NAMES.get(name, name): value for name, value in row.items()}
    values = {name: hole if value == b"[]" else repr(value) for name, value in old.items() if name in known}
    names = ", ".join(f'"{name}"' for name in values)
    statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join(values.values())})"  # noqa: S608
    bytes_ = list(values.values()).count(hole)
    return statement, (b"[]",) * (bytes_ if is_sqlite(engine) else min(bytes_, 1))


async def read_everything(engine: AsyncEngine) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, under the names that it and its columns have today."""
    now = {before: today for today, before in {**FORMER_NAMES, **FORMER_TABLES}.items()}
    found: dict[str, list[dict[str, Any]]] = {}
    async with begin_read(engine) as connection:
        for table in sorted(set(await list_columns(connection)) - {VERSION_TABLE}):
            rows = (await connection.exec_driver_sql(f"SELECT * FROM {table}")).mappings()  # noqa: S608
            named = [{now.get(name, name): value for name, value in row.items()} for row in rows]
            found[now.get(table, table)] = sorted(named, key=find_chat)
    return found


def find_chat(row: dict[str, Any]) -> str:
    """The chat that a row is of, by the names in it: the chat's own, or one that ends with it."""
    return next((str(value)[-1] for value in row.values() if re.fullmatch(r"(\w+_)?[cd]", str(value))), "")


WORK_OF_ANY = """
INSERT INTO turns (id, chat_id, number, kind, message_id, started_at)
    VALUES ('t', 'c', 1, 'reply', 'm', '2026-11-15T09:00:00.000000Z');
INSERT INTO attempts (id, chat_id, turn_id, step, number, epoch, started_at)
    VALUES ('a', 'c', 't', 1, 1, 4, '2026-11-15T09:00:00.000000Z');
INSERT INTO journal (attempt_id, n, parts, at) VALUES ('a', 1, :bytes, '2026-11-15T09:00:00.000000Z');
INSERT INTO journal (attempt_id, n, parts, at) VALUES ('a', 2, :bytes, '2026-11-15T09:00:00.000000Z');
INSERT INTO journal (attempt_id, n, parts, at) VALUES ('a', 3, :bytes, '2026-11-15T09:00:00.000000Z');
INSERT INTO tool_runs (turn_id, step, call_index, attempt_id, call_id, name, arguments, state, idempotency_key,
        started_at)
    VALUES ('t', 1, 0, 'a', 'call', 'look', :bytes, 'started', 'key', '2026-11-15T09:00:00.000000Z');
INSERT INTO queue (id, chat_id, position, {if_busy}, content, author_id, created_at)
    VALUES ('q', 'c', 1, 'steer', :bytes, 'u', '2026-11-15T09:00:00.000000Z');
UPDATE chats SET status = 'running', holder = 'w', epoch = 4
"""
WORK_OF_0002 = """
INSERT INTO turns (id, chat_id, number, kind, message_id, started_at, takeovers, barren_takeovers)
    VALUES ('t', 'c', 1, 'reply', 'm', '2026-11-15T09:00:00.000000Z', 2, 1);
INSERT INTO attempts (id, chat_id, turn_id, step, number, epoch, started_at)
    VALUES ('a', 'c', 't', 1, 1, 4, '2026-11-15T09:00:00.000000Z');
INSERT INTO journal (attempt_id, n, parts, at) VALUES ('a', 1, :parts, '2026-11-15T09:00:00.000000Z');
UPDATE chats SET status = 'running', holder = 'w', epoch = 4;
INSERT INTO idempotency_keys (user_id, key, route, body_hash, status, body, expires_at)
    VALUES ('u', 'k', 'POST /chats', :bytes, 201, :bytes, '2026-11-16T09:00:00.000000Z')
"""
FAILURE_OF_0008 = """
INSERT INTO messages (chat_id, id, parent_id, role, visibility, blocks, created_at)
    VALUES ('c', 'n', 'm', 'notice', 'people', '[]', '2026-11-15T09:00:01.000000Z');
UPDATE chats SET head_id = 'n', status = 'error', error = :bytes
"""
STATUS_OF_0005 = """
INSERT INTO events (chat_id, seq, kind, payload, at) VALUES ('c', 1, 'status', :status, '2026-11-15');
UPDATE chats SET seq = 1
"""
BLOCKS = b'[{"type":"text","text":"\\u0000 Hei"}]'
# In plain SQL: what tables/ says holds for the newest revision only.
A_CHAT = """
INSERT INTO users (id, name, created_at) VALUES ('u', 'Ada', '2026-11-15T09:00:00.000000Z');
INSERT INTO chats (id, owner_id, status, created_at, updated_at)
    VALUES ('c', 'u', 'waiting', '2026-11-15T09:00:00.000000Z', '2026-11-15T09:00:00.000000Z');
INSERT INTO messages (chat_id, id, role, blocks, created_at)
    VALUES ('c', 'm', 'user', :blocks, '2026-11-15T09:00:00.000000Z');
UPDATE chats SET head_id = 'm'
"""


async def write_a_chat(engine: AsyncEngine) -> None:
    is_idle = (await load_revision(get_database(engine)) or "") >= "0006"
    async with begin_write(engine) as connection:
        for statement in A_CHAT.replace("waiting", "idle" if is_idle else "waiting").split(";"):
            await connection.execute(text(statement), {"blocks": BLOCKS} if ":blocks" in statement else {})


async def test_migrating_again_changes_nothing(database: str) -> None:
    engine = await open_engine(database)
    before = await read_catalogue(engine)

    assert await migrate(database) == Migrated(HEAD, HEAD)

    assert await read_catalogue(engine) == before
    await close(engine)


def test_processes_that_start_together_migrate_once(new_database: str) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(start_indelible("migrate", "--database", new_database)) for _ in range(3)]
        answers = [process.wait() for process in started]

    assert [(status, error) for status, _, error in answers] == [(0, "")] * 3
    assert sum(output.startswith("Created ") for _, output, _ in answers) == 1
    assert all(output.endswith(f"(schema {HEAD}).\n") for _, output, _ in answers)
    assert sum("is up to date" in output for _, output, _ in answers) == 2


async def test_tasks_that_start_together_migrate_once(new_database: str) -> None:
    done = await asyncio.gather(*[migrate(new_database) for _ in range(4)])

    assert sorted(done, key=str) == [Migrated(HEAD, HEAD)] * 3 + [Migrated(None, HEAD)]


async def test_nothing_is_migrated_under_a_process_of_an_earlier_version(new_database: str) -> None:
    former = list_revisions()[-2]
    await migrate(new_database, target=former)
    engine = await open_engine(new_database)
    await beat_at(engine, datetime.now(UTC) + timedelta(days=1))

    with start_holder(Path(new_database)) if is_sqlite(engine) else nullcontext() as holder:
        with pytest.raises(OldProcessesRunning, match=f"schema {former}, and 1 process of an earlier Indelible"):
            await migrate(new_database)
        with pytest.raises(OldProcessesRunning, match=r"indelible migrate --force"):
            async with indelible.open(new_database, worker=False):
                pytest.fail("it was migrated")
        refused = await asyncio.to_thread(run_indelible, "migrate", "--database", new_database)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert len(refused.stderr.splitlines()) == 1
        assert await load_revision(get_database(engine)) == former
        done = await asyncio.to_thread(run_indelible, "migrate", "--force", "--database", new_database)
        if holder is not None:
            holder.kill()
    assert (done.returncode, done.stderr) == (0, "")
    assert await load_revision(get_database(engine)) == HEAD
    await close(engine)


async def test_a_worker_that_is_dead_keeps_nobody_from_migrating(new_database: str) -> None:
    former = list_revisions()[-2]
    await migrate(new_database, target=former)
    engine = await open_engine(new_database)
    # On SQLite nobody holds the file, so the process was killed, however late its last heartbeat was.
    await beat_at(engine, datetime.now(UTC) + timedelta(days=1 if is_sqlite(engine) else -1))

    with exclusive_file_lock(new_database):  # as a server that starts
        assert await migrate(new_database) == Migrated(former, HEAD)
    await beat_at(engine, datetime.now(UTC) + timedelta(days=1))
    assert await migrate(new_database) == Migrated(HEAD, HEAD)
    await close(engine)


async def beat_at(engine: AsyncEngine, moment: datetime) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(workers.delete())
        await connection.execute(workers.insert().values(id="w", started_at=moment, heartbeat_at=moment))


async def test_a_newer_schema_is_refused_with_what_to_do(new_database: str) -> None:
    await migrate(new_database)
    engine = await open_engine(new_database)
    async with begin_write(engine) as connection:
        await connection.execute(text("UPDATE indelible_schema SET version_num = '9999'"))

    with pytest.raises(SchemaTooNew, match=f"schema 9999; this one knows up to {HEAD}.*Upgrade Indelible"):
        await migrate(new_database)
    with pytest.raises(SchemaTooNew):
        async with Store.open(new_database):
            pass
    assert await load_revision(get_database(engine)) == "9999"
    await close(engine)


async def test_a_database_of_something_else_is_left_alone(new_database: str) -> None:
    engine = await open_engine(new_database)
    async with begin_write(engine) as connection:
        await connection.execute(text("CREATE TABLE users (email TEXT)"))

    with pytest.raises(DatabaseUnusable, match=r"tables of another application \(users\)"):
        await migrate(new_database)

    assert await load_revision(get_database(engine)) is None
    await close(engine)


async def test_a_migration_that_fails_leaves_nothing_behind(new_postgres: str) -> None:
    engine = await open_engine(new_postgres)
    async with begin_write(engine) as connection:
        await connection.execute(text("CREATE VIEW files AS SELECT 1 AS id"))  # in the way of the second revision

    with pytest.raises(Exception, match="files"):
        await migrate(new_postgres)

    assert await load_revision(get_database(engine)) is None
    async with begin_read(engine) as connection:
        left = await connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        assert list(left) == []
    await close(engine)


async def test_a_file_whose_rows_hang_in_the_air_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    await migrate(path, target="0001")
    with closing(sqlite3.connect(path)) as connection:  # which does not look at foreign keys
        connection.execute(
            "INSERT INTO events VALUES ('nowhere', 1, 'status', NULL, NULL, '2026-11-15T09:00:00.000000Z')"
        )
        connection.commit()

    with pytest.raises(DatabaseUnusable, match="rows of events refer to rows that do not exist"):
        await migrate(path)

    engine = await open_engine(path)
    assert await load_revision(get_database(engine)) == "0001"
    await close(engine)


def test_every_revision_is_a_module_that_is_named_after_it() -> None:
    folder = Path(sys.modules["indelible.store.database.migrate"].__file__ or "").parent / "migrations" / "versions"
    modules = sorted(path.stem for path in folder.glob("v*.py"))

    assert [name[1:5] for name in modules] == list_revisions()


async def test_a_migration_may_take_longer_than_any_other_statement(
    new_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for another one, or rewrites a large table: the limit for statements does not hold for it."""
    await migrate(new_postgres, target="0005")
    monkeypatch.setattr(postgres, "COMMAND_TIMEOUT_S", 0.2)
    other = await open_engine(new_postgres)
    async with other.connect() as watching, other.connect() as holding:
        await holding.execute(text(FOR_AS_LONG_AS_IT_TAKES))
        await holding.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        migrating = asyncio.create_task(migrate(new_postgres))
        while not (await watching.execute(text(WAITS_LONG))).scalar_one():
            await watching.rollback()
        await holding.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": _ADVISORY_LOCK})
        await holding.commit()
        assert await migrating == Migrated("0005", HEAD)
    await other.dispose()


FOR_AS_LONG_AS_IT_TAKES = "SET idle_in_transaction_session_timeout = 0"
WAITS_LONG = """
SELECT count(*) FROM pg_stat_activity
WHERE query LIKE '%pg_advisory_xact_lock%' AND wait_event_type = 'Lock'
    AND clock_timestamp() - query_start > interval '1 s'
"""


async def test_a_migration_waits_for_a_command_and_does_not_deadlock_with_it(new_postgres: str) -> None:
    await migrate(new_postgres, target="0005")
    engine = await open_engine(new_postgres)
    await write_a_chat(engine)
    async with engine.connect() as watching, engine.connect() as command:
        await command.execute(text(FOR_AS_LONG_AS_IT_TAKES))
        await command.execute(text("SELECT id FROM chats FOR NO KEY UPDATE"))
        migrating = asyncio.create_task(migrate(new_postgres))
        while not (await watching.execute(text(WAITS_FOR_CHATS))).scalar_one():
            await watching.rollback()
        await command.execute(text("SELECT count(*) FROM turns"))
        await command.commit()
        assert await migrating == Migrated("0005", HEAD)
    await close(engine)


WAITS_FOR_CHATS = """
SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LOCK TABLE chats%' AND wait_event_type = 'Lock'
"""
