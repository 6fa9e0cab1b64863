"""The queue: what waits for its turn, and in which order."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.machine import commands
from indelible.server.bodies import QueueOrder, Said
from indelible.server.office import Asking, OwnChat, answer_json, describe_outcome
from indelible.store.port import Words

router = APIRouter(tags=["queue"])


@router.get("/chats/{chat_id}/queue")
async def read_queue(chat_id: OwnChat, caller: Asking) -> Response:
    """What waits, in order."""
    view = await caller.store.view(chat_id, limit=1)
    return answer_json({"items": view.queue})


@router.patch("/chats/{chat_id}/queue")
async def reorder_queue(chat_id: OwnChat, body: QueueOrder, caller: Asking) -> Response:
    """Put the queue into another order."""
    command = commands.ReorderQueue(queued_ids=tuple(body.ids))
    return await caller.carry_out(chat_id, command, answer=describe_outcome)


@router.patch("/chats/{chat_id}/queue/{queued_id}")
async def edit_queued(chat_id: OwnChat, queued_id: str, body: Said, caller: Asking) -> Response:
    """Say something else with a message that still waits."""
    command = commands.EditQueued(queued_id=queued_id)
    return await caller.carry_out(chat_id, command, Words(blocks=body.to_blocks()), answer=describe_outcome)


@router.delete("/chats/{chat_id}/queue/{queued_id}", status_code=204)
async def delete_queued(chat_id: OwnChat, queued_id: str, caller: Asking) -> Response:
    """Take a message out of the queue."""
    await caller.do_once(chat_id, commands.DeleteQueued(queued_id=queued_id), answer=describe_outcome)
    return Response(status_code=204)


@router.post("/chats/{chat_id}/queue/{queued_id}/promote", status_code=202)
async def promote_queued(chat_id: OwnChat, queued_id: str, caller: Asking) -> Response:
    """Have this one answered now; a running reply is stopped for it."""
    command = commands.PromoteQueued(queued_id=queued_id)
    return await caller.carry_out(chat_id, command, answer=describe_outcome, status=202)
