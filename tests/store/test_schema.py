"""The schema refuses what the machine forbids, on both databases, whoever writes.

`ROWS` is a small world in which every table has a legal row. A case changes a few columns of one row and names
the constraint that has to refuse it; a constraint without a case fails the last test of its group.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    CheckConstraint,
    Executable,
    ForeignKeyConstraint,
    Index,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from tests.databases import BOTH, create_postgres
from tests.support.engine import begin_read, begin_write, open_engine
from tests.support.tables import (
    attempts,
    chat_labels,
    chats,
    debug_attempts,
    debug_runs,
    debug_steps,
    drafts,
    ephemeral_chats,
    events,
    file_chunks,
    file_uses,
    files,
    idempotency_keys,
    journal,
    messages,
    metadata,
    new_drafts,
    queue,
    search_entries,
    sessions,
    shares,
    tokens,
    tool_runs,
    turns,
    usage_days,
    users,
    workers,
)

from indelible.machine.states import Status, state_of

AT = datetime(2026, 11, 15, tzinfo=UTC)
HASH = bytes(32)
ENDED = {"outcome": "complete", "ended_at": AT}
Row = Mapping[str, Any]

ROWS: dict[Table, Row] = {
    users: {"id": "u", "name": "Ada", "created_at": AT, "likeness": "ada"},
    tokens: {"id": "k", "user_id": "u", "hash": HASH, "name": "laptop", "created_at": AT},
    sessions: {
        "id": "s",
        "user_id": "u",
        "token_id": "k",
        "hash": HASH,
        "method": "token",
        "scopes": "read",
        "created_at": AT,
        "last_used_at": AT,
        "expires_at": AT,
    },
    chats: {"id": "c", "owner_id": "u", "status": "running", "seq": 5, "created_at": AT, "updated_at": AT},
    messages: {"chat_id": "c", "id": "m", "role": "user", "blocks": b"[]", "created_at": AT},
    turns: {"id": "t", "chat_id": "c", "number": 1, "kind": "reply", "message_id": "m", "started_at": AT},
    attempts: {"id": "a", "chat_id": "c", "turn_id": "t", "step": 1, "number": 1, "epoch": 1, "started_at": AT},
    journal: {"chat_id": "c", "attempt_id": "a", "n": 1, "parts": b"[]", "at": AT},
    tool_runs: {
        "chat_id": "c",
        "turn_id": "t",
        "step": 1,
        "call_index": 0,
        "attempt_id": "a",
        "call_id": "call_1",
        "name": "weather",
        "arguments": b"{}",
        "state": "started",
        "idempotency_key": "t:1:0",
        "started_at": AT,
    },
    queue: {
        "id": "q",
        "chat_id": "c",
        "position": 1,
        "if_busy": "queue",
        "content": b"[]",
        "author_id": "u",
        "created_at": AT,
    },
    events: {"chat_id": "c", "seq": 1, "kind": "status", "at": AT},
    workers: {"id": "w", "started_at": AT, "heartbeat_at": AT},
    idempotency_keys: {
        "user_id": "u",
        "key": "k",
        "route": "POST /chats",
        "body_hash": HASH,
        "status": 201,
        "body": b"{}",
        "expires_at": AT,
    },
    files: {
        "id": "f",
        "owner_id": "u",
        "state": "ready",
        "name": "a.png",
        "media_type": "image/png",
        "size_bytes": 0,
        "sha256": HASH,
        "place": "database",
        "preview": "none",
        "created_at": AT,
    },
    file_chunks: {"file_id": "f", "variant": "content", "n": 0, "content": b""},
    file_uses: {"chat_id": "c", "file_id": "f"},
    drafts: {"user_id": "u", "chat_id": "c", "content": b"[]", "updated_at": AT},
    shares: {"chat_id": "c", "id": "h", "user_id": "u", "created_at": AT},
    new_drafts: {"user_id": "u", "content": b"[]", "updated_at": AT},
    chat_labels: {"chat_id": "c", "label": "weather", "owner_id": "u"},
    ephemeral_chats: {"chat_id": "c"},
    search_entries: {"id": 1, "chat_id": "c", "message_id": None, "owner_id": "u", "words": "rain"},
    usage_days: {
        "user_id": "u",
        "day": "2026-11-15",
        "model": "demo",
        "shard": 0,
        "input_tokens": 1,
        "output_tokens": 2,
        "cost_nanousd": 3,
        "turns": 1,
    },
    debug_runs: {
        "id": "r",
        "chat_id": "c",
        "kind": "turn",
        "status": "in_progress",
        "worker_id": "w",
        "started_at": AT,
    },
    debug_steps: {"chat_id": "c", "run_id": "r", "step": 1, "status": "in_progress", "started_at": AT},
    debug_attempts: {
        "chat_id": "c",
        "run_id": "r",
        "step": 1,
        "number": 1,
        "status": "completed",
        "method": "POST",
        "url": "https://provider.test",
        "request_headers": b"{}",
        "request_body": b"",
        "response_body": b"",
        "started_at": AT,
        "ended_at": AT,
    },
}

REFUSED: list[tuple[str, Table, Row]] = [
    ("users_role_check", users, {"role": "owner"}),
    ("sessions_method_check", sessions, {"method": "password"}),
    ("shares_link_or_user_check", shares, {"hash": HASH}),
    ("shares_link_or_user_check", shares, {"user_id": None}),
    ("chats_status_check", chats, {"status": "pending"}),
    ("chats_archived_is_idle_check", chats, {"archived": True, "status": "requires_action"}),
    ("chats_holder_is_busy_check", chats, {"holder": "w", "status": "idle"}),
    ("chats_holder_is_busy_check", chats, {"holder": "w", "status": "requires_action"}),
    ("chats_error_is_told_check", chats, {"status": "error"}),
    ("chats_error_is_told_check", chats, {"status": "running", "error": b"{}"}),
    ("chats_retry_is_busy_check", chats, {"status": "idle", "retry": b"{}"}),
    ("chats_epoch_check", chats, {"epoch": -1}),
    ("chats_seq_check", chats, {"seq": -1}),
    ("chats_seq_check", chats, {"last_read_seq": -1}),
    ("chats_seq_check", chats, {"last_read_seq": 6}),
    ("chats_debug_check", chats, {"debug": "some"}),
    ("turns_kind_check", turns, {"kind": "chat"}),
    ("turns_outcome_check", turns, {"outcome": "done", "ended_at": AT}),
    ("turns_one_end_check", turns, {"outcome": "complete"}),
    ("turns_one_end_check", turns, {"ended_at": AT}),
    ("turns_number_check", turns, {"number": 0}),
    ("turns_takeovers_check", turns, {"takeovers": 1, "stalled_takeovers": 2}),
    ("turns_takeovers_check", turns, {"stalled_takeovers": -1}),
    ("messages_role_check", messages, {"role": "developer"}),
    ("messages_visibility_check", messages, {"visibility": "nobody"}),
    ("messages_reason_check", messages, {"role": "assistant", "reason": "bored"}),
    ("messages_not_its_own_parent_check", messages, {"parent_id": "m"}),
    ("messages_partial_has_a_reason_check", messages, {"role": "assistant", "partial": True}),
    ("messages_only_replies_are_cut_check", messages, {"role": "tool", "reason": "crashed"}),
    (
        "messages_only_replies_are_stored_check",
        messages,
        {"role": "assistant", "response_id": "resp_1", "partial": True, "reason": "failed"},
    ),
    ("messages_only_replies_are_stored_check", messages, {"role": "user", "response_id": "resp_1"}),
    ("messages_notice_is_for_people_check", messages, {"role": "notice", "visibility": "model"}),
    ("messages_cost_nanousd_check", messages, {"cost_nanousd": -1}),
    ("queue_if_busy_check", queue, {"if_busy": "later"}),
    ("events_seq_check", events, {"seq": 0}),
    ("attempts_outcome_check", attempts, {"outcome": "done", "ended_at": AT, "last_n": 0}),
    ("attempts_one_end_check", attempts, {"outcome": "complete", "last_n": 0}),
    ("attempts_one_end_check", attempts, {"ended_at": AT}),
    ("attempts_last_n_is_told_check", attempts, {"outcome": "complete", "ended_at": AT}),
    ("attempts_numbering_check", attempts, {"step": 0}),
    ("attempts_numbering_check", attempts, {"number": 0}),
    ("attempts_epoch_check", attempts, {"epoch": -1}),
    ("attempts_last_n_check", attempts, {**ENDED, "last_n": -1}),
    ("attempts_packed_has_ended_check", attempts, {"packed": True}),
    ("journal_n_check", journal, {"n": -1}),
    ("tool_runs_state_check", tool_runs, {"state": "running"}),
    ("tool_runs_settled_has_a_result_check", tool_runs, {"state": "settled", "settled_at": AT}),
    ("tool_runs_settled_has_a_time_check", tool_runs, {"state": "settled", "result": b"{}"}),
    ("tool_runs_numbering_check", tool_runs, {"step": 0}),
    ("tool_runs_numbering_check", tool_runs, {"call_index": -1}),
    ("files_size_bytes_check", files, {"size_bytes": -1}),
    ("files_complete_check", files, {"sha256": None}),
    ("files_state_check", files, {"state": "gone"}),
    ("files_place_check", files, {"place": "tape"}),
    ("files_preview_check", files, {"preview": "soon"}),
    ("file_chunks_variant_check", file_chunks, {"variant": "large"}),
    ("debug_runs_kind_check", debug_runs, {"kind": "reply"}),
    ("debug_runs_status_check", debug_runs, {"status": "failed", "ended_at": AT}),
    ("debug_runs_one_end_check", debug_runs, {"status": "completed"}),
    ("debug_runs_one_end_check", debug_runs, {"ended_at": AT}),
    ("debug_steps_status_check", debug_steps, {"status": "failed", "ended_at": AT}),
    ("debug_steps_one_end_check", debug_steps, {"status": "interrupted"}),
    ("debug_steps_one_end_check", debug_steps, {"ended_at": AT}),
    ("debug_attempts_status_check", debug_attempts, {"status": "error"}),
    ("debug_attempts_numbering_check", debug_attempts, {"step": 0}),
    ("debug_attempts_numbering_check", debug_attempts, {"number": 0}),
]

# A second row of a table: what of it differs from the first, and what it must not share with it.
TWICE: list[tuple[str, Table, Row]] = [
    ("users_name_key", users, {"id": "u2", "likeness": None}),
    ("users_likeness", users, {"id": "u2", "name": "Eve"}),
    ("tokens_hash_key", tokens, {"id": "k2"}),
    ("sessions_hash_key", sessions, {"id": "s2"}),
    ("shares_pk", shares, {"user_id": None, "hash": HASH}),
    ("shares_chat_id_user_id_key", shares, {"id": "h2"}),
    ("turns_one_open", turns, {"id": "t2", "number": 2}),
    ("turns_chat_id_number_key", turns, {"id": "t2", **ENDED}),
    ("attempts_one_open", attempts, {"id": "a2", "number": 2}),
    ("attempts_turn_id_chat_id_step_number_key", attempts, {"id": "a2", **ENDED, "last_n": 3}),
    ("turns_pk", turns, {"number": 2, **ENDED}),
    ("attempts_pk", attempts, {"number": 2, **ENDED, "last_n": 0}),
    ("queue_chat_id_position_key", queue, {"id": "q2"}),
    ("tool_runs_idempotency_key_key", tool_runs, {"call_index": 1}),
    ("events_pk", events, {"kind": "message"}),
    ("journal_pk", journal, {"parts": b"[1]"}),
    ("file_chunks_pk", file_chunks, {"content": b"x"}),
    ("file_uses_pk", file_uses, {}),
    ("queue_pk", queue, {"position": 2}),
    ("tool_runs_pk", tool_runs, {"idempotency_key": "other"}),
    ("idempotency_keys_pk", idempotency_keys, {"route": "POST /other"}),
    ("drafts_pk", drafts, {"content": b"[1]"}),
    ("chat_labels_pk", chat_labels, {"owner_id": "other"}),
    ("usage_days_pk", usage_days, {"turns": 2}),
    ("messages_pk", messages, {"role": "notice"}),
    ("debug_runs_pk", debug_runs, {"kind": "title"}),
    ("debug_steps_pk", debug_steps, {"status": "error", "ended_at": AT}),
    ("debug_attempts_pk", debug_attempts, {"status": "failed"}),
]

LEGAL_SECOND_ROWS: list[tuple[Table, Row]] = [
    (turns, {"id": "t2", "number": 2, **ENDED}),
    (attempts, {"id": "a2", "number": 2, **ENDED, "last_n": 0, "packed": True}),
    (attempts, {"id": "a2", "step": 2, **ENDED, "last_n": 7}),
    (messages, {"id": "m2", "parent_id": "m", "role": "assistant", "reason": "interrupted"}),
    (messages, {"id": "m2", "parent_id": "m", "role": "assistant", "partial": True, "reason": "crashed"}),
    (messages, {"id": "m2", "parent_id": "m", "role": "notice", "visibility": "people"}),
    (tool_runs, {"call_index": 1, "idempotency_key": "x", "state": "settled", "result": b"{}", "settled_at": AT}),
    (queue, {"id": "q2", "position": 2, "if_busy": "promoted"}),
    (shares, {"id": "h2", "user_id": None, "hash": HASH}),
    (journal, {"n": 0}),
    (debug_runs, {"id": "r2", "kind": "title", "status": "interrupted", "ended_at": AT, "turn_id": "nowhere"}),
    (debug_steps, {"step": 2, "status": "error", "ended_at": AT}),
    (debug_attempts, {"number": 2, "status": "failed"}),
]


async def fill(connection: AsyncConnection, *, up_to: Table | None = None) -> None:
    """Write the world, or the part of it that stands before a table."""
    for table, row in ROWS.items():
        if table is up_to:
            return
        await connection.execute(insert(table).values(row))


# --- values --------------------------------------------------------------------------------


async def try_out(connection: AsyncConnection, statement: Executable) -> str:
    """What the database says against a statement; nothing of it stays."""
    attempt = await connection.begin_nested()
    try:
        await connection.execute(statement)
    except IntegrityError as error:
        return str(error.orig) + "\n"
    else:
        return ""
    finally:
        await attempt.rollback()


async def test_a_row_that_breaks_a_rule_is_refused(engine: AsyncEngine) -> None:
    """Each in a world that has nothing of its own table yet."""
    refused = []
    async with begin_write(engine) as connection:
        for table, row in ROWS.items():
            for rule, of, change in REFUSED:
                if of is table:
                    told = await try_out(connection, insert(table).values({**row, **change}))
                    refused.append(rule)
                    assert rule in told, (rule, change)
            await connection.execute(insert(table).values(row))
        await connection.rollback()
    assert sorted(refused) == sorted(rule for rule, *_ in REFUSED)


async def test_a_second_row_that_breaks_a_rule_is_refused(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        for rule, table, change in TWICE:
            told = await try_out(connection, insert(table).values({**ROWS[table], **change}))
            assert re.search(name_broken_rule(engine, rule, table), told), (rule, change, told)
        await connection.rollback()


def name_broken_rule(engine: AsyncEngine, rule: str, table: Table) -> str:
    """How the database names a rule of uniqueness: PostgreSQL by its name, SQLite by its columns."""
    if engine.dialect.name == "postgresql":
        return f'"{rule}"'
    (columns,) = [unique.columns for unique in list_unique_rules(table) if unique.name == rule]
    return "UNIQUE constraint failed: " + ", ".join(f"{table.name}.{column.name}" for column in columns) + r"\n"


def list_unique_rules(table: Table) -> list[UniqueConstraint | PrimaryKeyConstraint | Index]:
    constraints = [rule for rule in table.constraints if isinstance(rule, UniqueConstraint | PrimaryKeyConstraint)]
    return [*constraints, *(index for index in table.indexes if index.unique)]


async def test_what_the_machine_allows_is_accepted(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        for table, change in LEGAL_SECOND_ROWS:
            assert await try_out(connection, insert(table).values({**ROWS[table], **change})) == "", (table, change)


def test_every_rule_has_a_case() -> None:
    tables = metadata.tables.values()
    checks = [rule for table in tables for rule in table.constraints if isinstance(rule, CheckConstraint)]
    unique = [
        rule
        for table in tables
        for rule in list_unique_rules(table)
        if len(rule.columns) > 1 or rule.name != f"{table.name}_pk"
    ]

    assert {rule.name for rule in checks} == {name for name, *_ in REFUSED}
    assert {rule.name for rule in unique} == {name for name, *_ in TWICE}
    assert set(ROWS) == set(tables)


async def test_the_database_knows_the_states_that_the_machine_knows(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection, up_to=chats)
        for status, archived in product(Status, [False, True]):
            change = {"status": status, "archived": archived, "error": b"{}" if status is Status.ERROR else None}
            told = await try_out(connection, insert(chats).values({**ROWS[chats], **change}))
            assert (told == "") is is_state(status, archived=archived), (status, archived, told)


def is_state(status: Status, *, archived: bool) -> bool:
    try:
        return bool(state_of(status, queued=0, archived=archived))
    except ValueError:
        return False


# --- references ----------------------------------------------------------------------------


async def fill_another(connection: AsyncConnection) -> None:
    """Write a second chat with a message, a turn, an attempt and a run, whose names end with 2."""
    await connection.execute(insert(chats).values({**ROWS[chats], "id": "c2"}))
    named = {messages: {"id": "m2"}, turns: {"id": "t2", "message_id": "m2"}, attempts: {"id": "a2", "turn_id": "t2"}}
    for table, names in {**named, debug_runs: {"id": "r2"}, debug_steps: {"run_id": "r2"}}.items():
        await connection.execute(insert(table).values({**ROWS[table], "chat_id": "c2", **names}))


DANGLING: list[tuple[Table, Row]] = [
    (chats, {"head_id": "m2"}),
    (chats, {"owner_id": "nobody"}),
    (turns, {"message_id": "m2"}),
    (messages, {"parent_id": "m2"}),
    (messages, {"continues_id": "m2"}),
    (messages, {"turn_id": "nobody"}),
    (messages, {"turn_id": "t2"}),
    (messages, {"attempt_id": "nobody"}),
    (messages, {"attempt_id": "a2"}),
    (attempts, {"turn_id": "nobody"}),
    (attempts, {"turn_id": "t2"}),
    (tool_runs, {"turn_id": "t2"}),
    (tool_runs, {"attempt_id": "a2"}),
    (drafts, {"chat_id": "nowhere"}),
    (drafts, {"user_id": "nobody"}),
    (idempotency_keys, {"chat_id": "nowhere"}),
    (debug_runs, {"chat_id": "nowhere"}),
    (debug_steps, {"chat_id": "c2"}),
    (debug_steps, {"run_id": "r2"}),
    (debug_attempts, {"chat_id": "c2"}),
    (debug_attempts, {"run_id": "r2"}),
    (debug_attempts, {"step": 2}),
]


async def test_nothing_can_name_what_is_not_there_or_is_another_chats(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        await fill_another(connection)
        for table, change in DANGLING:
            key = (column == ROWS[table][column.name] for column in table.primary_key)
            told = await try_out(connection, update(table).where(*key).values(change))
            assert "foreign key" in told.lower(), (table, change, told)
        await connection.rollback()


async def test_two_chats_may_use_the_same_names(engine: AsyncEngine) -> None:
    """An id is one of its chat; that they differ everywhere is nothing that the tables need."""
    async with begin_write(engine) as connection:
        await fill(connection)
        await connection.execute(insert(chats).values({**ROWS[chats], "id": "c2"}))
        for table in (messages, turns, attempts, journal, queue, events, drafts, debug_runs, debug_steps):
            await connection.execute(insert(table).values({**ROWS[table], "chat_id": "c2"}))


async def test_the_head_may_be_a_message_of_the_chat(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        await connection.execute(update(chats).values(head_id="m"))


async def test_deleting_a_chat_leaves_only_the_journal_to_delete(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        reply = {"id": "m2", "parent_id": "m", "continues_id": "m", "turn_id": "t", "attempt_id": "a"}
        await connection.execute(insert(messages).values({**ROWS[messages], **reply, "role": "assistant"}))
        await connection.execute(update(chats).values(head_id="m2"))
    async with begin_write(engine) as connection:
        await connection.execute(delete(chats))

    async with begin_read(engine) as connection:
        left = {
            table for table in ROWS if (await connection.execute(select(func.count()).select_from(table))).scalar_one()
        }

    of_nobody = {users, tokens, sessions, workers, idempotency_keys, journal, usage_days, new_drafts}
    assert left == of_nobody | {files, file_chunks}  # the sweep removes files


async def test_an_idempotency_key_goes_with_the_chat_that_its_answer_tells_of(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        told = {**ROWS[idempotency_keys], "key": "k2", "chat_id": "c"}
        await connection.execute(insert(idempotency_keys).values(told))
    async with begin_write(engine) as connection:
        await connection.execute(delete(chats))
        left = (await connection.execute(select(idempotency_keys.c.key))).scalars().all()

    assert left == ["k"]


def test_the_chat_leads_the_key_of_every_table_that_has_one() -> None:
    """So that a database can be split by chat. What is a user's before it is a chat's is not split so."""
    of_chats = {table for table in metadata.tables.values() if "chat_id" in table.columns}
    led = {table for table in of_chats if next(iter(table.primary_key)).name == "chat_id"}

    assert of_chats - led == {idempotency_keys, search_entries}  # the last are numbered over all chats
    of_nobody = {users, tokens, sessions, workers, files, file_chunks, usage_days, new_drafts}
    assert set(metadata.tables.values()) - of_chats == {chats} | of_nobody


def test_every_reference_within_a_chat_names_it() -> None:
    references = [rule for table in metadata.tables.values() for rule in table.foreign_key_constraints]
    within = [rule for rule in references if "chat_id" in rule.referred_table.columns]

    assert len(within) > 10
    for rule in within:
        place = [element.column.name for element in rule.elements].index("chat_id")
        assert rule.columns[place].name == ("id" if rule.table is chats else "chat_id"), rule.name


def test_an_index_begins_with_the_columns_of_each_reference() -> None:
    """Else deleting one row would read the whole of a table that refers to it, or of a chat."""
    references = [rule for table in metadata.tables.values() for rule in table.foreign_key_constraints]

    assert {str(rule.name) for rule in references if not has_index(rule)} == {
        "chats_id_head_id_fk",  # a chat is one row
        "queue_author_id_fk",  # a user is not deleted while there are chats, and a queue is short
    }


@pytest.mark.parametrize("table", [chats, messages, turns, attempts, debug_runs, debug_steps, users])
def test_a_deletion_searches_for_what_refers_to_it_and_reads_no_whole_table(working_sqlite: Path, table: Table) -> None:
    """SQLite's plan names every table that it looks into for the sake of a reference."""
    key = " AND ".join(f"{column.name} = 'x'" for column in table.primary_key)
    with closing(sqlite3.connect(working_sqlite)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        plan = connection.execute(f"EXPLAIN QUERY PLAN DELETE FROM {table.name} WHERE {key}")  # noqa: S608
        read = [detail for *_, detail in plan if not detail.startswith("SEARCH")]
    assert read == (["SCAN queue"] if table is users else [])


def has_index(reference: ForeignKeyConstraint) -> bool:
    columns = {column.name for column in reference.columns}
    rules = [rule for rule in reference.table.constraints if isinstance(rule, UniqueConstraint | PrimaryKeyConstraint)]
    where = {str(index.dialect_options["sqlite"]["where"]): index for index in reference.table.indexes}
    wide = [index for index in reference.table.indexes if index.dialect_options["sqlite"]["where"] is None]
    of_set = [where[rule] for column in columns if (rule := f"{column} IS NOT NULL") in where]
    begins = [{column.name for column in list(rule.columns)[: len(columns)]} for rule in (*rules, *wide, *of_set)]
    return columns in begins


async def test_a_user_who_has_chats_cannot_be_deleted(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await fill(connection)
        with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
            await connection.execute(delete(users))
        await connection.rollback()


# --- indexes -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untouched_postgres(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A migrated database that no test writes to: nothing is counted in it, and every plan made from the same guess."""
    with create_postgres(postgres_server, template=postgres_template) as url:
        yield url


@pytest.fixture(params=BOTH)
def untouched_database(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("working_sqlite" if request.param == "sqlite" else "untouched_postgres"))


@pytest.fixture
async def untouched(untouched_database: str) -> AsyncIterator[AsyncEngine]:
    engine = await open_engine(untouched_database)
    yield engine
    await engine.dispose()


QUESTIONS: list[tuple[str, str]] = [
    (
        "chats_of_owner",
        """
        SELECT id FROM chats WHERE owner_id = 'u' AND archived = false
        ORDER BY pinned DESC, updated_at DESC, id DESC LIMIT 50
        """,
    ),
    (
        "chats_runnable",
        "SELECT id FROM chats WHERE status IN ('running', 'interrupting') ORDER BY status, runnable_at LIMIT 5",
    ),
    (
        "chats_deadline",
        "SELECT id FROM chats WHERE status = 'requires_action' AND deadline_at < '2026'",
    ),
    ("messages_children", "SELECT id FROM messages WHERE chat_id = 'c' AND parent_id = 'm'"),
    ("messages_pk", "SELECT role FROM messages WHERE chat_id = 'c' AND id = 'm'"),
    ("messages_of_turn", "SELECT id FROM messages WHERE chat_id = 'c' AND turn_id = 't'"),
    ("messages_of_attempt", "SELECT id FROM messages WHERE chat_id = 'c' AND attempt_id = 'a'"),
    ("messages_of_attempt", "UPDATE messages SET usage = NULL WHERE chat_id = 'c' AND attempt_id = 'a'"),
    ("journal_pk", "SELECT parts FROM journal WHERE chat_id = 'c' AND attempt_id = 'a' AND n > 3 ORDER BY n"),
    ("queue_pk", "SELECT content FROM queue WHERE chat_id = 'c' AND id = 'q'"),
    ("queue_chat_id_position_key", "SELECT id FROM queue WHERE chat_id = 'c' ORDER BY position"),
    ("attempts_pk", "SELECT epoch FROM attempts WHERE chat_id = 'c' AND id = 'a'"),
    ("attempts_pk", "SELECT step FROM attempts WHERE chat_id = 'c' AND id < 'a' ORDER BY id DESC LIMIT 50"),
    (
        "attempts_turn_id_chat_id_step_number_key",
        "SELECT model FROM attempts WHERE chat_id = 'c' AND turn_id = 't' ORDER BY step DESC, number DESC LIMIT 1",
    ),
    ("attempts_turn_id_chat_id_step_number_key", "DELETE FROM attempts WHERE chat_id = 'c' AND turn_id = 't'"),
    ("attempts_one_open", "SELECT id FROM attempts WHERE chat_id = 'c' AND ended_at IS NULL"),
    ("turns_pk", "SELECT kind FROM turns WHERE chat_id = 'c' AND id = 't'"),
    ("turns_chat_id_number_key", "SELECT max(number) FROM turns WHERE chat_id = 'c'"),
    ("turns_of_message", "SELECT id FROM turns WHERE chat_id = 'c' AND message_id = 'm'"),
    ("turns_one_open", "SELECT id FROM turns WHERE chat_id = 'c' AND ended_at IS NULL"),
    ("idempotency_keys_expiry", "SELECT key FROM idempotency_keys WHERE expires_at < '2026'"),
    ("idempotency_keys_chat_id", "SELECT key FROM idempotency_keys WHERE chat_id = 'c'"),
    ("tool_runs_pk", "SELECT name FROM tool_runs WHERE chat_id = 'c' AND turn_id = 't' ORDER BY step, call_index"),
    (
        "tool_runs_pk",
        "UPDATE tool_runs SET result = NULL WHERE chat_id = 'c' AND turn_id = 't' AND step = 1 AND call_index = 0",
    ),
    ("tool_runs_of_attempt", "DELETE FROM tool_runs WHERE chat_id = 'c' AND attempt_id = 'a'"),
    ("drafts_pk", "SELECT content FROM drafts WHERE chat_id = 'c' AND user_id = 'u'"),
    ("drafts_user_id", "DELETE FROM drafts WHERE user_id = 'u'"),
    ("debug_runs_pk", "SELECT kind FROM debug_runs WHERE chat_id = 'c' AND id < 'r' ORDER BY id DESC LIMIT 50"),
    ("debug_steps_pk", "SELECT status FROM debug_steps WHERE chat_id = 'c' AND run_id = 'r' ORDER BY step"),
    ("debug_attempts_pk", "DELETE FROM debug_attempts WHERE chat_id = 'c' AND run_id = 'r' AND step = 1"),
    ("debug_runs_started_at", "SELECT id FROM debug_runs WHERE started_at < '2026' ORDER BY started_at LIMIT 1"),
    (
        "debug_runs_open",
        """SELECT id FROM debug_runs WHERE ended_at IS NULL AND NOT EXISTS
        (SELECT id FROM workers WHERE id = worker_id AND heartbeat_at > '2026')""",
    ),
]


async def test_a_question_that_is_asked_often_is_answered_from_an_index(untouched: AsyncEngine) -> None:
    explain = explain_postgres if untouched.dialect.name == "postgresql" else explain_sqlite
    async with begin_read(untouched) as connection:
        for index, question in QUESTIONS:
            plan = await explain(connection, question)
            by_sqlite = f"sqlite_autoindex_{index.removesuffix('_pk')}_1"  # its name for a primary key
            assert index in plan or by_sqlite in plan, (index, question, plan)
            assert "sort" not in plan, (index, question, plan)


async def explain_postgres(connection: AsyncConnection, question: str) -> str:
    """The plan for a table that is too large to be read as a whole or sorted."""
    for way in ("seqscan", "bitmapscan", "sort"):
        await connection.execute(text(f"SET LOCAL enable_{way} = off"))
    plan = await connection.scalars(text("EXPLAIN (COSTS off) " + question.replace("'2026'", "'2026-01-01'")))
    return "\n".join(plan).lower()


async def explain_sqlite(connection: AsyncConnection, question: str) -> str:
    """The plan, with the names of the constraints for the indexes that SQLite made for them."""
    plan = "\n".join(row.detail for row in await connection.execute(text("EXPLAIN QUERY PLAN " + question)))
    for made, rule in {"queue_2": queue, "attempts_2": attempts, "turns_2": turns}.items():
        (unique,) = [rule_ for rule_ in rule.constraints if isinstance(rule_, UniqueConstraint)]
        plan = plan.replace(f"sqlite_autoindex_{made}", str(unique.name))
    return plan.replace("TEMP B-TREE", "sort")
