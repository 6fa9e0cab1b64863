"""A chat in a real store, driven by real commands, and questions about the rows that they leave.

`Driver` remembers what a worker and a client would: the names and the epoch that it was told. Whatever else it
says of a chat it has read from the tables and not through the store. The worker `live` is alive and the worker
`dead` is dead for as long as any test runs. What an attempt says is put into its journal row by row, each with
a time of its own, without the process that would say it.

`check` is what must hold after every command, whatever it was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
from sqlalchemy import Row, Table, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_read, begin_write, is_sqlite, run_on_sqlite
from tests.support.stored import load_path
from tests.support.tables import attempts, chats, events, journal, messages, metadata, queue, turns, users, workers

from indelible.content import Block, Message, Part, Text, TextDelta, ToolResult, decode_blocks, encode
from indelible.ids import new_id
from indelible.machine import State, Status, state_of
from indelible.machine import commands as c
from indelible.store.outcome import Outcome
from indelible.store.payloads import Payload, UserInput
from indelible.store.store import Store

OWNER = "user_ada"
SAID_AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENDS_AN_ATTEMPT = {"message", "reset", "retry", "error", "status"}

# The tokens of a deleted chat were paid for, so its usage stays.
DUMPED = sorted(metadata.tables.keys() - {"usage_days"})
DUMP_POSTGRES = " UNION ALL ".join(f"SELECT '{name}', t::text FROM {name} t" for name in DUMPED)  # noqa: S608

Dump = list[tuple[Any, ...]]


async def dump(engine: AsyncEngine) -> Dump:
    """Every row of every table at one moment, to be compared with a later one. Asked in one go, because it is often."""
    if is_sqlite(engine):
        return run_on_sqlite(engine, _dump_sqlite)
    async with begin_read(engine) as connection:
        return sorted(tuple(row) for row in await connection.exec_driver_sql(DUMP_POSTGRES))


def _dump_sqlite(file: sqlite3.Connection) -> Dump:
    file.execute("BEGIN")
    try:
        return [(name, row) for name in DUMPED for row in file.execute(f"SELECT * FROM {name}")]  # noqa: S608
    finally:
        file.execute("ROLLBACK")


async def settle_in(engine: AsyncEngine) -> None:
    """An owner, a worker that lives and one that does not."""
    now = datetime.now(UTC)
    beats = {"live": now + timedelta(days=1), "dead": now - timedelta(days=1)}
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id=OWNER, name="Ada", created_at=now))
        for worker_id, beat in beats.items():
            await connection.execute(insert(workers).values(id=worker_id, started_at=now, heartbeat_at=beat))


def find_payloads(command: type[c.Command]) -> list[type[Payload[Any]]]:
    """The payloads that a command may come with, as their types say."""
    found: list[type[Payload[Any]]] = []
    kinds = list(Payload.__subclasses__())
    while kinds:
        kind = kinds.pop(0)
        kinds += kind.__subclasses__()
        commands = get_args(kind.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        if command in (get_args(commands) or (commands,)):
            found.append(kind)
    return found


def make_payload(command: c.Command, **fields: Any) -> Payload[Any] | None:
    """The payload of a command that has these fields; the owner is who sends and who owns."""
    for kind in find_payloads(type(command)):
        if fields.keys() <= set(kind.__struct_fields__):
            known = {"owner_id": OWNER, "author_id": OWNER, **({"blocks": []} if kind is UserInput else {})}
            return kind(**{**{name: known[name] for name in kind.__struct_fields__ if name in known}, **fields})
    assert not fields, f"{command} comes with none of {fields}"
    return None


def fill_payload(command: c.Command, **fields: Any) -> Payload[Any] | None:
    """The largest payload of a command, with those of these fields that it has, and whatever else it needs."""
    kinds = sorted(find_payloads(type(command)), key=lambda kind: len(kind.__struct_fields__))
    if not kinds:
        return None
    summary = Message(role="user", blocks=[Text("They spoke.")], visibility="model")
    known: dict[str, Any] = {
        "blocks": [Text(str(command.name))],
        "title": "Rain",
        "results": [],
        "history": [Message(role="user", blocks=[Text("Said elsewhere.")])],
        "retry": {"delay_ms": 1000},
    }
    known |= {"summary": summary, **fields}
    return make_payload(command, **{name: known[name] for name in kinds[-1].__struct_fields__ if name in known})


class Driver:
    def __init__(self, store: Store, engine: AsyncEngine) -> None:
        self.id = new_id("chat")
        self.epoch = 0
        self.turn_id = ""
        self.attempt_id = ""
        self.store = store
        self._engine = engine

    # --- commands ---

    async def do(
        self, command: c.Command, text: str | None = None, payload: Payload[Any] | None = None, **fields: Any
    ) -> Outcome:
        """Carry out a command with its payload, or with one that has these fields; `text` is what the user says."""
        if text is not None:
            fields["blocks"] = [Text(text)]
        given: Any = payload or make_payload(command, **fields)
        outcome = await self.store.execute(self.id, command, given)
        self.epoch = outcome.epoch
        self.turn_id = outcome.turn_id or self.turn_id
        if outcome.attempt is not None:
            self.attempt_id = outcome.attempt.id
        return outcome

    async def create(self, text: str | None = "Hello") -> Driver:
        await self.do(c.Create(with_message=text is not None), text)
        return self

    async def work(self, worker_id: str = "live", *said: Part) -> Driver:
        """A worker takes the chat, begins an attempt and says something."""
        await self.do(c.Acquire(worker_id=worker_id))
        await self.start()
        await self.say(*(said or (TextDelta("1", "It is"),)))
        return self

    async def start(self) -> Outcome:
        return await self.do(self.name(c.StartAttempt), provider="demo", model="demo-1")

    async def say(self, *parts: Part) -> None:
        """One flush of the open attempt's journal."""
        async with begin_write(self._engine) as connection:
            written = select(func.count()).where(journal.c.attempt_id == self.attempt_id)
            n = (await connection.execute(written)).scalar_one() + 1
            at = SAID_AT + timedelta(seconds=n)
            row = {"chat_id": self.id, "attempt_id": self.attempt_id, "n": n, "parts": encode(list(parts)), "at": at}
            await connection.execute(insert(journal).values(row))

    async def bury(self) -> None:
        """The worker that holds the chat turns out to be dead."""
        async with begin_write(self._engine) as connection:
            await connection.execute(update(chats).where(chats.c.id == self.id).values(holder="dead"))

    async def end(self, kind: type[c.WorkerCommand], **fields: Any) -> Outcome:
        """A worker's command about the open turn and attempt. Other fields are what comes with it."""
        named = {name: fields.pop(name) for name in list(fields) if name in kind.__struct_fields__}
        return await self.do(self.name(kind, **named), **fields)

    def name(self, kind: type[c.WorkerCommand], **fields: Any) -> c.WorkerCommand:
        """A worker's command that names what is open now, or was last."""
        known = {"epoch": self.epoch, "turn_id": self.turn_id, "attempt_id": self.attempt_id, **fields}
        return kind(**{field: known[field] for field in kind.__struct_fields__ if field in known})

    async def copy(self) -> Driver:
        """Another chat in the same state, row by row, under names of its own. It costs a tenth of the way there."""
        twin = Driver(self.store, self._engine)
        async with begin_write(self._engine) as connection:
            tables = {
                table: [dict(row._mapping) for row in await connection.execute(select(table).where(column == self.id))]
                for table, column in (
                    (chats, chats.c.id),
                    (turns, turns.c.chat_id),
                    (attempts, attempts.c.chat_id),
                    (messages, messages.c.chat_id),
                    (queue, queue.c.chat_id),
                    (events, events.c.chat_id),
                )
            }
            told = {row["ref"]: row["seq"] for row in tables[events] if row["kind"] == "message"}
            tables[messages].sort(key=lambda row: int(told[row["id"]]))  # parents first
            own = [row["id"] for row in tables[attempts]]
            kept = await connection.execute(select(journal).where(journal.c.attempt_id.in_(own)))
            tables[journal] = [dict(row._mapping) for row in kept]
            names = {row["id"]: new_id(table.name) for table in (turns, attempts, queue) for row in tables[table]}
            names[self.id] = twin.id
            for table, rows in tables.items():
                copied = [{column: _rename(value, names) for column, value in row.items()} for row in rows]
                for row in copied:
                    # What tables name in a circle is written at the end.
                    row.update({"head_id": None} if table is chats else {"message_id": None} if table is turns else {})
                if copied:
                    await connection.execute(insert(table), copied)
            for row in tables[turns]:
                later = update(turns).where(turns.c.id == names[row["id"]])
                await connection.execute(later.values(message_id=row["message_id"]))
            for row in tables[chats]:
                await connection.execute(update(chats).where(chats.c.id == twin.id).values(head_id=row["head_id"]))
        twin.epoch = self.epoch
        twin.turn_id, twin.attempt_id = names.get(self.turn_id, ""), names.get(self.attempt_id, "")
        return twin

    # --- what there is ---

    async def rows(self, table: Table, *order: Any) -> Sequence[Row[Any]]:
        async with begin_read(self._engine) as connection:
            found = select(table).where(table.c.chat_id == self.id)
            return (await connection.execute(found.order_by(*order))).all()

    async def row(self) -> Row[Any]:
        async with begin_read(self._engine) as connection:
            return (await connection.execute(select(chats).where(chats.c.id == self.id))).one()

    async def state(self) -> State:
        async with begin_read(self._engine) as connection:
            chat = (await connection.execute(select(chats).where(chats.c.id == self.id))).one_or_none()
            queued = select(func.count()).where(queue.c.chat_id == self.id)
            count = (await connection.execute(queued)).scalar_one()
        if chat is None:
            return State.NONE
        return state_of(Status(chat.status), queued=count, archived=chat.archived)

    async def attempt(self) -> Row[Any]:
        """The open attempt, else the one that ended last."""
        (found,) = [row for row in await self.rows(attempts) if row.id == self.attempt_id]
        return found

    async def queued_ids(self) -> list[str]:
        return [row.id for row in await self.rows(queue, queue.c.position)]

    async def queued(self) -> list[str]:
        """What waits in the queue, in order."""
        return [read_text(decode_blocks(row.content)) for row in await self.rows(queue, queue.c.position)]

    async def path(self) -> list[Message]:
        return await load_path(self.store, self.id)

    async def said(self) -> list[tuple[str, str]]:
        """The active path as roles and text."""
        return [(message.role, read_text(message.blocks)) for message in await self.path()]

    async def last_id(self, role: str) -> str:
        """The newest message of this role that people see, on the active path."""
        found = [message.id for message in await self.path() if message.role == role and message.visibility != "model"]
        assert found[-1] is not None
        return found[-1]

    async def kinds(self) -> list[str]:
        return [row.kind for row in await self.rows(events, events.c.seq)]

    async def list_events(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        """All events: kind, ref, payload."""
        rows = await self.rows(events, events.c.seq)
        return [(row.kind, row.ref, msgspec.json.decode(row.payload) if row.payload else {}) for row in rows]

    # --- what must hold ---

    async def check(self) -> None:
        """The rows of this chat agree with each other, and the events with the rows."""
        async with begin_read(self._engine) as connection:
            chat = (await connection.execute(select(chats).where(chats.c.id == self.id))).one_or_none()
            rows: dict[Table, Sequence[Row[Any]]] = {}
            for table in (turns, messages, queue, events, attempts):
                found = await connection.execute(select(table).where(table.c.chat_id == self.id))
                rows[table] = found.all()
            lasts = select(journal.c.attempt_id, func.count(), func.max(journal.c.n)).where(
                journal.c.chat_id == self.id
            )
            rows_of_attempts = await connection.execute(lasts.group_by(journal.c.attempt_id))
            written = {row[0]: (row[1], row[2]) for row in rows_of_attempts}
        if chat is None:
            assert not any(rows.values())
            return
        _check_chat(chat, rows)
        _check_events(chat, rows)
        for attempt in rows[attempts]:
            count, last_n = written.get(attempt.id, (0, 0))
            assert count == last_n, "the journal has a gap"
            if attempt.ended_at is not None:
                assert attempt.last_n == last_n


def _rename(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, bytes):
        for old, new in names.items():
            value = value.replace(old.encode(), new.encode())
        return value
    return names.get(value, value) if isinstance(value, str) else value


def _check_chat(chat: Row[Any], rows: dict[Table, Sequence[Row[Any]]]) -> None:
    busy = chat.status in {"running", "interrupting", "requires_action"}
    open_turns = [turn for turn in rows[turns] if turn.ended_at is None]
    open_attempts = [attempt for attempt in rows[attempts] if attempt.ended_at is None]
    assert len(open_turns) == busy
    if open_attempts:
        (attempt,) = open_attempts
        assert chat.status in {"running", "interrupting"}
        assert (attempt.turn_id, attempt.epoch) == (open_turns[0].id, chat.epoch)
    assert chat.holder is None or chat.status in {"running", "interrupting"}
    assert (chat.error is not None) == (chat.status == "error")
    assert not (rows[queue] and chat.status == "idle")
    assert sorted(turn.number for turn in rows[turns]) == list(range(1, len(rows[turns]) + 1))
    parents = {message.id: message.parent_id for message in rows[messages]}
    assert chat.head_id is None or chat.head_id in parents
    assert (chat.head_id is None) == (not parents)


def _check_events(chat: Row[Any], rows: dict[Table, Sequence[Row[Any]]]) -> None:
    told = sorted(rows[events], key=lambda row: int(row.seq))
    assert [row.seq for row in told] == list(range(1, chat.seq + 1))
    names = {table: {row.id for row in rows[table]} for table in (turns, messages, attempts)}
    places = {"message": messages, "head": messages, "attempt": attempts, "reset": attempts}
    for row in told:
        assert row.ref is None or row.ref in names[places.get(row.kind, turns)]
    assert sorted(row.ref for row in told if row.kind == "message") == sorted(names[messages])
    assert sorted(row.ref for row in told if row.kind == "attempt") == sorted(names[attempts])
    ends = [(row.kind, msgspec.json.decode(row.payload)) for row in told if row.payload and b"last_n" in row.payload]
    assert {kind for kind, _ in ends} <= ENDS_AN_ATTEMPT
    ended = {attempt.id: attempt.last_n for attempt in rows[attempts] if attempt.ended_at is not None}
    assert len(ends) == len(ended), "an attempt ends with exactly one event"
    assert {payload["attempt"]: payload["last_n"] for _, payload in ends} == ended


def read_text(blocks: Sequence[Block]) -> str:
    """The text of a message; of tool results, their output."""
    return "".join(
        block.text if isinstance(block, Text) else str(block.output)
        for block in blocks
        if isinstance(block, Text | ToolResult)
    )
