"""The request bodies of sessions, tokens, users and shares. Like every body (schemas.py), they have limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from indelible.api.inputs import MAX_TOKEN_LABEL
from indelible.api.shapes import Scope, UserRole
from indelible.server.schemas import RequestBody

Name = Annotated[str, Field(min_length=1, max_length=200)]


class LoginRequest(RequestBody):
    """`hide_input_in_errors`: a token that is given in the wrong place is not repeated."""

    model_config = ConfigDict(hide_input_in_errors=True)

    token: Annotated[str, Field(min_length=1, max_length=1000, repr=False)]


class NewToken(RequestBody):
    label: Annotated[str, Field(max_length=MAX_TOKEN_LABEL)] = ""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)]
    expires_in_s: Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)] | None = None


class NewUser(RequestBody):
    name: Name
    role: UserRole = "user"


class UserChanges(RequestBody):
    role: UserRole | None = None
    disabled: bool | None = None


class NewShare(RequestBody):
    user: Name | None = None
