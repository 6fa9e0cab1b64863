"""Effects: the vocabulary in which `decide` describes what to write.

The store applies effects in order, in the transaction that holds the chat's lock, and appends the event for each.
An effect holds no content: the text of a new message comes with the command, and the output of an attempt comes
from its journal.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from indelible.content import PartialReason
from indelible.machine.states import IfBusy, Status, TurnKind

AttemptOutcome = Literal["complete", "interrupted", "failed", "crashed", "handed_over", "edited", "reset"]
TurnOutcome = Literal["complete", "interrupted", "failed", "edited"]
ReplyLimit = Literal["length", "content_filter", "max_steps"]
NoticeKind = Literal["stopped", "failed", "crashed", "empty", "compacted", "length", "content_filter", "max_steps"]
ErrorKind = Literal["failed", "crashed"]
AnswerReason = Literal["cancelled", "expired"]


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    pass


class CloseAttempt(Effect, frozen=True):
    """End the open attempt from its journal: `reason` is what open calls are answered with, if at all."""

    outcome: AttemptOutcome
    reason: PartialReason | None = None


class ScheduleRetry(Effect, frozen=True):
    """Announce the next attempt. An open attempt left nothing to keep, and ends with this."""


class AdoptAttempt(Effect, frozen=True):
    """The open attempt continues under the new epoch: its stream is complete, only tool results may be missing."""


class LeaveAttempt(Effect, frozen=True):
    """The open attempt stays open for another worker; the unflushed parts become its last row."""


class BeginAttempt(Effect, frozen=True):
    """Number and open the next attempt of the open turn."""


class CloseTurn(Effect, frozen=True):
    outcome: TurnOutcome


class BeginTurn(Effect, frozen=True):
    """Open a turn that answers this user message; None means the message just added, if there is one."""

    kind: TurnKind = "reply"
    message_id: str | None = None


class AddMessage(Effect, frozen=True):
    """The command's own message becomes the head. It keeps the model of a message that it replaces."""

    replaces_id: str | None = None


class AddHistory(Effect, frozen=True):
    """The command's messages, which were said elsewhere, enter history in their order."""


class AddInstruction(Effect, frozen=True):
    """If the path ends in a partial reply, add an instruction to continue it, which only the model sees."""


class AddSummary(Effect, frozen=True):
    """The command's summary, if it has one, becomes the head; only the model sees it."""


class AddToolResults(Effect, frozen=True):
    """The command's tool results become the head."""


class AddNotice(Effect, frozen=True):
    """A message for people. The notice of a failure also stores the error, so that its branch keeps it."""

    kind: NoticeKind


class AnswerOpenCalls(Effect, frozen=True):
    """Answer every call that is open at the end of the path with an error."""

    reason: AnswerReason


class MoveHead(Effect, frozen=True):
    """Make this message the head; None is before the first message."""

    message_id: str | None


class Enqueue(Effect, frozen=True):
    """The command's message joins the queue, at the place of its `if_busy`."""

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
    """Store the command's error, or the default of its kind, on the chat until its status changes."""

    kind: ErrorKind = "failed"


class ClearError(Effect, frozen=True):
    pass


class RestoreError(Effect, frozen=True):
    """The chat is at the notice of a failed turn again: the error that is stored with it is the chat's."""


class SetDeadline(Effect, frozen=True):
    """Set the deadline for tool results. It has no meaning in any other status."""


class ClearHolder(Effect, frozen=True):
    pass


class RaiseEpoch(Effect, frozen=True):
    """No earlier holder of the chat can write any more."""

    holder: str | None = None


class RecordTakeover(Effect, frozen=True):
    """The open turn survived another crash: the number of takeovers, of those without progress, and of journal rows."""

    takeovers: int
    stalled: int
    journal_rows: int


class SetArchived(Effect, frozen=True):
    archived: bool


class UpdateMetadata(Effect, frozen=True):
    """Store the command's metadata: the title and so on."""


class DeleteChat(Effect, frozen=True):
    """Delete the chat and all its data."""
