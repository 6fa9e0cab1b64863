"""Messages: read, send, edit, write anew, go to another branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from indelible.feed import Cursors
from indelible.machine import commands
from indelible.machine.events import BEGINNING
from indelible.server.dependencies import Context, OwnedChatId, answer_json, check_name, describe_outcome
from indelible.server.schemas import BranchTarget, EditedMessage, ModelChoice, NewMessage
from indelible.store import payloads
from indelible.store.protocol import Outcome

router = APIRouter(tags=["messages"])

_SENDS: Final[dict[str, Callable[[], commands.SendCommand]]] = {
    "queue": commands.Send,
    "interrupt": commands.SendInterrupt,
    "steer": commands.SendSteer,
}


@router.get("/chats/{chat_id}/messages")
async def list_messages(
    chat_id: OwnedChatId, context: Context, before: str | None = None, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> Response:
    """The active path, oldest first; `next`, given as `before`, leads to what stands above."""
    positions = await context.store.positions([chat_id])  # first, so that reading on from there misses nothing
    page = await context.store.page(chat_id, before=None if before is None else check_name(before), limit=limit)
    told = {"cursor": Cursors(chat_id).write(positions.get(chat_id, BEGINNING)), "items": page.items}
    return answer_json({**told, "next": page.items[0].id if page.has_more else None})


@router.post("/chats/{chat_id}/messages", status_code=202)
async def send_message(chat_id: OwnedChatId, body: NewMessage, context: Context) -> Response:
    """Say something. When this has answered, the message is safe: in the conversation, or in the queue."""
    given = payloads.UserInput(blocks=body.to_blocks(), model=body.model)
    return await context.execute(chat_id, _SENDS[body.if_busy](), given, answer=_describe_sent, status=202)


@router.post("/chats/{chat_id}/messages/{message_id}/edit", status_code=202)
async def edit_message(chat_id: OwnedChatId, message_id: str, body: EditedMessage, context: Context) -> Response:
    """Say something else instead. What was said before stays, on a branch of its own."""
    given = payloads.UserInput(blocks=body.to_blocks(), model=body.model)
    command = commands.Edit(message_id=message_id)
    return await context.execute(chat_id, command, given, answer=_describe_sent, status=202)


@router.post("/chats/{chat_id}/messages/{message_id}/regenerate", status_code=202)
async def regenerate_message(
    chat_id: OwnedChatId, message_id: str, context: Context, body: ModelChoice | None = None
) -> Response:
    """Have a reply written anew, beside the old one."""
    given = payloads.ModelChoice(model=body.model if body is not None else None)
    command = commands.Regenerate(message_id=message_id)
    return await context.execute(chat_id, command, given, answer=describe_outcome, status=202)


@router.post("/chats/{chat_id}/branch")
async def switch_branch(chat_id: OwnedChatId, body: BranchTarget, context: Context) -> Response:
    """Go to the branch that ends with this message."""
    command = commands.SwitchBranch(message_id=body.message_id)
    return await context.execute(chat_id, command, answer=describe_outcome)


def _describe_sent(outcome: Outcome) -> dict[str, Any]:
    """A message that was sent waits (`queued`), perhaps while an older one enters history, or is there (`message`)."""
    if outcome.queued_id is not None:
        return {"queued": outcome.queued_id, **describe_outcome(outcome)}
    sent = next(message.id for message in reversed(outcome.messages) if message.role == "user")
    return {"message": sent, **describe_outcome(outcome)}
