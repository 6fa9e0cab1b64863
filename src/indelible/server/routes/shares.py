"""Who else may read a chat. A new link is shown once, so these routes take no idempotency key, which would store it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.shapes import CreatedShare, SharePage
from indelible.server.account_schemas import NewShare
from indelible.server.dependencies import Sharing, answer_json
from indelible.server.openapi.response_schemas import answers

router = APIRouter(tags=["shares"])


@router.get("/chats/{chat_id}/shares", **answers(SharePage))
async def list_shares(chat_id: str, sharing: Sharing) -> Response:
    """List who else may read the chat, oldest first."""
    return answer_json(await sharing.list_shares(chat_id))


@router.post("/chats/{chat_id}/shares", **answers(CreatedShare, status=201))
async def share_chat(chat_id: str, body: NewShare, sharing: Sharing) -> Response:
    """Let a user, or everybody who has a new link, read the chat. The link is in this response and nowhere else."""
    return answer_json(await sharing.share(chat_id, body.user), 201)


@router.delete("/chats/{chat_id}/shares/{share_id}", status_code=204, response_class=Response)
async def delete_share(chat_id: str, share_id: str, sharing: Sharing) -> Response:
    """Stop sharing; open streams are cut."""
    await sharing.delete_share(chat_id, share_id)
    return Response(status_code=204)
