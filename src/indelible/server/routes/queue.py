"""The queue: messages that wait for the running reply to end."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.shapes import Accepted, QueuePage
from indelible.server.dependencies import Reads, Writes, answer_json
from indelible.server.openapi.response_schemas import answers
from indelible.server.schemas import MessageContent, QueueOrder

router = APIRouter(tags=["queue"])


@router.get("/chats/{chat_id}/queue", **answers(QueuePage))
async def list_queue(chat_id: str, service: Reads) -> Response:
    """List the queued messages, in order."""
    return answer_json(await service.list_queue(chat_id))


@router.put("/chats/{chat_id}/queue/order", **answers(Accepted))
async def reorder_queue(chat_id: str, body: QueueOrder, service: Writes) -> Response:
    """Reorder the queue."""
    return answer_json(await service.reorder_queue(chat_id, body.ids))


@router.patch("/chats/{chat_id}/queue/{queued_id}", **answers(Accepted))
async def edit_queued(chat_id: str, queued_id: str, body: MessageContent, service: Writes) -> Response:
    """Edit a queued message."""
    return answer_json(await service.edit_queued(chat_id, queued_id, body.to_content()))


@router.delete("/chats/{chat_id}/queue/{queued_id}", status_code=204, response_class=Response)
async def delete_queued(chat_id: str, queued_id: str, service: Writes) -> Response:
    """Remove a message from the queue."""
    await service.delete_queued(chat_id, queued_id)
    return Response(status_code=204)


@router.post("/chats/{chat_id}/queue/{queued_id}/promote", **answers(Accepted, status=202))
async def promote_queued(chat_id: str, queued_id: str, service: Writes) -> Response:
    """Send this queued message now; a running reply is stopped for it."""
    return answer_json(await service.promote_queued(chat_id, queued_id), 202)
