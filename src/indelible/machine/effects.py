"""What is to be written: the vocabulary in which `decide` answers.

The store carries effects out in order, in the transaction that holds the chat's lock, and appends the event
that tells of each. An effect names no content: the words of a new message come with the command, and
what an attempt said comes from its journal.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from indelible.content import PartialReason
from indelible.machine.states import IfBusy, Status, TurnKind

AttemptOutcome = Literal["complete", "interrupted", "failed", "crashed", "handed_over", "edited", "reset"]
TurnOutcome = Literal["complete", "interrupted", "failed", "edited"]
NoticeKind = Literal["stopped", "failed", "crashed", "empty", "compacted"]
ErrorKind = Literal["failed", "crashed"]
AnswerReason = Literal["cancelled", "expired"]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    pass


class CloseAttempt(Effect, frozen=True):
    """End the open attempt from its journal: `reason` is what open calls are answered with, if at all."""

    outcome: AttemptOutcome
    reason: PartialReason | None = None


class ScheduleRetry(Effect, frozen=True):
    """Tell of the next attempt. An open one left nothing to keep, and ends with that."""


class AdoptAttempt(Effect, frozen=True):
    """The open attempt goes on under the chat's new epoch: its stream is complete, only its tools may be missing."""


class LeaveAttempt(Effect, frozen=True):
    """The open attempt stays open, for another worker; what was not flushed yet is its last row."""


class BeginAttempt(Effect, frozen=True):
    """Number and open the next attempt of the open turn."""


class CloseTurn(Effect, frozen=True):
    outcome: TurnOutcome


class BeginTurn(Effect, frozen=True):
    """Open a turn that answers this user message; None means the one just put, if one was."""

    kind: TurnKind = "reply"
    message_id: str | None = None


class AddMessage(Effect, frozen=True):
    """The command's own message becomes the head."""


class AddInstruction(Effect, frozen=True):
    """If the path ends in a partial reply, a message that only the model sees follows it: go on with your own text."""


class AddSummary(Effect, frozen=True):
    """The command's summary, if it has one, becomes the head; only the model sees it."""


class AddToolResults(Effect, frozen=True):
    """The command's tool results become the head."""


class AddNotice(Effect, frozen=True):
    kind: NoticeKind


class AnswerOpenCalls(Effect, frozen=True):
    """Answer every call that is open at the end of the path with an error."""

    reason: AnswerReason


class MoveHead(Effect, frozen=True):
    """Go to this message; None is before the first."""

    message_id: str | None


class Enqueue(Effect, frozen=True):
    """The command's message joins the queue, where `when` says."""

    if_busy: IfBusy


class StartQueued(Effect, frozen=True):
    """A queued message leaves the queue, becomes the head, and opens a turn. None: the front."""

    queued_id: str | None = None


class InsertSteers(Effect, frozen=True):
    """Steers leave the queue and become messages of the running turn."""


class RemoveQueued(Effect, frozen=True):
    queued_id: str


class EditQueuedMessage(Effect, frozen=True):
    """The command's content replaces a queued message's."""

    queued_id: str


class ReorderQueueRows(Effect, frozen=True):
    queued_ids: tuple[str, ...]
    promoted_id: str | None = None


class SetStatus(Effect, frozen=True):
    status: Status


class SetError(Effect, frozen=True):
    """The command's error, or what is known of its kind, stands at the chat until it is left."""

    kind: ErrorKind = "failed"


class ClearError(Effect, frozen=True):
    pass


class SetDeadline(Effect, frozen=True):
    """Answers from outside are waited for until then. It means nothing once the status is another."""


class ClearHolder(Effect, frozen=True):
    pass


class RaiseEpoch(Effect, frozen=True):
    """Nobody who held the chat before can write any more."""

    holder: str | None = None


class RecordTakeover(Effect, frozen=True):
    """The open turn outlived another crash: how many it were, how many of the last brought nothing, what was said."""

    takeovers: int
    stalled: int
    journal_rows: int


class SetArchived(Effect, frozen=True):
    archived: bool


class UpdateMetadata(Effect, frozen=True):
    """What the command says about the chat is written down: its title and the like."""


class DeleteChat(Effect, frozen=True):
    """The chat goes, and all that hangs on it."""
