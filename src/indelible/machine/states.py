"""The states of a chat, as the rules see them.

The stored status has five values; with the queue empty or not, and archived or not, that makes the
states that the table (transitions.py) is written in. `pending`, which clients see for a running chat that no
live worker holds, is not one of them: it is computed for a response and never stored.

A `Snapshot` is everything that `decide` may read, loaded by the store under the chat's row lock. It
holds facts, no content: the text of a message never changes what is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

IfBusy = Literal["queue", "steer", "interrupt", "promoted"]
TurnKind = Literal["reply", "compaction"]

RANK: Final[dict[IfBusy, int]] = {"promoted": 0, "interrupt": 1, "steer": 2, "queue": 3}
"""The rank with which a row enters the queue. It does not bind queued rows: users may reorder them."""


class Status(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    INTERRUPTING = "interrupting"
    REQUIRES_ACTION = "requires_action"
    ERROR = "error"


RESTING: Final = (Status.IDLE, Status.ERROR)
"""No turn is open."""
BUSY: Final = (Status.RUNNING, Status.INTERRUPTING)
"""A worker has something to do."""


class State(StrEnum):
    """Status, whether messages are queued, whether the chat is archived. `NONE`: the chat does not exist."""

    NONE = "none"
    IDLE = "idle"
    RUNNING = "running"
    RUNNING_QUEUED = "running_queued"
    INTERRUPTING = "interrupting"
    INTERRUPTING_QUEUED = "interrupting_queued"
    REQUIRES_ACTION = "requires_action"
    REQUIRES_ACTION_QUEUED = "requires_action_queued"
    ERROR = "error"
    ERROR_QUEUED = "error_queued"
    IDLE_ARCHIVED = "idle_archived"
    ERROR_ARCHIVED = "error_archived"
    ERROR_QUEUED_ARCHIVED = "error_queued_archived"


def state_of(status: Status, *, queued: int, archived: bool) -> State:
    """The state of a chat with this status. An idle chat has no queue: raises ValueError if it has."""
    flags = [status.value, *(["queued"] if queued else []), *(["archived"] if archived else [])]
    return State("_".join(flags))


class QueuedRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    if_busy: IfBusy


def place_in_queue(queue: Sequence[QueuedRow], if_busy: IfBusy) -> int:
    """The index at which a new row is inserted: before the first one of a higher rank, hence after its equals."""
    higher = (index for index, row in enumerate(queue) if RANK[row.if_busy] > RANK[if_busy])
    return next(higher, len(queue))


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The turn that is being answered.

    `journal_rows` counts the rows of all its attempts with a part of the model or a settled tool, and is loaded only to
    take the chat over; `journal_rows_at_takeover` is what the last takeover counted.
    """

    id: str
    kind: TurnKind = "reply"
    message_id: str | None = None
    takeovers: int = 0
    stalled_takeovers: int = 0
    journal_rows: int = 0
    journal_rows_at_takeover: int = 0


class OpenAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """`finished`: its journal holds `finish`. Only a takeover and a hand-over need it.

    `in_tool`: a tool has started and not settled. Only a takeover needs it.
    """

    id: str
    turn_id: str
    epoch: int
    finished: bool = False
    in_tool: bool = False


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The message that a command names: its role, its parent, and the user's message it answers."""

    id: str
    role: str
    parent_id: str | None = None
    user_above_id: str | None = None


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where a switch of branches leads, and whether a failed turn ended there."""

    id: str
    failed: bool = False


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One chat at one moment.

    `awaiting` are the unanswered calls at the end of the path, and `deadline_passed` says that the time to answer
    them is over. Messages that only people or only the model see (notices, summaries) do not count for the next three:
    `last_is_partial`: the path ends with a partial reply, perhaps followed by results of its calls. `last_user_id` is
    the last message that the user wrote. `last_answered`: the path ends with a complete reply.
    `last_turn_kind` is the kind of the turn that ended last. `just_compacted`: the path ends with the notice of a
    finished compaction. `target` is the message that the command names, and `destination` the one that it leads to, if
    this chat has it.
    """

    chat_id: str
    status: Status = Status.IDLE
    archived: bool = False
    epoch: int = 0
    holder: str | None = None
    holder_alive: bool = False
    head_id: str | None = None
    queue: tuple[QueuedRow, ...] = ()
    turn: OpenTurn | None = None
    attempt: OpenAttempt | None = None
    awaiting: tuple[str, ...] = ()
    deadline_passed: bool = False
    last_is_partial: bool = False
    last_user_id: str | None = None
    last_answered: bool = False
    last_turn_kind: TurnKind = "reply"
    just_compacted: bool = False
    titled: bool = False
    target: Target | None = None
    destination: Destination | None = None

    @property
    def state(self) -> State:
        return state_of(self.status, queued=len(self.queue), archived=self.archived)
