"""Commands: one class per command of the table.

A command carries the facts that `decide` needs, and no content; the content is its payload (store/payloads.py). A
worker's commands name their turn and attempt and carry the epoch of its lease.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from indelible.machine.effects import ReplyLimit
from indelible.machine.transitions import CommandName


class Command(msgspec.Struct, frozen=True, kw_only=True):
    name: ClassVar[CommandName]


class Create(Command, frozen=True):
    name = CommandName.CREATE
    with_message: bool = False


class Send(Command, frozen=True):
    name = CommandName.SEND


class SendInterrupt(Command, frozen=True):
    name = CommandName.SEND_INTERRUPT


class SendSteer(Command, frozen=True):
    name = CommandName.SEND_STEER


SendCommand = Send | SendInterrupt | SendSteer
"""A new user message, with any effect on a running reply."""


class AddMessages(Command, frozen=True):
    """Messages that were said elsewhere enter history. Nothing is answered."""

    name = CommandName.ADD_MESSAGES


class Edit(Command, frozen=True):
    name = CommandName.EDIT
    message_id: str


class Regenerate(Command, frozen=True):
    name = CommandName.REGENERATE
    message_id: str


class SwitchBranch(Command, frozen=True):
    """Go to the newest leaf below this message; `exact`: to the message itself, with the results of its calls."""

    name = CommandName.SWITCH_BRANCH
    message_id: str
    exact: bool = False


class Continue(Command, frozen=True):
    name = CommandName.CONTINUE


class Delete(Command, frozen=True):
    name = CommandName.DELETE


class DeleteQueued(Command, frozen=True):
    name = CommandName.DELETE_QUEUED
    queued_id: str


class ReorderQueue(Command, frozen=True):
    name = CommandName.REORDER_QUEUE
    queued_ids: tuple[str, ...]


class EditQueued(Command, frozen=True):
    name = CommandName.EDIT_QUEUED
    queued_id: str


class PromoteQueued(Command, frozen=True):
    name = CommandName.PROMOTE_QUEUED
    queued_id: str


class Interrupt(Command, frozen=True):
    """`turn_id` names the turn that the user meant: a late click must not stop the next one."""

    name = CommandName.INTERRUPT
    turn_id: str | None = None


class ToolResults(Command, frozen=True):
    """`turn_id` is the turn that asked for them: call ids repeat, and late results must not answer a later call."""

    name = CommandName.TOOL_RESULTS
    call_ids: tuple[str, ...]
    turn_id: str | None = None


class Retry(Command, frozen=True):
    name = CommandName.RETRY


class Compact(Command, frozen=True):
    name = CommandName.COMPACT


class Archive(Command, frozen=True):
    name = CommandName.ARCHIVE


class Unarchive(Command, frozen=True):
    name = CommandName.UNARCHIVE


class UpdateChat(Command, frozen=True):
    """Change the chat's metadata: title, labels, model and so on.

    `only_untitled`: a title that a worker generated replaces the beginning of the first message, and no other title.
    """

    name = CommandName.UPDATE_CHAT
    only_untitled: bool = False


class Acquire(Command, frozen=True):
    name = CommandName.ACQUIRE
    worker_id: str


class WorkerCommand(Command, frozen=True):
    """`epoch` is the lease's. Ending a turn or attempt that has already ended succeeds and changes nothing."""

    epoch: int


class Release(WorkerCommand, frozen=True):
    name = CommandName.RELEASE


class StartAttempt(WorkerCommand, frozen=True):
    name = CommandName.START_ATTEMPT
    turn_id: str


class AnnounceRetry(WorkerCommand, frozen=True):
    """An attempt failed before it produced anything visible; another follows after a wait."""

    name = CommandName.ANNOUNCE_RETRY
    turn_id: str


class KeepSummary(WorkerCommand, frozen=True):
    """The conversation has become too long; from now on the model gets this summary of it."""

    name = CommandName.KEEP_SUMMARY
    turn_id: str


class CommitStep(WorkerCommand, frozen=True):
    """A step that another follows; with `failed`, one that broke off after visible output and is continued."""

    name = CommandName.COMMIT_STEP
    turn_id: str
    attempt_id: str
    failed: bool = False


class FinishTurn(WorkerCommand, frozen=True):
    """The last step and the end of its turn.

    Without an attempt there is no step to keep: the open attempt produced nothing, or there is none, because a
    takeover found the turn already answered. `limit` is what ended the reply, if the model did not end it itself.
    """

    name = CommandName.FINISH_TURN
    turn_id: str
    attempt_id: str | None = None
    limit: ReplyLimit | None = None


class AwaitAction(WorkerCommand, frozen=True):
    """A step whose calls the client must answer."""

    name = CommandName.AWAIT_ACTION
    turn_id: str
    attempt_id: str


class ActionExpired(Command, frozen=True):
    """The deadline for tool results has passed. Any worker may send this, because no worker holds the chat.

    It is checked again under the lock: the same turn may be waiting for its next results by then.
    """

    name = CommandName.ACTION_EXPIRED
    turn_id: str


class Fail(WorkerCommand, frozen=True):
    name = CommandName.FAIL
    turn_id: str
    attempt_id: str | None = None


class FinishInterruption(WorkerCommand, frozen=True):
    name = CommandName.FINISH_INTERRUPTION
    turn_id: str
    attempt_id: str | None = None
