"""Tokens of the user. A new one is shown once, so these routes take no idempotency key, which would store it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.shapes import CreatedToken, TokenPage
from indelible.server.account_schemas import NewToken
from indelible.server.dependencies import Accounts, answer_json
from indelible.server.openapi.response_schemas import answers

router = APIRouter(tags=["tokens"])


@router.get("/tokens", **answers(TokenPage))
async def list_tokens(accounts: Accounts) -> Response:
    """List your valid tokens, newest first."""
    return answer_json(await accounts.list_tokens())


@router.post("/tokens", **answers(CreatedToken, status=201))
async def create_token(body: NewToken, accounts: Accounts) -> Response:
    """Create a token. `token` is in this response and nowhere else."""
    made = await accounts.create_token(label=body.label, scopes=body.scopes, expires_in_s=body.expires_in_s)
    return answer_json(made, 201)


@router.delete("/tokens/{token_id}", status_code=204, response_class=Response)
async def revoke_token(token_id: str, accounts: Accounts) -> Response:
    """Revoke a token: its sessions end, and its open streams are cut."""
    await accounts.revoke_token(token_id)
    return Response(status_code=204)
