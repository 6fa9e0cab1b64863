"""Loading the facts that `decide` needs, under the chat's lock.

The lock comes first, and everything else is read in later statements: at READ COMMITTED a statement that
waited for a lock would still see the data from before the wait (R1). SQLite needs no row lock, because a
write transaction locks the whole file.

One statement then reads what nearly every command needs: the chat's row, the database's time, the holder's heartbeat,
the open turn and its open attempt, what the path ends with, and whether anything is queued. Beyond that, only the facts
that the command declares for this status are loaded (machine/transitions.py, `FACTS`). A fact that is not loaded has
its default in the snapshot; tests/machine/test_facts.py checks that `decide` never reads it, and
tests/store/test_statements.py what commands cost.

Facts about the end of the path are found by climbing from the head, so the cost does not depend on the length of the
chat (store/queries/history.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

from indelible import content
from indelible.machine.commands import Acquire, Command, SwitchBranch
from indelible.machine.states import Destination, OpenAttempt, OpenTurn, QueuedRow, Snapshot, Status, Target
from indelible.machine.transitions import Fact, find_facts
from indelible.store.database.transaction import Dialect, Row, Transaction, to_time
from indelible.store.queries.history import HEAD_KIND, is_conversation, load_ancestors
from indelible.store.queries.liveness import is_alive
from indelible.store.queries.tree import find_destination

_BROKEN: Final = {"failed", "crashed"}
"""A reply that ended for one of these may be retried, even if its text is complete."""

_ACQUIRE_LOCK_TIMEOUT_MS: Final = 250
"""Acquiring waits no longer than this for a locked attempt: other chats can be acquired meanwhile."""
_NO_PROGRESS: Final = (content.ToolStarted, content.ToolProgress, content.UsageUpdate)
_NEAR_END: Final = 4
"""A question, a call, its result and the reply."""
_AT_THE_END: Final = {Fact.OPEN_CALLS, Fact.LAST_REPLY, Fact.LAST_USER, Fact.LAST_ANSWERED}

_LOCK_CHAT: Final = "SELECT id FROM chats WHERE id = $1 FOR NO KEY UPDATE"
_TRY_CHAT: Final = f"{_LOCK_CHAT} SKIP LOCKED"
_LIMIT_WAITING: Final = f"SET LOCAL lock_timeout = {_ACQUIRE_LOCK_TIMEOUT_MS}"
_QUEUE: Final = "SELECT id, if_busy FROM queue WHERE chat_id = $1 ORDER BY position"
_ENDED_ROWS: Final = "SELECT coalesce(sum(last_n), 0) AS count FROM attempts WHERE chat_id = $1 AND turn_id = $2"
_LAST_TURN_KIND: Final = """
SELECT kind FROM turns WHERE chat_id = $1 AND ended_at IS NOT NULL ORDER BY number DESC LIMIT 1
"""
_JUST_COMPACTED: Final = """
SELECT m.id FROM messages AS m JOIN turns AS t ON t.chat_id = m.chat_id AND t.id = m.turn_id
WHERE m.chat_id = $1 AND m.id = $2 AND m.role = 'notice' AND t.kind = 'compaction' AND t.outcome = 'complete'
"""
_JOURNAL: Final = "SELECT parts FROM journal WHERE chat_id = $1 AND attempt_id = $2"
_BLOCKS: Final = "SELECT id, blocks FROM messages WHERE chat_id = $1 AND id = ANY($2)"


@cache
def _build_facts(dialect: Dialect) -> str:
    """The head is looked up by its key: a join without statistics would read all messages of the chat.

    SQLite has no clock of its own, and calling one from its statement costs more than a row.
    """
    now = "" if dialect == "sqlite" else "clock_timestamp() AS now,"
    return f"""
        SELECT chats.owner_id, chats.status, chats.archived, chats.head_id, chats.epoch, chats.holder, chats.seq,
            chats.deadline_at, chats.model, chats.usage, chats.cost_nanousd, chats.title IS NOT NULL AS has_title,
            chats.title IS NOT NULL AND NOT chats.title_is_provisional AS titled,
            {now} workers.heartbeat_at, workers.gone_at,
            turns.id AS turn_id, turns.kind, turns.message_id, turns.takeovers, turns.stalled_takeovers,
            turns.journal_rows_at_takeover,
            attempts.id AS attempt_id, attempts.epoch AS attempt_epoch, attempts.step AS attempt_step,
            attempts.number AS attempt_number, attempts.provider AS attempt_provider, attempts.model AS attempt_model,
            attempts.started_at AS attempt_started_at,
            (SELECT {HEAD_KIND} FROM messages WHERE chat_id = $1 AND id = chats.head_id) AS head_kind,
            EXISTS (SELECT id FROM queue WHERE chat_id = $1) AS has_queue
        FROM chats
        LEFT JOIN workers ON workers.id = chats.holder
        LEFT JOIN turns ON turns.chat_id = $1 AND turns.ended_at IS NULL
        LEFT JOIN attempts ON attempts.chat_id = $1 AND attempts.turn_id = turns.id AND attempts.ended_at IS NULL
        WHERE chats.id = $1
        """


class Loaded(NamedTuple):
    """A snapshot, the row of facts, the open calls at its end if requested, and the database's time.

    `vacant_s` is the time since the holder's last heartbeat, if the command requested it.
    """

    snapshot: Snapshot
    chat: Row
    open_calls: list[content.ToolCall]
    now: datetime
    vacant_s: float | None


class End(NamedTuple):
    """What a path ends with."""

    open_calls: list[content.ToolCall]
    last_is_partial: bool = False
    last_user_id: str | None = None
    last_answered: bool = False


_NO_END: Final = End([])


async def load_snapshot(
    transaction: Transaction, chat_id: str, command: Command, *, lease_timeout_s: float
) -> Loaded | None:
    """Lock the chat and load the facts that the command needs; None if the chat does not exist.

    Acquiring does not wait for a chat that another transaction has locked (R2): it returns None for that one too.
    """
    is_acquiring = isinstance(command, Acquire)
    is_there = await transaction.lock(_TRY_CHAT if is_acquiring else _LOCK_CHAT, chat_id)
    dialect = transaction.dialect
    chat = await transaction.one(_build_facts(dialect), chat_id) if is_there else None
    if chat is None:
        return None
    status = Status(chat["status"])
    head_id, deadline_at = chat["head_id"], to_time(chat["deadline_at"])
    facts = find_facts(command.name, status)
    now = await transaction.now() if dialect == "sqlite" else to_time(chat["now"])
    beaten_at = to_time(chat["heartbeat_at"])
    if is_acquiring and chat["attempt_id"] is not None and dialect == "postgresql":
        await transaction.run(_LIMIT_WAITING)
    end = await load_end(transaction, chat_id, head_id) if facts & _AT_THE_END else _NO_END
    vacant_s = None if beaten_at is None else (now - beaten_at).total_seconds()
    rows: list[list[content.Part]] = []
    if Fact.FINISHED in facts and chat["attempt_id"] is not None:
        rows = await _load_parts(transaction, chat_id, chat["attempt_id"])
    turn = await _read_turn(transaction, chat_id, chat, facts, rows) if chat["turn_id"] is not None else None
    attempt = _read_attempt(chat, rows) if chat["attempt_id"] is not None else None
    queue = await transaction.all(_QUEUE, chat_id) if chat["has_queue"] else []
    snapshot = Snapshot(
        chat_id=chat_id,
        status=status,
        archived=bool(chat["archived"]),
        epoch=chat["epoch"],
        holder=chat["holder"],
        holder_alive=is_alive(chat["gone_at"], vacant_s=vacant_s, lease_timeout_s=lease_timeout_s),
        head_id=head_id,
        queue=tuple(QueuedRow(id=row["id"], if_busy=row["if_busy"]) for row in queue),
        turn=turn,
        attempt=attempt,
        awaiting=tuple(call.id for call in end.open_calls),
        deadline_passed=deadline_at is not None and deadline_at <= now,
        last_is_partial=end.last_is_partial,
        last_user_id=end.last_user_id,
        last_answered=end.last_answered,
        titled=bool(chat["titled"]),
        last_turn_kind=await _load_last_turn_kind(transaction, chat_id) if Fact.LAST_TURN in facts else "reply",
        just_compacted=Fact.JUST_COMPACTED in facts
        and await transaction.one(_JUST_COMPACTED, chat_id, head_id) is not None,
        target=await _load_target(transaction, chat_id, command) if Fact.TARGET in facts else None,
        destination=await _load_destination(transaction, chat_id, command) if Fact.DESTINATION in facts else None,
    )
    return Loaded(snapshot, chat, end.open_calls, now, vacant_s)


async def _read_turn(
    transaction: Transaction,
    chat_id: str,
    chat: Row,
    facts: frozenset[Fact],
    rows: Sequence[Sequence[content.Part]],
) -> OpenTurn:
    journal_rows = chat["journal_rows_at_takeover"]
    if Fact.JOURNAL_ROWS in facts and chat["holder"] is not None:  # without a holder it is no takeover
        journal_rows = await count_progress(transaction, chat_id, chat["turn_id"], rows)
    return OpenTurn(
        id=chat["turn_id"],
        kind=chat["kind"],
        message_id=chat["message_id"],
        takeovers=chat["takeovers"],
        stalled_takeovers=chat["stalled_takeovers"],
        journal_rows=journal_rows,
        journal_rows_at_takeover=chat["journal_rows_at_takeover"],
    )


async def count_progress(
    transaction: Transaction, chat_id: str, turn_id: str, open_rows: Sequence[Sequence[content.Part]]
) -> int:
    """The journal rows of a turn that are progress: a part of the model, or a settled tool (rule 10.16).

    All rows of an ended attempt count: either it ended with a committed step, or its worker died while the model was
    still writing, before any tool began. `open_rows` are those of the open attempt.
    """
    ended = int((await transaction.one(_ENDED_ROWS, chat_id, turn_id))["count"])
    return ended + sum(any(not isinstance(part, _NO_PROGRESS) for part in row) for row in open_rows)


async def load_progress(transaction: Transaction, chat_id: str, turn_id: str, attempt_id: str | None) -> int:
    """Like `count_progress`, for a caller that has not loaded the open attempt."""
    rows = [] if attempt_id is None else await _load_parts(transaction, chat_id, attempt_id)
    return await count_progress(transaction, chat_id, turn_id, rows)


def _read_attempt(chat: Row, rows: Sequence[Sequence[content.Part]]) -> OpenAttempt:
    parts = [part for row in rows for part in row]
    settled = {part.call_id for part in parts if isinstance(part, content.ToolResult)}
    return OpenAttempt(
        id=chat["attempt_id"],
        turn_id=chat["turn_id"],
        epoch=chat["attempt_epoch"],
        finished=any(isinstance(part, content.Finish) for part in parts),
        in_tool=any(isinstance(part, content.ToolStarted) and part.call_id not in settled for part in parts),
    )


async def _load_last_turn_kind(transaction: Transaction, chat_id: str) -> Any:
    row = await transaction.one(_LAST_TURN_KIND, chat_id)
    return "reply" if row is None else row["kind"]


async def _load_parts(transaction: Transaction, chat_id: str, attempt_id: str) -> list[list[content.Part]]:
    """The parts of an open attempt, row by row."""
    return [content.decode_parts(row["parts"]) for row in await transaction.all(_JOURNAL, chat_id, attempt_id)]


async def load_end(transaction: Transaction, chat_id: str, head_id: str | None) -> End:
    """What the conversation ends with, whatever people or the model were told alone since then.

    So a partial reply is still the last one if the model was asked to continue it and was stopped before it did.
    """
    last_is_partial: bool | None = None
    last_user_id: str | None = None
    blocks: dict[str, bytes] = {}
    trailing: list[str] = []
    reply_id: str | None = None
    may_be_complete = False
    async for row, of_row in _walk_up_from_end(transaction, chat_id, head_id):
        if not is_conversation(row):
            continue
        if of_row is not None:
            blocks[row["id"]] = of_row
        role = row["role"]
        if last_is_partial is None and role != "tool":
            last_is_partial = role == "assistant" and bool(row["partial"])
        if reply_id is None and role == "tool":
            trailing.append(row["id"])
        elif reply_id is None:
            reply_id = row["id"] if role == "assistant" else ""
            may_be_complete = not trailing and not row["partial"] and row["reason"] not in _BROKEN
        if role == "user":
            last_user_id = row["id"]
            break
    if not reply_id:
        return End([], bool(last_is_partial), last_user_id)
    open_calls, is_visible = await _read_reply(transaction, chat_id, [reply_id, *trailing], blocks)
    is_answered = may_be_complete and is_visible and not open_calls
    return End(open_calls, bool(last_is_partial), last_user_id, is_answered)


async def _walk_up_from_end(
    transaction: Transaction, chat_id: str, head_id: str | None
) -> AsyncIterator[tuple[Row, bytes | None]]:
    """The path from its end upwards, the first rows with their blocks: nearly always those are all that is needed."""
    near = 0
    async for row in load_ancestors(transaction, chat_id, head_id, "reason", "blocks", chunk=_NEAR_END):
        yield row, row["blocks"]
        head_id, near = row["parent_id"], near + 1
        if near == _NEAR_END:
            break
    async for row in load_ancestors(transaction, chat_id, head_id, "reason"):
        yield row, None


async def _read_reply(
    transaction: Transaction, chat_id: str, ids: Sequence[str], known: dict[str, bytes]
) -> tuple[list[content.ToolCall], bool]:
    """The calls of a reply that no result answers, and whether people see anything of it. Its id is the first."""
    if missing := [id_ for id_ in ids if id_ not in known]:
        known |= {row["id"]: row["blocks"] for row in await transaction.all(_BLOCKS, chat_id, missing)}
    blocks = {id_: content.decode_blocks(known[id_]) for id_ in ids}
    open_calls = content.find_open_calls([block for of_row in blocks.values() for block in of_row])
    return open_calls, content.has_visible(blocks[ids[0]])


async def _load_destination(transaction: Transaction, chat_id: str, command: Command) -> Destination | None:
    assert isinstance(command, SwitchBranch)
    return await find_destination(transaction, chat_id, command.message_id, exact=command.exact)


async def _load_target(transaction: Transaction, chat_id: str, command: Command) -> Target | None:
    """The message that a command names; None for a message that only the model sees."""
    message_id: str = getattr(command, "message_id")  # noqa: B009 - each command that declares it has it
    named: Row = None
    async for row in load_ancestors(transaction, chat_id, message_id):
        if named is None:
            if row["visibility"] == "model":
                return None
            named = row
        if row["role"] == "user" and row["visibility"] == "both":
            return Target(id=named["id"], role=named["role"], parent_id=named["parent_id"], user_above_id=row["id"])
    return None if named is None else Target(id=named["id"], role=named["role"], parent_id=named["parent_id"])
