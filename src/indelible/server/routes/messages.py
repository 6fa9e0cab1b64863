"""Messages: list, send, edit, regenerate, switch branch, show the tree."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.events import MessageTree
from indelible.api.shapes import Accepted, MessagePage
from indelible.server.dependencies import PageLimit, Reads, Writes, answer_json
from indelible.server.openapi.response_schemas import answers, may_stream
from indelible.server.schemas import BranchTarget, EditedMessage, NewMessage, TurnRequest, model_of
from indelible.server.streaming.reply_stream import Streams

router = APIRouter(tags=["messages"])


@router.get("/chats/{chat_id}/messages", **answers(MessagePage))
async def list_messages(
    chat_id: str, service: Reads, before: str | None = None, after: str | None = None, limit: PageLimit = 50
) -> Response:
    """List the messages of the active branch, oldest first. Pass `next` as `before` to get earlier ones."""
    return answer_json(await service.list_messages(chat_id, before=before, after=after, limit=limit))


@router.post("/chats/{chat_id}/messages", **may_stream(answers(Accepted, status=202)))
async def send_message(chat_id: str, body: NewMessage, service: Writes, streams: Streams) -> Response:
    """Send a message. After the response it is on disk: in the conversation, or in the queue."""
    sent = await service.send(chat_id, body.to_content(), if_busy=body.if_busy, model=body.model)
    return streams.answer(chat_id, sent, 202)


@router.post("/chats/{chat_id}/messages/{message_id}/edit", **may_stream(answers(Accepted, status=202)))
async def edit_message(
    chat_id: str, message_id: str, body: EditedMessage, service: Writes, streams: Streams
) -> Response:
    """Edit one of the user's messages. The old message and its replies are kept as a branch."""
    edited = await service.edit(chat_id, message_id, body.to_content(), model=body.model)
    return streams.answer(chat_id, edited, 202)


@router.post("/chats/{chat_id}/messages/{message_id}/regenerate", **may_stream(answers(Accepted, status=202)))
async def regenerate_message(
    chat_id: str, message_id: str, service: Writes, streams: Streams, body: TurnRequest | None = None
) -> Response:
    """Regenerate a reply, or answer a user message again; the old reply is kept as a branch."""
    return streams.answer(chat_id, await service.regenerate(chat_id, message_id, model=model_of(body)), 202)


@router.post("/chats/{chat_id}/branch", **answers(Accepted))
async def switch_branch(chat_id: str, body: BranchTarget, service: Writes) -> Response:
    """Switch to the branch of this message, at its newest end; with `exact`, to the message itself."""
    return answer_json(await service.switch_branch(chat_id, body.message_id, exact=body.exact))


@router.get("/chats/{chat_id}/tree", **answers(MessageTree))
async def get_tree(chat_id: str, service: Reads) -> Response:
    """Get every message of every branch in short, in the order of creation."""
    return answer_json(await service.get_tree(chat_id))
