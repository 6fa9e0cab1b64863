"""What a worker needs to know about a chat that it holds, from one snapshot.

`load_work` runs once per turn, and again after a takeover: the open turn, the conversation, and the open attempt,
if the last holder left one whose stream was complete (R3). `load_held` runs all the time and is one small
query: whether a worker still holds its chats, and whether they still need work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from indelible.api.shapes import DebugMode
from indelible.content import Message, Part, ToolSpec, Usage
from indelible.errors import ChatNotFound
from indelible.machine.states import Status, TurnKind
from indelible.store.database.transaction import Dialect, Row, Transaction
from indelible.store.queries.chat_view import load_path_rows, load_rows, to_message
from indelible.store.queries.liveness import BUSY_STATUSES, bind_ago, build_ago

_WORK_COLUMNS: Final = """
    SELECT c.owner_id, c.status, c.epoch, c.holder, c.head_id, c.title, c.title_is_provisional, c.model,
        c.system_prompt, c.parameters, c.tools, c.debug,
        t.id AS turn_id, t.kind, t.model AS turn_model,
        a.id AS attempt_id, a.step, a.number, a.epoch AS attempt_epoch,
        (
            SELECT max(step) FROM attempts
            WHERE chat_id = t.chat_id AND turn_id = t.id AND (outcome IS NULL OR outcome <> 'reset')
        ) AS last_step,
        (
            SELECT count(*) FROM attempts WHERE chat_id = t.chat_id AND turn_id = t.id AND outcome = 'complete'
        ) AS completed_steps
    """
_WORK_TABLES: Final = """
    FROM chats AS c
    LEFT JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
    LEFT JOIN attempts AS a ON a.chat_id = c.id AND a.turn_id = t.id AND a.ended_at IS NULL
    WHERE c.id = $1
    """
_WORK: Final = f"{_WORK_COLUMNS}{_WORK_TABLES}"
# COALESCE keeps the database from choosing the wrong index: the few busy chats are read, and not all of the user's.
_WORK_AND_RIVALS: Final = f"""
    {_WORK_COLUMNS}, (
        SELECT count(*) FROM chats AS rival
        WHERE rival.status IN {BUSY_STATUSES} AND COALESCE(rival.owner_id, '') = c.owner_id AND rival.id <> c.id
    ) AS rivals
    {_WORK_TABLES}
    """
# Only a busy chat has a holder, and busy chats have an index.
_HELD: Final = f"""
    SELECT c.id, c.status, c.epoch, t.id AS turn_id
    FROM chats AS c LEFT JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
    WHERE c.holder = $1 AND c.status IN {BUSY_STATUSES}
    """


@cache
def _build_expired(dialect: Dialect) -> str:
    return f"""
        SELECT c.id, t.id AS turn_id
        FROM chats AS c JOIN turns AS t ON t.chat_id = c.id AND t.ended_at IS NULL
        WHERE c.status = 'requires_action' AND c.deadline_at <= {build_ago(dialect, 1)}
        ORDER BY c.deadline_at LIMIT $2
        """


class AttemptName(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, numbered by the store."""

    chat_id: str
    id: str
    turn_id: str
    step: int
    number: int
    epoch: int


class OpenWork(msgspec.Struct, frozen=True, kw_only=True):
    """The open turn of a chat.

    `model` is the turn's model, or else the chat's; None means the setting. `tools` are the chat's own, run by its
    client. `next_step` is the number of the turn's next step; attempts that left nothing do not count. `attempt` is
    open, and `parts` are its content up to row `n`. `usage` is the last reply's. `titled`: the chat has a title, and
    not only a provisional one (`has_title`). `debug` is the chat's debug mode; None means that the setting applies.
    """

    chat_id: str
    owner_id: str
    status: Status
    epoch: int
    holder: str | None
    titled: bool
    has_title: bool = False
    turn_id: str | None = None
    kind: TurnKind = "reply"
    model: str | None = None
    system_prompt: str | None = None
    parameters: dict[str, Any] = {}
    tools: list[ToolSpec] = []
    debug: DebugMode | None = None
    messages: list[Message] = []
    usage: Usage | None = None
    next_step: int = 1
    completed_steps: int = 0
    attempt: AttemptName | None = None
    parts: list[Part] = []
    n: int = 0


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker got in the transaction of a user's command (commands/begin.py): the chat, under this epoch.

    `work` is what it holds, as of before its first attempt; None: the worker has to read it. `attempt` was opened, for
    the model and the provider that the worker named.
    """

    epoch: int
    turn_id: str
    work: OpenWork | None = None
    attempt: AttemptName | None = None
    model: str | None = None
    provider: str | None = None


class Held(NamedTuple):
    """A chat that a worker holds, as the database has it now."""

    chat_id: str
    status: Status
    epoch: int
    turn_id: str | None


class Probe(NamedTuple):
    """The hinted chats that a worker holds, those that it may try to acquire, and those of users at their limit."""

    held: list[Held]
    runnable: list[str]
    held_back: list[str]


class Expired(NamedTuple):
    """A chat whose deadline for tool results has passed."""

    chat_id: str
    turn_id: str


async def load_work(transaction: Transaction, chat_id: str) -> OpenWork:
    row = await transaction.one(_WORK, chat_id)
    if row is None:
        raise ChatNotFound
    work = _read_chat(chat_id, row)
    if row["turn_id"] is None:
        return work
    path = [above async for above in load_path_rows(transaction, chat_id, row["head_id"], "usage")]
    return await _add_attempt(transaction, _add_turn(work, row, path), row)


async def load_begun_turn(transaction: Transaction, chat_id: str) -> Row:
    """For `load_begun_work`, a turn that was begun or resumed in this transaction; `rivals`: its user's busy chats."""
    return await transaction.one(_WORK_AND_RIVALS, chat_id)


async def load_begun_work(
    transaction: Transaction, chat_id: str, head_id: str | None, row: Row, *, max_messages: int, max_bytes: int
) -> OpenWork | None:
    """The work of such a turn, before the chat's row is written: status, epoch and holder are those of before.

    None if the path to its head is longer than this.
    """
    path: list[Row] = []
    size = 0
    async for above in load_path_rows(transaction, chat_id, head_id, "usage", chunk=max_messages + 1):
        path.append(above)
        size += len(above["blocks"])
        if len(path) > max_messages or size > max_bytes:
            return None
    return _add_turn(_read_chat(chat_id, row), row, path)


def _read_chat(chat_id: str, row: Row) -> OpenWork:
    return OpenWork(
        chat_id=chat_id,
        owner_id=row["owner_id"],
        status=Status(row["status"]),
        epoch=row["epoch"],
        holder=row["holder"],
        titled=row["title"] is not None and not row["title_is_provisional"],
        has_title=row["title"] is not None,
        model=(row["model"] if row["turn_model"] is None else row["turn_model"]) or None,
        system_prompt=None if row["system_prompt"] is None else msgspec.json.decode(row["system_prompt"]),
        parameters={} if row["parameters"] is None else msgspec.json.decode(row["parameters"]),
        tools=[] if row["tools"] is None else msgspec.json.decode(row["tools"], type=list[ToolSpec]),
        debug=row["debug"],
    )


def _add_turn(work: OpenWork, row: Row, path: Sequence[Row]) -> OpenWork:
    """`path` is read from its end upwards."""
    used = next((above["usage"] for above in path if above["role"] == "assistant"), None)
    return msgspec.structs.replace(
        work,
        turn_id=row["turn_id"],
        kind=row["kind"],
        messages=[to_message(above) for above in reversed(path)],
        usage=None if used is None else msgspec.json.decode(used, type=Usage),
        next_step=(row["last_step"] or 0) + 1,
        completed_steps=row["completed_steps"],
    )


async def _add_attempt(transaction: Transaction, work: OpenWork, row: Row) -> OpenWork:
    if row["attempt_id"] is None:
        return work
    rows = await load_rows(transaction, work.chat_id, row["attempt_id"])
    return msgspec.structs.replace(
        work,
        attempt=AttemptName(
            chat_id=work.chat_id,
            id=row["attempt_id"],
            turn_id=row["turn_id"],
            step=row["step"],
            number=row["number"],
            epoch=row["attempt_epoch"],
        ),
        parts=[part for entry in rows for part in entry.parts],
        n=rows[-1].n if rows else 0,
    )


async def load_held(transaction: Transaction, worker_id: str) -> list[Held]:
    rows = await transaction.all(_HELD, worker_id)
    return [Held(row["id"], Status(row["status"]), row["epoch"], row["turn_id"]) for row in rows]


async def load_expired(transaction: Transaction, *, limit: int) -> list[Expired]:
    """Chats whose deadline for tool results has passed, the longest waiting first. Only a hint."""
    dialect = transaction.dialect
    rows = await transaction.all(_build_expired(dialect), bind_ago(dialect, 0), limit)
    return [Expired(row["id"], row["turn_id"]) for row in rows]
