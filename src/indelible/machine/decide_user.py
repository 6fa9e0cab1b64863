"""What the users' commands do to a chat: messages, branches, the queue, stops, and metadata.

Each function decides one command; `decide` has already checked that the table allows the command in this state.
`FACTS`, beside the table, declares which facts of the snapshot a command may read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from indelible.errors import Invalid, NotFound
from indelible.machine import commands, effects
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
from indelible.machine.states import BUSY, RESTING, Snapshot, Status, Target, place_in_queue

_RUN: Final = effects.SetStatus(status=Status.RUNNING)


def _begin_stop(snapshot: Snapshot) -> list[effects.Effect]:
    return [] if snapshot.status is Status.INTERRUPTING else [effects.SetStatus(status=Status.INTERRUPTING)]


def _run_message(snapshot: Snapshot) -> list[effects.Effect]:
    """The command's message enters history and is answered."""
    return [
        *answer_calls(snapshot, "cancelled"),
        *clear_error(snapshot),
        effects.AddMessage(),
        effects.BeginTurn(),
        _RUN,
    ]


def _require_target(snapshot: Snapshot, message_id: str) -> Target:
    if snapshot.target is None or snapshot.target.id != message_id:
        raise NotFound("Message not found in this chat.")
    return snapshot.target


def _require_queued(snapshot: Snapshot, queued_id: str) -> None:
    if all(row.id != queued_id for row in snapshot.queue):
        raise NotFound("Message not found in the queue. It may have been sent already.")


def create(command: commands.Create) -> Decision:
    if not command.with_message:
        return Decision((effects.SetStatus(status=Status.IDLE),))
    return Decision((effects.AddMessage(), effects.BeginTurn(), _RUN))


def _send(snapshot: Snapshot, command: commands.Send | commands.SendSteer | commands.SendInterrupt) -> Decision:
    if snapshot.status not in RESTING:
        return Decision((effects.Enqueue(if_busy="queue"),))
    if not snapshot.queue:
        return Decision(tuple(_run_message(snapshot)))
    answers = answer_calls(snapshot, "cancelled")
    run = (*answers, *clear_error(snapshot), effects.Enqueue(if_busy="queue"), effects.StartQueued(), _RUN)
    return Decision(run)


def _send_steer(snapshot: Snapshot, command: commands.SendSteer) -> Decision:
    """Only a running turn can be steered; otherwise this is a plain message."""
    if snapshot.status is Status.RUNNING:
        return Decision((effects.Enqueue(if_busy="steer"),))
    return _send(snapshot, command)


def _send_interrupt(snapshot: Snapshot, command: commands.SendInterrupt) -> Decision:
    if snapshot.status in BUSY:
        return Decision((effects.Enqueue(if_busy="interrupt"), *_begin_stop(snapshot)))
    if snapshot.status is Status.REQUIRES_ACTION:
        closing = (*answer_calls(snapshot, "cancelled"), *close_turn(snapshot, "interrupted"))
        return Decision((*closing, effects.AddMessage(), effects.BeginTurn(), _RUN))
    return _send(snapshot, command)


def _add_messages(snapshot: Snapshot, command: commands.AddMessages) -> Decision:
    """An error belongs to the end of a branch, and this is no longer its end."""
    return Decision((*clear_error(snapshot), effects.AddHistory(), effects.SetStatus(status=Status.IDLE)))


def _fork(snapshot: Snapshot) -> list[effects.Effect]:
    """A running turn ends on its branch, and its worker can no longer write."""
    return [
        *close_attempt(snapshot, "edited", "edited"),
        *answer_calls(snapshot, "cancelled"),
        *close_turn(snapshot, "edited"),
        *clear_error(snapshot),
        effects.RaiseEpoch(),
    ]


def _edit(snapshot: Snapshot, command: commands.Edit) -> Decision:
    target = _require_target(snapshot, command.message_id)
    if target.role != "user":
        raise Invalid("Only a user message can be edited.")
    message = effects.AddMessage(replaces_id=target.id)
    new_turn = (effects.MoveHead(message_id=target.parent_id), message, effects.BeginTurn(), _RUN)
    return Decision((*_fork(snapshot), *new_turn))


def _regenerate(snapshot: Snapshot, command: commands.Regenerate) -> Decision:
    target = _require_target(snapshot, command.message_id)
    above = target.id if target.role == "user" else target.user_above_id
    if target.role not in {"user", "assistant"} or above is None:
        raise Invalid("Only a reply or a user message can be regenerated.")
    new_turn = (effects.MoveHead(message_id=above), effects.BeginTurn(message_id=above), _RUN)
    return Decision((*_fork(snapshot), *new_turn))


def _switch_branch(snapshot: Snapshot, command: commands.SwitchBranch) -> Decision:
    """An error belongs to its branch. A chat with a queue cannot be idle, so it keeps its current error."""
    place = snapshot.destination
    if place is None:
        raise NotFound("Message not found in this chat.")
    move = effects.MoveHead(message_id=place.id)
    if place.failed:
        return Decision((move, effects.RestoreError(), effects.SetStatus(status=Status.ERROR)))
    if snapshot.queue:
        return Decision((move,))
    return Decision((move, *clear_error(snapshot), effects.SetStatus(status=Status.IDLE)))


def _continue(snapshot: Snapshot, command: commands.Continue) -> Decision:
    if snapshot.last_is_partial:
        return _answer_again(snapshot)
    if snapshot.last_answered:
        raise refuse(snapshot, command, "Nothing to continue: the last reply is complete.")
    if snapshot.last_user_id is None:
        raise refuse(snapshot, command, "Nothing to continue: the chat has no message to answer.")
    raise refuse(snapshot, command, "Nothing to continue: no text of a reply was cut off. Retry instead.")


def _retry(snapshot: Snapshot, command: commands.Retry) -> Decision:
    if snapshot.status is Status.ERROR and snapshot.last_turn_kind == "compaction":
        return _summarise(snapshot)
    if snapshot.last_user_id is None:
        raise refuse(snapshot, command, "Nothing to retry: the chat has no message to answer.")
    if snapshot.last_answered:
        raise refuse(snapshot, command, "Nothing to retry: the last reply is complete.")
    return _answer_again(snapshot)


def _answer_again(snapshot: Snapshot) -> Decision:
    """A new turn for the same message: it continues a partial reply, else it starts over."""
    turn = effects.BeginTurn(message_id=snapshot.last_user_id)
    new_turn = (*answer_calls(snapshot, "cancelled"), *clear_error(snapshot), effects.AddInstruction(), turn)
    return Decision((*new_turn, _RUN))


def _compact(snapshot: Snapshot, command: commands.Compact) -> Decision:
    """Refused if it could only summarise a summary (rule 10.6)."""
    if snapshot.head_id is None:
        raise refuse(snapshot, command, "Nothing to summarise: the chat is empty.")
    if snapshot.just_compacted:
        raise refuse(snapshot, command, "Nothing new to summarise: nothing was said since the last summary.")
    return _summarise(snapshot)


def _summarise(snapshot: Snapshot) -> Decision:
    turn = effects.BeginTurn(kind="compaction", message_id=snapshot.last_user_id)
    new_turn = (*answer_calls(snapshot, "cancelled"), *clear_error(snapshot), turn)
    return Decision((*new_turn, _RUN))


def _delete(snapshot: Snapshot, command: commands.Delete) -> Decision:
    closing = (*close_attempt(snapshot, "edited", "edited"), *close_turn(snapshot, "edited"))
    return Decision((effects.RaiseEpoch(), *closing, effects.DeleteChat()))


def _delete_queued(snapshot: Snapshot, command: commands.DeleteQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    return Decision((effects.RemoveQueued(queued_id=command.queued_id),))


def _reorder_queue(snapshot: Snapshot, command: commands.ReorderQueue) -> Decision:
    if sorted(command.queued_ids) != sorted(row.id for row in snapshot.queue):
        raise Invalid("The new order must list every queued message exactly once.")
    return Decision((effects.ReorderQueueRows(queued_ids=command.queued_ids),))


def _edit_queued(snapshot: Snapshot, command: commands.EditQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    return Decision((effects.EditQueuedMessage(queued_id=command.queued_id),))


def _promote_queued(snapshot: Snapshot, command: commands.PromoteQueued) -> Decision:
    _require_queued(snapshot, command.queued_id)
    if snapshot.status in BUSY:
        order = effects.ReorderQueueRows(
            queued_ids=_bring_forward(snapshot, command.queued_id), promoted_id=command.queued_id
        )
        return Decision((order, *_begin_stop(snapshot)))
    closing = (*answer_calls(snapshot, "cancelled"), *close_turn(snapshot, "interrupted"), *clear_error(snapshot))
    return Decision((*closing, effects.StartQueued(queued_id=command.queued_id), _RUN))


def _bring_forward(snapshot: Snapshot, queued_id: str) -> tuple[str, ...]:
    """The order with this row promoted: behind rows promoted earlier, and never further back than it is now."""
    ids = [row.id for row in snapshot.queue]
    others = [row for row in snapshot.queue if row.id != queued_id]
    place = min(ids.index(queued_id), place_in_queue(others, "promoted"))
    ids.remove(queued_id)
    ids.insert(place, queued_id)
    return tuple(ids)


def _interrupt(snapshot: Snapshot, command: commands.Interrupt) -> Decision:
    if command.turn_id is not None and not is_turn(snapshot, command.turn_id):
        return NOTHING
    if snapshot.status is Status.REQUIRES_ACTION:
        return end_stopped(snapshot, *answer_calls(snapshot, "cancelled"))
    if not snapshot.holder_alive:
        return end_stopped(snapshot, *close_attempt(snapshot, "interrupted", "interrupted"), effects.ClearHolder())
    return Decision(tuple(_begin_stop(snapshot)))


def _tool_results(snapshot: Snapshot, command: commands.ToolResults) -> Decision:
    if command.turn_id is not None and not is_turn(snapshot, command.turn_id):
        raise refuse(snapshot, command, "Too late: the reply that asked for these results has ended.")
    if sorted(command.call_ids) != sorted(snapshot.awaiting):
        raise Invalid("Submit exactly one result for every open call, and no others.")
    return Decision((effects.AddToolResults(), _RUN))


def _archive(snapshot: Snapshot, command: commands.Archive | commands.Unarchive) -> Decision:
    return Decision((effects.SetArchived(archived=isinstance(command, commands.Archive)),))


def _update_chat(snapshot: Snapshot, command: commands.UpdateChat) -> Decision:
    if command.only_untitled and snapshot.titled:
        return NOTHING
    return Decision((effects.UpdateMetadata(),))


DECIDE_USER: Final[dict[type[commands.Command], Callable[[Snapshot, Any], Decision]]] = {
    commands.Send: _send,
    commands.SendSteer: _send_steer,
    commands.SendInterrupt: _send_interrupt,
    commands.AddMessages: _add_messages,
    commands.Edit: _edit,
    commands.Regenerate: _regenerate,
    commands.SwitchBranch: _switch_branch,
    commands.Continue: _continue,
    commands.Delete: _delete,
    commands.DeleteQueued: _delete_queued,
    commands.ReorderQueue: _reorder_queue,
    commands.EditQueued: _edit_queued,
    commands.PromoteQueued: _promote_queued,
    commands.Interrupt: _interrupt,
    commands.ToolResults: _tool_results,
    commands.Retry: _retry,
    commands.Compact: _compact,
    commands.Archive: _archive,
    commands.Unarchive: _archive,
    commands.UpdateChat: _update_chat,
}
