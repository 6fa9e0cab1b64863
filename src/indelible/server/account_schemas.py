"""The request bodies of sessions, tokens, users and shares. Unknown fields are refused, and every text has a limit."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from indelible.store.database.tables.enumerations import Scope, UserRole

Name = Annotated[str, Field(min_length=1, max_length=200)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LoginRequest(_Body):
    """`hide_input_in_errors`: a token that is given in the wrong place is not repeated."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    token: Annotated[str, Field(min_length=1, max_length=1000, repr=False)]


class NewToken(_Body):
    label: Annotated[str, Field(max_length=200)] = ""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=3)]
    expires_in_s: Annotated[float, Field(gt=0, le=10 * 366 * 86400, allow_inf_nan=False)] | None = None


class NewUser(_Body):
    name: Name
    role: UserRole = "user"


class UserChanges(_Body):
    role: UserRole | None = None
    disabled: bool | None = None


class NewShare(_Body):
    user: Name | None = None
