"""Migrations: one schema however a database came to it, what is there is kept, and what is unknown is refused.

test_upgrade.py upgrades databases that servers of earlier commits filled; here rows are made up, one of every table.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from sqlalchemy import make_url, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.databases import execute
from tests.frozen.schema import describe_database
from tests.store.test_file_lock import start_holder
from tests.support.commands import run_indelible, start_indelible
from tests.support.engine import begin_read, begin_write, close_databases, get_database, is_sqlite, open_engine
from tests.support.stored import load_journal, load_ledger
from tests.support.tables import chats, metadata, workers

import indelible
from indelible.content import File, PartialReason, Text, encode
from indelible.machine.commands import Delete
from indelible.store.database import migrate as migrations
from indelible.store.database import postgres
from indelible.store.database.address import parse_address
from indelible.store.database.errors import DatabaseUnusable, SchemaTooNew
from indelible.store.database.migrate import (
    FIRST,
    HEAD,
    VERSION_TABLE,
    Migrated,
    OldProcessesRunning,
    list_revisions,
    load_revision,
    migrate,
    open_database,
    translate_for_sqlite,
    upgrade_schema,
)
from indelible.store.database.migration_steps import STEPS, move_requests
from indelible.store.database.sqlite_file import exclusive_file_lock
from indelible.store.database.transaction import Transaction
from indelible.store.store import Store


async def close(engine: AsyncEngine) -> None:
    await close_databases()
    await engine.dispose()


# --- the files ------------------------------------------------------------------------------


def test_every_migration_has_the_next_number_and_says_what_it_does() -> None:
    files = sorted((Path(migrations.__file__).parent / "migrations").iterdir())

    assert [path.name[:5] for path in files] == [f"{number}_" for number in list_revisions()[1:]]
    assert list_revisions() == [f"{number:04}" for number in range(int(FIRST), int(HEAD) + 1)]
    assert {path.suffix for path in files} == {".sql"}
    assert all(path.read_text().startswith("-- ") for path in files)
    assert STEPS.keys() <= set(list_revisions()[1:])


def test_marks_and_words_make_a_statement_sqlites() -> None:
    script = """
-- A table.
CREATE TABLE chats (
    id BIGINT NOT NULL, -- postgresql
    -- sqlite: id INTEGER NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    done BOOLEAN DEFAULT false NOT NULL, -- Of the day; not: of the hour.
    at TIMESTAMPTZ
);
COMMENT ON COLUMN chats.at IS 'Since; or until.';
ALTER TABLE chats ADD CONSTRAINT one CHECK (id = 1); -- postgresql
-- sqlite: CREATE TRIGGER added AFTER INSERT ON chats BEGIN
-- sqlite:     DELETE FROM chats WHERE id = 2;
-- sqlite: END;
UPDATE chats SET owner = 'a; b'
    WHERE id = 3;
"""
    with closing(sqlite3.connect(":memory:")) as connection:
        statements = list(translate_for_sqlite(script))
        for statement in statements:
            connection.execute(statement)
        columns = connection.execute("SELECT name, type, dflt_value FROM pragma_table_info('chats')").fetchall()

    assert [statement.split()[:2] for statement in statements] == [
        ["CREATE", "TABLE"],
        ["CREATE", "TRIGGER"],
        ["UPDATE", "chats"],
    ]
    assert columns == [("id", "INTEGER", None), ("owner", "TEXT", None), ("done", "BOOLEAN", "0"), ("at", "TEXT", None)]


def test_a_statement_that_has_no_end_is_not_left_out() -> None:
    with pytest.raises(ValueError, match="CREATE TABLE chats"):
        list(translate_for_sqlite("CREATE TABLE chats (id TEXT)"))


def test_nothing_of_the_product_imports_sqlalchemy_or_alembic(tmp_path: Path) -> None:
    code = """
import asyncio, pkgutil, sys, indelible.store
for module in pkgutil.walk_packages(indelible.store.__path__, "indelible.store."):
    __import__(module.name)
from indelible.store.database.migrate import migrate
asyncio.run(migrate(sys.argv[1]))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"sqlalchemy", "alembic"}))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "chats.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


# --- upgrades -------------------------------------------------------------------------------


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


async def test_the_upgrade_to_0018_asks_little_for_a_long_chat_and_finds_each_turn(new_database: str) -> None:
    """Statements grow with the hundreds of messages, and two requests of one turn are kept in their order."""
    await migrate(new_database, target="0018")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    turn = """
        INSERT INTO turns (chat_id, id, number, kind, outcome, started_at, ended_at)
        SELECT id, :id, :n, 'reply', 'complete', created_at, created_at FROM chats
        """
    message = """
        INSERT INTO messages (chat_id, id, role, blocks, created_at)
        SELECT id, :id, 'user', :blocks, created_at FROM chats
        """
    event = "INSERT INTO events (chat_id, seq, kind, ref, at) SELECT id, :seq, :kind, :ref, created_at FROM chats"
    turns = [{"id": f"t{n:03}", "n": n} for n in range(1, 201)]
    noted = [{"id": f"n{n:03}", "blocks": note_request(n)} for n in range(1, 201)]
    events = [
        {"seq": 10 * n + k, "kind": kind, "ref": f"{ref}{n:03}"}
        for n in range(1, 201)
        for k, (kind, ref) in enumerate([("message", "n"), ("status", "t"), ("message", "late"), ("status", "t")])
    ]
    async with begin_write(engine) as connection:
        await connection.execute(text(turn), turns)
        await connection.execute(text(message), [*noted, {"id": "late001", "blocks": note_request(0)}])
        await connection.execute(text(event), events)
    database = get_database(engine)
    statements: list[str] = []

    async def move(transaction: Transaction) -> None:
        await move_requests(cast(Transaction, CountedTransaction(transaction, statements)))

    await database.write(move)

    async with begin_read(engine) as connection:
        rows = (await connection.execute(text("SELECT id, request FROM turns ORDER BY id"))).all()
        left = (
            await connection.execute(text("SELECT count(*) FROM messages WHERE blocks = :b"), {"b": NOTED})
        ).scalar()
    assert len(statements) < 25
    assert left == 201
    assert json.loads(rows[0].request) == [[10, {"response": {"n": 1}}], [12, {"response": {"n": 0}}]]
    assert [json.loads(row.request) for row in rows[1:]] == [[[10 * n, {"response": {"n": n}}]] for n in range(2, 201)]
    await close(engine)


NOTED = b'[{"type":"text","text":"Hi"}]'


def note_request(number: int) -> bytes:
    return encode([Text("Hi", metadata={"request": {"response": {"n": number}}})])


class CountedTransaction:
    """The transaction, and every statement carried out in it."""

    def __init__(self, transaction: Transaction, statements: list[str]) -> None:
        self._transaction = transaction
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        done = getattr(self._transaction, name)
        if not callable(done):
            return done

        def carry_out(sql: str, *values: Any) -> Any:
            self._statements.append(sql)
            return done(sql, *values)

        return carry_out


OLD_RESULTS = json.loads((Path(__file__).parent / "old_results.json").read_bytes())
OLD_OUTCOMES: dict[str, list[tuple[str, str | None]]] = {
    **{f"waiting {reason}": [("not_run", reason)] for reason in get_args(PartialReason)},
    **{f"started {reason}": [("unknown", "lost")] for reason in get_args(PartialReason)},
    "copied": [("not_run", "cancelled")],
    "cancelled": [("not_run", "cancelled")],
    "expired": [("not_run", "expired")],
    "turn": [("failed", None), ("ran", None), ("failed", None), ("unknown", "interrupted")],
}


OLD_NOTICES: dict[str, tuple[str, bytes | None]] = {
    "stopped": ("Stopped by you.", None),
    "length": (
        "The reply reached its length limit. Continue resumes it; without any words yet, Retry asks again.",
        None,
    ),
    "failed": ("No key.", b'{"kind":"auth","message":"No key."}'),
    "empty": ("The model returned nothing.", None),
}


async def test_the_upgrade_to_0019_gives_the_results_of_old_servers_their_outcome(new_database: str) -> None:
    await migrate(new_database, target="0018")
    engine = await open_engine(new_database)
    await write_a_chat(engine)
    old = {row["case"]: encode(row["blocks"]) for row in OLD_RESULTS["rows"]}
    assert set(old) == set(OLD_OUTCOMES)
    message = """
        INSERT INTO messages (chat_id, id, role, blocks, visibility, created_at)
        SELECT chat_id, :id, 'tool', :blocks, visibility, created_at FROM messages WHERE chat_id = 'c' AND role = 'user'
        """
    notice = """
        INSERT INTO messages (chat_id, id, role, blocks, visibility, created_at, error)
        SELECT chat_id, :id, 'notice', :blocks, 'people', created_at, :error FROM messages WHERE id = 'm'
        """
    turn = """
        INSERT INTO turns (chat_id, id, number, kind, started_at) SELECT id, 't', 1, 'reply', created_at FROM chats
        """
    attempts = """
        INSERT INTO attempts (chat_id, id, turn_id, step, number, epoch, outcome, last_n, started_at, ended_at)
        SELECT chat_id, 'ended', id, 1, 1, 1, 'failed', 1, started_at, started_at FROM turns UNION ALL
        SELECT chat_id, 'running', id, 1, 2, 1, NULL, NULL, started_at, NULL FROM turns
        """
    row = """
        INSERT INTO journal (chat_id, attempt_id, n, parts, at)
        SELECT chat_id, id, 1, :parts, started_at FROM attempts
        """
    parts = old["turn"]
    async with begin_write(engine) as connection:
        for case, blocks in [*old.items(), ("unreadable", b'[{"is_error":true'), ("other", BLOCKS)]:
            await connection.execute(text(message), {"id": case, "blocks": blocks})
        for case, (words, error) in OLD_NOTICES.items():
            given = {"id": case, "blocks": encode([Text(words)]), "error": error}
            await connection.execute(text(notice), given)
        await connection.execute(text(turn))
        await connection.execute(text(attempts))
        await connection.execute(text(row), {"parts": parts})
    await close(engine)

    assert await migrate(new_database) == Migrated("0018", HEAD)

    engine = await open_engine(new_database)
    async with begin_read(engine) as connection:
        rows = (await connection.execute(text("SELECT id, blocks FROM messages WHERE role = 'tool'"))).all()
        stored = {row.id: row.blocks for row in rows}
        rows = (await connection.execute(text("SELECT attempt_id, parts FROM journal"))).all()
        journals = {row.attempt_id: row.parts for row in rows}
        rows = (await connection.execute(text("SELECT id, blocks FROM messages WHERE role = 'notice'"))).all()
        notices = {id_: json.loads(blocks)[0].get("metadata", {}).get("notice") for id_, blocks in rows}
    assert stored.pop("unreadable") == b'[{"is_error":true'
    assert stored.pop("other") == BLOCKS
    found = {case: json.loads(blocks) for case, blocks in stored.items()}
    said = {case: [(each.pop("outcome", "ran"), each.pop("reason", None)) for each in found[case]] for case in found}
    assert said == OLD_OUTCOMES
    assert found == {case: json.loads(blocks) for case, blocks in old.items()}  # and nothing else has changed
    assert journals == {"ended": parts, "running": stored["turn"]}
    assert notices == {"stopped": "stopped", "length": "length", "failed": "failed", "empty": None}
    await close(engine)


async def test_an_upgrade_from_any_older_schema_keeps_every_row_of_every_table_and_in_its_chat(
    new_database: str, tmp_path: Path
) -> None:
    """Each older schema is made from the one before it; a copy of it is filled and upgraded in one transaction."""
    for revision in list_revisions()[:-1]:
        await migrate(new_database, target=revision)
        async with copy_database(new_database, tmp_path) as copy:
            await check_upgrade(copy, revision)
            assert await describe_database(copy) == await describe_new(new_database, tmp_path)


async def describe_new(database: str, directory: Path) -> str:
    """The schema of a new database of the same kind."""
    async with copy_database(database, directory, name="new", is_empty=True) as new:
        await migrate(new)
        return await describe_database(new)


@asynccontextmanager
async def copy_database(
    database: str, directory: Path, *, name: str = "copy", is_empty: bool = False
) -> AsyncIterator[str]:
    if not database.startswith("postgresql"):
        path = Path(tempfile.mkdtemp(dir=directory)) / f"{name}.db"
        if not is_empty:
            shutil.copy(database, path)
        yield str(path)
        return
    url = make_url(database)
    name = f"{name}_of_{url.database}"
    server = url.set(database="postgres").render_as_string(hide_password=False)
    await execute(server, f"CREATE DATABASE {name} TEMPLATE {'template1' if is_empty else url.database}")
    yield url.set(database=name).render_as_string(hide_password=False)
    await execute(server, f"DROP DATABASE {name} WITH (FORCE)")


async def check_upgrade(database: str, revision: str) -> None:
    engine = await open_engine(database)
    given = [*rows_of_nobody().items(), *rows_of("c").items(), *rows_of("d").items()]
    async with begin_write(engine) as connection:
        known = await list_columns(connection)
        for table, row in given:
            if table in known:
                await connection.exec_driver_sql(*build_insert(table, row, known[table], engine))
        await connection.exec_driver_sql("UPDATE chats SET head_id = 'reply_' || id")
        await connection.execute(text("UPDATE messages SET blocks = :blocks"), {"blocks": BLOCKS})
    before = await read_everything(engine)
    await close(engine)

    assert await migrate(database) == Migrated(revision, HEAD)

    engine = await open_engine(database)
    assert await load_revision(get_database(engine)) == HEAD
    after = await read_everything(engine)
    for table in metadata.tables:
        old = before.get(table, [])
        assert [{name: row[name] for name in was} for row, was in zip(after[table], old, strict=True)] == old
        assert len(old) == (0 if table not in before else 1 if table in rows_of_nobody() else 2), (revision, table)
    assert [row["blocks"] for row in after["messages"]] == [BLOCKS, BLOCKS]
    assert {*rows_of_nobody(), *rows_of("c")} == set(metadata.tables)
    store = Store(get_database(engine))
    assert [row.n for row in await load_journal(store, "c", "attempt_c")] == [1]
    assert [entry.name for entry in await load_ledger(store, "c", "turn_c")] == ["look"]
    await store.execute("c", Delete())
    left = await read_everything(engine)
    led = [table for table in metadata.tables if "chat_id" in metadata.tables[table].primary_key.columns]
    assert all([row["chat_id"] for row in left[table]] == ["d"] for table in led), revision
    await close(engine)


AT = "2026-11-15T09:00:00.000000Z"
LONG_AGO = "2001-01-01T00:00:00.000000Z"
BLOCKS = b'[{"type":"text","text":"\\u0000 Hei"}]'


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


def build_insert(
    table: str, row: dict[str, Any], known: set[str], engine: AsyncEngine
) -> tuple[str, tuple[bytes, ...]]:
    """In plain SQL, as far as the table of an older schema has these columns."""
    hole = "?" if is_sqlite(engine) else "$1"
    values = {name: hole if value == b"[]" else repr(value) for name, value in row.items() if name in known}
    names = ", ".join(f'"{name}"' for name in values)
    statement = f"INSERT INTO {table} ({names}) VALUES ({', '.join(values.values())})"  # noqa: S608
    bytes_ = list(values.values()).count(hole)
    return statement, (b"[]",) * (bytes_ if is_sqlite(engine) else min(bytes_, 1))


async def read_everything(engine: AsyncEngine) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, those of chat c before those of d."""
    found: dict[str, list[dict[str, Any]]] = {}
    async with begin_read(engine) as connection:
        known = await list_columns(connection)
        for table in sorted(set(known) & set(metadata.tables)):
            rows = (await connection.exec_driver_sql(f"SELECT * FROM {table}")).mappings()  # noqa: S608
            found[table] = sorted((dict(row) for row in rows), key=str)
    return found


A_CHAT = """
INSERT INTO users (id, name, created_at) VALUES ('u', 'Ada', '2026-11-15T09:00:00.000000Z');
INSERT INTO chats (id, owner_id, status, created_at, updated_at)
    VALUES ('c', 'u', 'idle', '2026-11-15T09:00:00.000000Z', '2026-11-15T09:00:00.000000Z');
INSERT INTO messages (chat_id, id, role, blocks, created_at)
    VALUES ('c', 'm', 'user', :blocks, '2026-11-15T09:00:00.000000Z');
UPDATE chats SET head_id = 'm'
"""


async def write_a_chat(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        for statement in A_CHAT.split(";"):
            await connection.execute(text(statement), {"blocks": BLOCKS} if ":blocks" in statement else {})


# --- when, and when not -----------------------------------------------------------------------


async def test_migrating_again_changes_nothing(database: str) -> None:
    before = await describe_database(database)

    assert await migrate(database) == Migrated(HEAD, HEAD)

    assert await describe_database(database) == before


async def test_a_database_that_is_up_to_date_is_only_read(database: str) -> None:
    statements: list[str] = []
    opened = await open_database(database)
    opened.observe = statements.append

    assert await upgrade_schema(opened, parse_address(database)) == Migrated(HEAD, HEAD)

    await opened.close()
    assert {statement.split()[0] for statement in statements} <= {"BEGIN", "SELECT", "COMMIT", "ROLLBACK"}
    assert len(statements) <= 4


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


@pytest.mark.parametrize("revision", ["0001", "0014"])
async def test_a_schema_that_is_too_old_is_refused_with_the_commit_that_upgrades_it(
    new_database: str, revision: str
) -> None:
    await migrate(new_database, target=FIRST)
    engine = await open_engine(new_database)
    async with begin_write(engine) as connection:
        await connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))  # noqa: S608

    with pytest.raises(DatabaseUnusable, match=f"has schema {revision}, from before {FIRST}. Check out commit 456663b"):
        await migrate(new_database)
    with pytest.raises(DatabaseUnusable, match="indelible migrate"):
        async with Store.open(new_database):
            pass
    assert await load_revision(get_database(engine)) == revision
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
    await migrate(path, target=FIRST)
    with closing(sqlite3.connect(path)) as connection:  # which does not look at foreign keys
        connection.execute(
            "INSERT INTO events VALUES ('nowhere', 1, 'status', NULL, NULL, '2026-11-15T09:00:00.000000Z')"
        )
        connection.commit()

    with pytest.raises(DatabaseUnusable, match="rows of events refer to rows that do not exist"):
        await migrate(path)

    engine = await open_engine(path)
    assert await load_revision(get_database(engine)) == FIRST
    await close(engine)


async def test_a_migration_may_take_longer_than_any_other_statement(
    new_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for another one, or rewrites a large table: the limit for statements does not hold for it."""
    await migrate(new_postgres, target=FIRST)
    monkeypatch.setattr(postgres, "COMMAND_TIMEOUT_S", 0.2)
    other = await open_engine(new_postgres)
    async with other.connect() as watching, other.connect() as holding:
        await holding.execute(text(FOR_AS_LONG_AS_IT_TAKES))
        await holding.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": migrations._ADVISORY_LOCK})
        migrating = asyncio.create_task(migrate(new_postgres))
        while not (await watching.execute(text(WAITS_LONG))).scalar_one():
            await watching.rollback()
        await holding.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": migrations._ADVISORY_LOCK})
        await holding.commit()
        assert await migrating == Migrated(FIRST, HEAD)
    await other.dispose()


FOR_AS_LONG_AS_IT_TAKES = "SET idle_in_transaction_session_timeout = 0"
WAITS_LONG = """
SELECT count(*) FROM pg_stat_activity
WHERE query LIKE '%pg_advisory_xact_lock%' AND wait_event_type = 'Lock'
    AND clock_timestamp() - query_start > interval '1 s'
"""


async def test_a_migration_waits_for_a_command_and_does_not_deadlock_with_it(new_postgres: str) -> None:
    await migrate(new_postgres, target=FIRST)
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
        assert await migrating == Migrated(FIRST, HEAD)
    await close(engine)


WAITS_FOR_CHATS = """
SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LOCK TABLE chats%' AND wait_event_type = 'Lock'
"""
