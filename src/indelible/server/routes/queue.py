"""The queue: what waits for its turn, and in which order."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.machine import commands
from indelible.server.dependencies import Context, OwnedChatId, answer_json, describe_outcome
from indelible.server.schemas import MessageContent, QueueOrder
from indelible.store.payloads import QueuedInput

router = APIRouter(tags=["queue"])


@router.get("/chats/{chat_id}/queue")
async def read_queue(chat_id: OwnedChatId, context: Context) -> Response:
    """What waits, in order."""
    view = await context.store.view(chat_id, limit=1)
    return answer_json({"items": view.queue})


@router.put("/chats/{chat_id}/queue/order")
async def reorder_queue(chat_id: OwnedChatId, body: QueueOrder, context: Context) -> Response:
    """Put the queue into another order."""
    command = commands.ReorderQueue(queued_ids=tuple(body.ids))
    return await context.execute(chat_id, command, answer=describe_outcome)


@router.patch("/chats/{chat_id}/queue/{queued_id}")
async def edit_queued(chat_id: OwnedChatId, queued_id: str, body: MessageContent, context: Context) -> Response:
    """Say something else with a message that still waits."""
    command = commands.EditQueued(queued_id=queued_id)
    return await context.execute(chat_id, command, QueuedInput(blocks=body.to_blocks()), answer=describe_outcome)


@router.delete("/chats/{chat_id}/queue/{queued_id}", status_code=204)
async def delete_queued(chat_id: OwnedChatId, queued_id: str, context: Context) -> Response:
    """Take a message out of the queue."""
    await context.do_once(chat_id, commands.DeleteQueued(queued_id=queued_id), answer=describe_outcome)
    return Response(status_code=204)


@router.post("/chats/{chat_id}/queue/{queued_id}/promote", status_code=202)
async def promote_queued(chat_id: OwnedChatId, queued_id: str, context: Context) -> Response:
    """Have this one answered now; a running reply is stopped for it."""
    command = commands.PromoteQueued(queued_id=queued_id)
    return await context.execute(chat_id, command, answer=describe_outcome, status=202)
