"""Whether a stored chat is consistent: its rows, read in one snapshot, and what is wrong with them.

`load_chat` reads all rows of a chat; `find_faults` is pure and describes, in sentences, which promises
the rows break. It is written from docs/architecture.md and trusts no writer: neither the machine nor the
store. So it can judge a database after any history: random commands, concurrent writers, a crash.

Must stay true: it finds each of these faults in a chat in which it was made by hand, and none in a chat that only the
store has written (tests/store/test_life.py, tests/store/test_crash_sweep.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from indelible.content import Block, Message, Part, Text, ToolCall, ToolResult, decode_blocks, decode_parts
from indelible.content.assemble import assemble
from indelible.loop.prompt.build import build_prompt
from indelible.store.database.transaction import Database, Transaction, to_time
from indelible.store.journal.pack import unpack_rows
from indelible.store.usage import Totals, add_up
from indelible.testing.legality import check_legality

Row = SimpleNamespace
"""A row, with its columns as attributes."""

Rows = Sequence[Row]
PROVIDERS = ("anthropic", "openai")
_BUSY = ("running", "interrupting")
_CHAT: Final = "SELECT * FROM chats WHERE id = $1"
_ROWS: Final = {
    "turns": "SELECT * FROM turns WHERE chat_id = $1 ORDER BY number",
    "attempts": "SELECT * FROM attempts WHERE chat_id = $1 ORDER BY id",
    "messages": "SELECT * FROM messages WHERE chat_id = $1 ORDER BY id",
    "queue": "SELECT * FROM queue WHERE chat_id = $1 ORDER BY position",
    "events": "SELECT * FROM events WHERE chat_id = $1 ORDER BY seq",
    "journal": "SELECT * FROM journal WHERE chat_id = $1 ORDER BY attempt_id, n",
}


class StoredChat(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one chat at one moment, each kind in its own order."""

    chat: Row
    turns: Rows
    attempts: Rows
    messages: Rows
    queue: Rows
    events: Rows
    journal: Rows

    @property
    def open_turn(self) -> Row | None:
        return next((row for row in self.turns if row.ended_at is None), None)

    @property
    def open_attempt(self) -> Row | None:
        return next((row for row in self.attempts if row.ended_at is None), None)

    @property
    def path(self) -> list[Message]:
        """From the first message to the head."""
        by_id = {row.id: row for row in self.messages}
        ancestors: list[Message] = []
        id_ = self.chat.head_id
        while id_ is not None:
            row = by_id.pop(id_)  # a cycle would fail here
            ancestors.append(
                Message(
                    id=row.id,
                    role=row.role,
                    blocks=decode_blocks(row.blocks),
                    partial=bool(row.partial),
                    reason=row.reason,
                    visibility=row.visibility,
                )
            )
            id_ = row.parent_id
        return ancestors[::-1]

    @property
    def typed(self) -> list[str]:
        """What the user wrote, on every branch and in the queue."""
        sent = [row.blocks for row in self.messages if row.role == "user" and row.visibility == "both"]
        return [_read_text(decode_blocks(blocks)) for blocks in (*sent, *(row.content for row in self.queue))]

    def parts_of(self, attempt_id: str) -> list[Part]:
        rows = [row.parts for row in self.journal if row.attempt_id == attempt_id]
        return [part for parts in rows for part in decode_parts(parts)]


async def load_chat(database: Database, chat_id: str) -> StoredChat | None:
    """All stored rows of a chat; None if it does not exist."""

    async def load(transaction: Transaction) -> StoredChat | None:
        found = await _fetch(transaction, _CHAT, chat_id)
        if not found:
            return None
        rows: dict[str, Any] = {name: await _fetch(transaction, sql, chat_id) for name, sql in _ROWS.items()}
        rows["journal"] = [unpacked for row in rows["journal"] for unpacked in _unpack(row)]
        return StoredChat(chat=found[0], **rows)

    return await database.read(load)


async def _fetch(transaction: Transaction, sql: str, chat_id: str) -> list[Row]:
    return [Row(**_read_times(dict(row))) for row in await transaction.all(sql, chat_id)]


def _unpack(row: Row) -> list[Row]:
    """A packed attempt has one row, number 0, that contains all others."""
    if row.n > 0:
        return [row]
    return [Row(**{**vars(row), "n": one.n, "at": one.at, "parts": one.parts}) for one in unpack_rows(row.parts)]


def _read_times(values: dict[str, Any]) -> dict[str, Any]:
    times = {name: to_time(value) for name, value in values.items() if name == "at" or name.endswith("_at")}
    return values | times


def find_faults(stored: StoredChat) -> list[str]:
    """The promises that these rows break. Empty if the chat is consistent."""
    checks = (_check_numbers, _check_work, _check_journal, _check_replies, _check_events, _check_path, _check_totals)
    return [fault for check in checks for fault in check(stored)]


def _check_numbers(stored: StoredChat) -> Iterator[str]:
    numbers = [row.seq for row in stored.events]
    if numbers != list(range(1, stored.chat.seq + 1)):
        yield f"the events are numbered {numbers}, and the chat says {stored.chat.seq}"


def _check_work(stored: StoredChat) -> Iterator[str]:
    status = stored.chat.status
    open_turns = [row.id for row in stored.turns if row.ended_at is None]
    open_attempts = [row for row in stored.attempts if row.ended_at is None]
    if len(open_turns) != (status in {*_BUSY, "requires_action"}):
        yield f"{len(open_turns)} turns are open while the chat is {status}"
    if len(open_attempts) > (status in _BUSY):
        yield f"{len(open_attempts)} attempts are open while the chat is {status}"
    for row in open_attempts:
        if row.turn_id not in open_turns:
            yield f"attempt {row.id} is open in a turn that has ended"
        if row.epoch != stored.chat.epoch:
            yield f"attempt {row.id} is open under epoch {row.epoch}, and the chat is at {stored.chat.epoch}"
    if status == "idle" and stored.queue:
        yield "a waiting chat has a queue"


def _check_journal(stored: StoredChat) -> Iterator[str]:
    for attempt in stored.attempts:
        numbers = [row.n for row in stored.journal if row.attempt_id == attempt.id]
        last_n = len(numbers) if attempt.ended_at is None else attempt.last_n
        if numbers != list(range(1, last_n + 1)):
            yield f"the journal of attempt {attempt.id} holds {numbers}, and {last_n} should be its last"


def _check_replies(stored: StoredChat) -> Iterator[str]:
    """The output of an attempt is in history once if it has ended, and not at all if it is running or was reset."""
    for attempt in stored.attempts:
        kept = [decode_blocks(row.blocks) for row in stored.messages if row.attempt_id == attempt.id]
        blocks = [block for message in kept for block in message]
        assembled = assemble(stored.parts_of(attempt.id)) if attempt.outcome not in {None, "reset"} else []
        if _read_text(blocks) != _read_text(assembled):
            yield f"attempt {attempt.id} said {_read_text(assembled)!r}, and history has {_read_text(blocks)!r}"
        if _read_call_ids(blocks) != _read_call_ids(assembled):
            yield f"attempt {attempt.id} called {_read_call_ids(assembled)}, and history has {_read_call_ids(blocks)}"


def _check_events(stored: StoredChat) -> Iterator[str]:
    """One event per message and attempt, and one for each attempt's end."""
    announced = {kind: [row.ref for row in stored.events if row.kind == kind] for kind in ("message", "attempt")}
    if Counter(announced["message"]) != Counter(row.id for row in stored.messages):
        yield "the messages and the events that tell of them differ"
    if Counter(announced["attempt"]) != Counter(row.id for row in stored.attempts):
        yield "the attempts and the events that tell of their beginning differ"
    payloads = [msgspec.json.decode(row.payload) for row in stored.events if row.payload is not None]
    ends = [payload["attempt"] for payload in payloads if "last_n" in payload]
    if Counter(ends) != Counter(row.id for row in stored.attempts if row.ended_at is not None):
        yield "the attempts that have ended and the events that tell of it differ"


def _check_totals(stored: StoredChat) -> Iterator[str]:
    """What a chat has used and cost is the sum over its messages, of every branch."""
    kept, summed = Totals.read(vars(stored.chat)), add_up(vars(row) for row in stored.messages)
    if kept != summed:
        yield f"the chat counts {kept}, and its messages add up to {summed}"


def _check_path(stored: StoredChat) -> Iterator[str]:
    path = [message for message in stored.path if message.role != "notice" and message.visibility != "people"]
    if stored.chat.status != "requires_action":
        for provider in PROVIDERS:
            for fault in check_legality(build_prompt(path, provider=provider), provider=provider):
                yield f"{provider} would refuse the path: {fault}"
    for at, message in enumerate(path):
        if message.role == "assistant":
            calls = _read_call_ids(message.blocks)
            results = list(takewhile(lambda each: each.role == "tool", path[at + 1 :]))
            answers = [call_id for result in results for call_id in _read_answered_ids(result.blocks)]
            is_at_the_end = at + 1 + len(results) == len(path) and stored.chat.status not in _BUSY
            unanswered = set() if is_at_the_end else set(calls) - set(answers)
            if unanswered or len(set(answers)) < len(answers) or not set(answers) <= set(calls):
                yield f"message {message.id} calls {calls}, and what follows it answers {answers}"


def _read_text(blocks: Sequence[Block]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, Text))


def _read_call_ids(blocks: Sequence[Block]) -> list[str]:
    return [block.id for block in blocks if isinstance(block, ToolCall) and not block.provider_executed]


def _read_answered_ids(blocks: Sequence[Block]) -> list[str]:
    return [block.call_id for block in blocks if isinstance(block, ToolResult) and not block.provider_executed]
