"""What the users' commands do to a chat: messages, branches, the queue, stops, and metadata.

Each function decides one command; `decide` has already checked that the table allows the command in this state.
`FACTS`, beside the table, declares which facts of the snapshot a command may read.

Neighbours: decide_worker.py for the workers' commands, decision.py for the pieces that both use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from indelible.errors import Invalid, NotFound
from indelible.machine.commands import (
    AddMessages,
    Archive,
    Command,
    Compact,
    Continue,
    Create,
    Delete,
    DeleteQueued,
    Edit,
    EditQueued,
    Interrupt,
    PromoteQueued,
    Regenerate,
    ReorderQueue,
    Retry,
    Send,
    SendInterrupt,
    SendSteer,
    SwitchBranch,
    ToolResults,
    Unarchive,
    UpdateChat,
)
from indelible.machine.decision import (
    NOTHING,
    Decision,
    answer_calls,
    clear_error,
    close_attempt,
    close_turn,
    end_stopped,
    is_turn,
    refuse,
)
from indelible.machine.effects import (
    AddHistory,
    AddInstruction,
    AddMessage,
    AddToolResults,
    BeginTurn,
    ClearHolder,
    DeleteChat,
    EditQueuedMessage,
    Effect,
    Enqueue,
    MoveHead,
    RaiseEpoch,
    RemoveQueued,
    ReorderQueueRows,
    RestoreError,
    SetArchived,
    SetStatus,
    StartQueued,
    UpdateMetadata,
)
from indelible.machine.states import BUSY, RESTING, Snapshot, Status, Target, place_in_queue


def _begin_stop(snapshot: Snapshot) -> list[Effect]:
    return [] if snapshot.status is Status.INTERRUPTING else [SetStatus(status=Status.INTERRUPTING)]


def _run_message(snapshot: Snapshot) -> list[Effect]:
    """The command's message enters history and is answered."""
    return [
        *answer_calls(snapshot, "cancelled"),
        *clear_error(snapshot),
        AddMessage(),
        BeginTurn(),
        SetStatus(status=Status.RUNNING),
    ]


def _require_target(snapshot: Snapshot, message_id: str) -> Target:
    if snapshot.target is None or snapshot.target.id != message_id:
        raise NotFound("Message not found in this chat.")
    return snapshot.target


def _require_queued(snapshot: Snapshot, queued_id: str) -> None:
    if all(row.id != queued_id for row in snapshot.queue):
        raise NotFound("Message not found in the queue. It may have been sent already.")


def create(command: Create) -> Decision:
    if not command.with_message:
        return Decision((SetStatus(status=Status.IDLE),))
    return Decision((AddMessage(), BeginTurn(), SetStatus(status=Status.RUNNING)))


def _send(snapshot: Snapshot, command: Send | SendSteer | SendInterrupt) -> Decision:
    if snapshot.status not in RESTING:
        return Decision((Enqueue(if_busy="queue"),))
    if not snapshot.queue:
        return Decision(tuple(_run_message(snapshot)))
    answers = answer_calls(snapshot, "cancelled")
    run = (*answers, *clear_error(snapshot), Enqueue(if_busy="queue"), StartQueued(), SetStatus(status=Status.RUNNING))
    return Decision(run)


def _send_steer(snapshot: Snapshot, command: SendSteer) -> Decision:
    """Only a running turn can be steered; otherwise this is a plain message."""
    if snapshot.status is Status.RUNNING:
        return Decision((Enqueue(if_busy="steer"),))
    return _send(snapshot, command)


def _send_interrupt(snapshot: Snapshot, command: SendInterrupt) -> Decision:
    if snapshot.status in BUSY:
        return Decision((Enqueue(if_busy="interrupt"), *_begin_stop(snapshot)))
    if snapshot.status is Status.REQUIRES_ACTION:
        closing = (*answer_calls(snapshot, "cancelled"), *close_turn(snapshot, "interrupted"))
        return Decision((*closing, AddMessage(), BeginTurn(), SetStatus(status=Status.RUNNING)))
    return _send(snapshot, command)


def _add_messages(snapshot: Snapshot, command: AddMessages) -> Decision:
    """An error belongs to the end of a branch, and this is no longer its end."""
    return Decision((*clear_error(snapshot), AddHistory(), SetStatus(status=Status.IDLE)))


def _fork(snapshot: Snapshot) -> list[Effect]:
    """A running turn ends on its branch, and its worker can no longer write."""
    return [
        *close_attempt(snapshot, "edited", "edited"),
        *answer_calls(snapshot, "cancelled"),
        *close_turn(snapshot, "edited"),
        *clear_error(snapshot),
        RaiseEpoch(),
    ]


def _edit(snapshot: Snapshot, command: Edit) -> Decision:
    target = _require_target(snapshot, command.message_id)
    if target.role != "user":
        raise Invalid("Only a user message can be edited.")
    message = AddMessage(replaces_id=target.id)
    effects = (MoveHead(message_id=target.parent_id), message, BeginTurn(), SetStatus(status=Status.RUNNING))
    return Decision((*_fork(snapshot), *effects))


def _regenerate(snapshot: Snapshot, command: Regenerate) -> Decision:
    target = _require_target(snapshot, command.message_id)
    above = target.id if target.role == "user" else target.user_above_id
    if target.role not in {"user", "assistant"} or above is None:
        raise Invalid("Only a reply or a user message can be regenerated.")
    effects = (MoveHead(message_id=above), BeginTurn(message_id=above), SetStatus(status=Status.RUNNING))
    return Decision((*_fork(snapshot), *effects))


def _switch_branch(snapshot: Snapshot, command: SwitchBranch) -> Decision:
    """An error belongs to its branch. A chat with a queue cannot be idle, so it keeps its current error."""
    place = snapshot.destination
    if place is None:
        raise NotFound("Message not found in this chat.")
    move = MoveHead(message_id=place.id)
    if place.failed:
        return Decision((move, RestoreError(), SetStatus(status=Status.ERROR)))
    if snapshot.queue:
        return Decision((move,))
    return Decision((move, *clear_error(snapshot), SetStatus(status=Status.IDLE)))


def _continue(snapshot: Snapshot, command: Continue) -> Decision:
    if snapshot.last_is_partial:
        return _answer_again(snapshot)
    if snapshot.last_answered:
        raise refuse(snapshot, command, "Nothing to continue: the last reply is complete.")
    if snapshot.last_user_id is None:
        raise refuse(snapshot, command, "Nothing to continue: the chat has no message to answer.")
    raise refuse(snapshot, command, "Nothing to continue: no text of a reply was cut off. Retry instead.")


def _retry(snapshot: Snapshot, command: Retry) -> Decision:
    if snapshot.status is Status.ERROR and snapshot.last_turn_kind == "compaction":
        return _summarise(snapshot)
    if snapshot.last_user_id is None:
        raise refuse(snapshot, command, "Nothing to retry: the chat has no message to answer.")
    if snapshot.last_answered:
        raise refuse(snapshot, command, "Nothing to retry: the last reply is complete.")
    return _answer_again(snapshot)


def _answer_again(snapshot: Snapshot) -> Decision:
    """A new turn for the same message: it continues a partial reply, else it starts over."""
    turn = BeginTurn(message_id=snapshot.last_user_id)
    effects = (*answer_calls(snapshot, "cancelled"), *clear_error(snapshot), AddInstruction(), turn)
    return Decision((*effects, SetStatus(status=Status.RUNNING)))


def _compact(snapshot: Snapshot, command: Compact) -> Decision:
    """Refused if it could only summarise a summary (rule 10.6)."""
    if snapshot.head_id is None:
        raise refuse(snapshot, command, "Nothing to summarise: the chat is empty.")
    if snapshot.just_compacted:
        raise refuse(snapshot, command, "Nothing new to summarise: nothing was said since the last summary.")
    return _summarise(snapshot)


def _summarise(snapshot: Snapshot) -> Decision:
    turn = BeginTurn(kind="compaction", message_id=snapshot.last_user_id)
    effects = (*answer_calls(snapshot, "cancelled"), *clear_error(snapshot), turn)
    return Decision((*effects, SetStatus(status=Status.RUNNING)))


def _delete(snapshot: Snapshot, command: Delete) -> Decision:
    closing = (*close_attempt(snapshot, "edited", "edited"), *close_turn(snapshot, "edited"))
    return Decision((RaiseEpoch(), *closing, DeleteChat()))


def _delete_queued(snapshot: Snapshot, command: DeleteQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    return Decision((RemoveQueued(queued_id=command.queued_id),))


def _reorder_queue(snapshot: Snapshot, command: ReorderQueue) -> Decision:
    if sorted(command.queued_ids) != sorted(row.id for row in snapshot.queue):
        raise Invalid("The new order must list every queued message exactly once.")
    return Decision((ReorderQueueRows(queued_ids=command.queued_ids),))


def _edit_queued(snapshot: Snapshot, command: EditQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    return Decision((EditQueuedMessage(queued_id=command.queued_id),))


def _promote_queued(snapshot: Snapshot, command: PromoteQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    if snapshot.status in BUSY:
        order = ReorderQueueRows(queued_ids=_bring_forward(snapshot, command.queued_id), promoted_id=command.queued_id)
        return Decision((order, *_begin_stop(snapshot)))
    closing = (*answer_calls(snapshot, "cancelled"), *close_turn(snapshot, "interrupted"), *clear_error(snapshot))
    return Decision((*closing, StartQueued(queued_id=command.queued_id), SetStatus(status=Status.RUNNING)))


def _bring_forward(snapshot: Snapshot, queued_id: str) -> tuple[str, ...]:
    """The order with this row promoted: behind rows promoted earlier, and never further back than it is now."""
    ids = [row.id for row in snapshot.queue]
    others = [row for row in snapshot.queue if row.id != queued_id]
    place = min(ids.index(queued_id), place_in_queue(others, "promoted"))
    ids.remove(queued_id)
    ids.insert(place, queued_id)
    return tuple(ids)


def _interrupt(snapshot: Snapshot, command: Interrupt) -> Decision:
    if command.turn_id is not None and not is_turn(snapshot, command.turn_id):
        return NOTHING
    if snapshot.status is Status.REQUIRES_ACTION:
        return end_stopped(snapshot, *answer_calls(snapshot, "cancelled"))
    if not snapshot.holder_alive:
        return end_stopped(snapshot, *close_attempt(snapshot, "interrupted", "interrupted"), ClearHolder())
    return Decision(tuple(_begin_stop(snapshot)))


def _tool_results(snapshot: Snapshot, command: ToolResults) -> Decision:
    if command.turn_id is not None and not is_turn(snapshot, command.turn_id):
        raise refuse(snapshot, command, "Too late: the reply that asked for these results has ended.")
    if sorted(command.call_ids) != sorted(snapshot.awaiting):
        raise Invalid("Submit exactly one result for every open call, and no others.")
    return Decision((AddToolResults(), SetStatus(status=Status.RUNNING)))


def _archive(snapshot: Snapshot, command: Archive | Unarchive) -> Decision:
    return Decision((SetArchived(archived=isinstance(command, Archive)),))


def _update_chat(snapshot: Snapshot, command: UpdateChat) -> Decision:
    if command.only_untitled and snapshot.titled:
        return NOTHING
    return Decision((UpdateMetadata(),))


DECIDE_USER: Final[dict[type[Command], Callable[[Snapshot, Any], Decision]]] = {
    Send: _send,
    SendSteer: _send_steer,
    SendInterrupt: _send_interrupt,
    AddMessages: _add_messages,
    Edit: _edit,
    Regenerate: _regenerate,
    SwitchBranch: _switch_branch,
    Continue: _continue,
    Delete: _delete,
    DeleteQueued: _delete_queued,
    ReorderQueue: _reorder_queue,
    EditQueued: _edit_queued,
    PromoteQueued: _promote_queued,
    Interrupt: _interrupt,
    ToolResults: _tool_results,
    Retry: _retry,
    Compact: _compact,
    Archive: _archive,
    Unarchive: _archive,
    UpdateChat: _update_chat,
}
