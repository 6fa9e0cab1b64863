"""The change of one chat by one command: its row, its events, and the state that the effects share.

The chat's row stays in memory and is written once, at the end, because the schema's CHECK constraints apply to every
statement; the row and its events are in the same transaction as everything else. Only this module numbers events: it
holds the chat's lock, so their numbers have neither gaps nor races.

Below are the texts that the store itself writes into a conversation or a chat's error; a worker's own come with its
command.

Must stay true (tests/store/test_conformance.py): `seq` of the row is the number of its last event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from indelible.api.events import EventKind
from indelible.content import Block, Message, Part, Text, ToolCall, encode
from indelible.machine import effects
from indelible.machine.states import Snapshot, Status, TurnKind
from indelible.store.database.transaction import Row, Transaction, clean_label, insert, update
from indelible.store.outcome import Outcome
from indelible.store.payloads import Payload
from indelible.store.queries.changes import Additions, LoadedRow
from indelible.store.queries.history import HeadKind, find_partial_reply
from indelible.store.queries.open_turn import AttemptName
from indelible.store.usage import Totals


class ChatChange:
    """One chat with the effects of one command that were applied so far.

    `head_kind` says what the head is, if that is known. `open_calls` are the unanswered calls at the end of the path,
    `put_id` is the last user message added and `put_model` the model that answers it, `live_id` the open attempt.
    `model` is the chat's, and `has_title` says whether it has a title. `totals` are what its messages used and cost so
    far. `changes` are further columns of the chat's row; `has_new_content`: people see something new, which moves
    `updated_at`.
    """

    def __init__(
        self,
        transaction: Transaction,
        snapshot: Snapshot,
        payload: Payload[Any] | None,
        *,
        chat: Row,
        open_calls: list[ToolCall],
        now: datetime,
    ) -> None:
        """`chat` is the row that facts.py loads, or what a new chat has of it."""
        self.transaction = transaction
        self.chat_id = snapshot.chat_id
        self.snapshot = snapshot
        self.payload = payload
        self.chat = chat
        self.owner_id: str = chat["owner_id"]
        self.model: str | None = chat["model"]
        self.has_title = bool(chat["has_title"])
        self.totals = Totals.read(chat)
        self.open_calls = open_calls
        self.now = now
        self.changes: dict[str, Any] = {}
        self.seq: int = chat["seq"]
        self.head_id = snapshot.head_id
        self.head_kind: HeadKind | None = chat["head_kind"]
        self.status = snapshot.status
        self.epoch = snapshot.epoch
        self.turn_id = snapshot.turn.id if snapshot.turn is not None else None
        self.turn_kind: TurnKind = snapshot.turn.kind if snapshot.turn is not None else "reply"
        self.live_id = snapshot.attempt.id if snapshot.attempt is not None else None
        self.ended: dict[str, Any] | None = None
        self.dropped = False
        self.takeovers = 0
        self.put_id: str | None = None
        self.put_model: str | None = None
        self.has_new_content = False
        self.queue_order = [row.id for row in snapshot.queue]
        self.queue_changed = False
        self.messages: list[Message] = []
        self.steers: list[Message] = []
        self.queued_id: str | None = None
        self.attempt: AttemptName | None = None
        self._events: list[dict[str, Any]] = []
        self._entries: list[dict[str, Any] | LoadedRow] = []
        self._shown: list[dict[str, Any]] = []
        self._is_known = True  # whether the entries are all that a reader would read

    def emit(self, kind: EventKind, ref: str | None = None, /, **detail: Any) -> None:
        """Append an event. It gets the chat's next number."""
        self.seq += 1
        payload = encode(detail) if detail else None
        event = {"chat_id": self.chat_id, "seq": self.seq, "kind": kind, "ref": ref, "payload": payload, "at": self.now}
        self._events.append(event)
        self._entries.append(event)
        self._is_known = self._is_known and kind not in _READ_FROM_ROWS

    async def add_row(self, attempt_id: str, n: int, parts: Sequence[Part]) -> None:
        """Write row `n` of the journal of an attempt."""
        encoded = encode(parts)
        row = {"chat_id": self.chat_id, "attempt_id": attempt_id, "n": n, "parts": encoded, "at": self.now}
        await insert(self.transaction, "journal", row)
        self._entries.append(LoadedRow(attempt_id, n, encoded))

    async def add_message(self, row: dict[str, Any], kind: HeadKind) -> None:
        """Write a message under the head, and make it the head."""
        await insert(self.transaction, "messages", row)
        if kind != "model":
            self._is_known = self._is_known and self.head_kind != "model"  # people see it under another message
            self._shown.append({**_NO_COST, **row, "model": row["model"] and clean_label(row["model"])})
        self.head_id, self.head_kind = row["id"], kind

    async def find_partial_reply(self) -> str | None:
        """The partial reply that the path ends with; None if it ends with anything else."""
        if self.head_kind in {"whole", "partial"}:
            return self.head_id if self.head_kind == "partial" else None
        return await find_partial_reply(self.transaction, self.chat_id, self.head_id)

    def add_totals(self, added: Totals) -> None:
        """Add what a message used and cost."""
        self.totals = self.totals.plus(*added)
        self.changes |= self.totals.to_columns()

    def conclude(self) -> Outcome:
        """The outcome of the command, after its last effect. Its last events are added here, and written by `write`."""
        if not self.dropped:
            self._emit_ends()
        return Outcome(
            chat_id=self.chat_id,
            effective=True,
            status=None if self.dropped else self.status,
            seq=self.seq,
            epoch=self.epoch,
            messages=[*self.messages],
            steers=self.steers,
            queued_id=self.queued_id,
            turn_id=self.turn_id,
            attempt=self.attempt,
            live_id=self.live_id,
            takeovers=self.takeovers,
            in_tool=self.snapshot.attempt is not None and self.snapshot.attempt.in_tool,
            wakes_readers=self.dropped or bool(self._events),
            wakes_workers=self._wakes_workers(),
            at=self.now,
        )

    def collect_additions(self) -> Additions | None:
        """What readers get of the change; None if a reader has to ask for something else, or for nothing."""
        is_complete = self._is_known and not self.dropped and bool(self._events)
        return Additions(self._entries, self._shown) if is_complete else None

    def _wakes_workers(self) -> bool:
        """Whether a worker has to act now; see `Outcome`."""
        before = self.snapshot
        has_lost_it = before.holder is not None and self.epoch > before.epoch
        is_waiting = self.status is Status.RUNNING and self.holder is None
        return self.dropped or self.status is Status.INTERRUPTING or has_lost_it or is_waiting

    @property
    def holder(self) -> str | None:
        return self.changes.get("holder", self.snapshot.holder)

    def _has_turned(self) -> bool:
        turn_before = self.snapshot.turn.id if self.snapshot.turn is not None else None
        return self.status is not self.snapshot.status or self.turn_id != turn_before

    def _emit_ends(self) -> None:
        if self._has_turned():
            ended = {} if self.ended is None else {"ended": self.ended}
            self.emit("status", self.turn_id, status=self.status.value, **ended)
        if self.queue_changed:
            self.emit("queue", ids=self.queue_order)

    async def write(self) -> None:
        """Write the chat's row and its events, unless the chat was deleted."""
        if self.dropped:
            return
        live_before = self.snapshot.attempt.id if self.snapshot.attempt is not None else None
        changes = {**self.changes, "status": self.status.value, "head_id": self.head_id, "seq": self.seq}
        changes["epoch"] = self.epoch
        if self.has_new_content:
            changes["updated_at"] = self.now
        if self._has_turned() or "holder" in self.changes or self.live_id != live_before:
            changes["runnable_at"] = self.now
        await update(self.transaction, "chats", changes, id=self.chat_id)
        if self._events:
            await insert(self.transaction, "events", *self._events)


_READ_FROM_ROWS: Final = {"head", "queue"}
"""Events that show more than they hold."""
_NO_COST: Final = {"usage": None, "cost_nanousd": None, "timings": None}
Handlers = Mapping[type[effects.Effect], Callable[[ChatChange, Any], Awaitable[None]]]
"""The handler of each kind of effect; each module of this package has those for its part of a chat."""
NOTICES: Final[dict[effects.NoticeKind, str]] = {
    "stopped": "Stopped by you.",
    "failed": "The reply failed.",
    "crashed": "The reply failed: the server crashed too often while writing it. The partial reply is saved.",
    "empty": "The model returned nothing.",
    "compacted": "The conversation was summarised for the model. Everything above stays as it is for you.",
    "length": "The reply reached its length limit. Continue resumes it; without any words yet, Retry asks again.",
    "content_filter": "The provider's content filter ended the reply.",
    "max_steps": "The reply reached the maximum number of steps. Retry to continue.",
}
ERRORS: Final[dict[effects.NoticeKind, dict[str, Any]]] = {
    "failed": {"kind": "unknown", "message": NOTICES["failed"]},
    "crashed": {"kind": "crashed", "message": NOTICES["crashed"]},
}
CONTINUE: Final = "Your last message was cut off. Go on exactly where it ends, without repeating any of it."
ANSWERS: Final[dict[effects.AnswerReason, str]] = {
    "cancelled": "Cancelled: the user continued without the result of this call.",
    "expired": "Expired: nobody gave the result of this call in time.",
}


def name_notice(text: Text, kind: effects.NoticeKind) -> Text:
    """The text of a notice, with what it tells of."""
    return replace(text, metadata={"notice": kind})


_OLD_NOTICES: Final[dict[str, effects.NoticeKind]] = {
    "Stopped by you.": "stopped",
    "The reply reached its length limit": "length",
}


def recover_notice(blocks: Sequence[Block], *, has_failed: bool) -> list[Block]:
    """The blocks of a notice from before notices had a kind: some follow from their sentence, once (migration 0019)."""
    match blocks:
        case [Text(metadata=None) as first, *rest]:
            found = (kind for known, kind in _OLD_NOTICES.items() if first.text.startswith(known))
            kind = "failed" if has_failed else next(found, None)
            return [first if kind is None else name_notice(first, kind), *rest]
        case _:
            return list(blocks)
