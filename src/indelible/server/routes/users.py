"""Users, for admins."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from indelible.api.shapes import UserInfo, UserPage
from indelible.server.account_schemas import NewUser, UserChanges
from indelible.server.dependencies import Accounts, answer_json
from indelible.server.openapi.response_schemas import answers

router = APIRouter(tags=["users"])


@router.get("/users", **answers(UserPage))
async def list_users(accounts: Accounts) -> Response:
    """List all users, by name. For admins."""
    return answer_json(await accounts.list_users())


@router.post("/users", **answers(UserInfo, status=201))
async def add_user(body: NewUser, accounts: Accounts) -> Response:
    """Create a user. For admins."""
    return answer_json(await accounts.add_user(body.name, role=body.role), 201)


@router.patch("/users/{name}", **answers(UserInfo))
async def update_user(name: str, body: UserChanges, accounts: Accounts) -> Response:
    """Change a user's role, or disable or enable them. For admins."""
    return answer_json(await accounts.update_user(name, role=body.role, disabled=body.disabled))
