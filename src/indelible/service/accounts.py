"""The use cases of logins and shares: tokens of a user, users for an admin, and who else may read a chat.

A new token gets only scopes that the login creating it has, and ends no later than the token that this login comes
from, so no token grants more than its creator could do, or for longer. Tokens are managed with a login or a token of
scope `admin`: a leaked token for reading or writing cannot make another. A chat is shared with a user, or by a link
that anybody can read who has it.

Must stay true (tests/server/test_access_matrix.py, tests/server/test_login.py): a token grants no more than its creator
has; a share lets others read, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from msgspec.structs import asdict

from indelible.api import shapes
from indelible.api.inputs import MAX_TOKEN_LABEL, NewShare, NewToken, NewUser, UserChanges
from indelible.clock import Clock
from indelible.errors import Invalid, NotFound, NotPermitted
from indelible.service.access import Access, Identity
from indelible.store.accounts import Account, AccountStore
from indelible.store.shares import ShareStore

FIRST_ADMIN: Final = "local"
"""The user whose chats a server without a login serves, and whose token the setting `token` is."""


class LocalAccounts:
    """For one login."""

    def __init__(
        self, accounts: AccountStore, shares: ShareStore, access: Access, identity: Identity, *, clock: Clock
    ) -> None:
        self._accounts = accounts
        self._shares = shares
        self._access = access
        self._identity = identity
        self._clock = clock

    # --- tokens ---

    async def list_tokens(self) -> shapes.TokenPage:
        self._identity.check_scope("admin")
        return shapes.TokenPage(items=await self._accounts.list_tokens(self._identity.user_id))

    async def create_token(self, body: NewToken) -> shapes.CreatedToken:
        self._identity.check_scope("admin")
        check_token(body.label, body.scopes)
        for scope in body.scopes:
            if scope not in self._identity.scopes:
                raise NotPermitted(f"You can't give a token the scope `{scope}`: you don't have it.")
        wanted = None if body.expires_in_s is None else self._clock.now() + timedelta(seconds=body.expires_in_s)
        expires_at = min((end for end in (wanted, self._identity.token_expires_at) if end is not None), default=None)
        made, secret = await self._accounts.create_token(
            self._identity.user_id, label=body.label, scopes=body.scopes, expires_at=expires_at
        )
        return shapes.CreatedToken(**asdict(made), token=secret)

    async def revoke_token(self, token_id: str) -> None:
        self._identity.check_scope("admin")
        await self._accounts.revoke_token(token_id, user_id=self._identity.user_id)

    # --- users ---

    async def list_users(self) -> shapes.UserPage:
        self._identity.check_admin()
        return shapes.UserPage(items=[_show_user(account) for account in await self._accounts.list_users()])

    async def add_user(self, body: NewUser) -> shapes.UserInfo:
        self._identity.check_admin()
        return _show_user(await self._accounts.add_user(body.name, role=body.role))

    async def update_user(self, name: str, body: UserChanges) -> shapes.UserInfo:
        self._identity.check_admin()
        check_change(name, role=body.role, disabled=body.disabled)
        if name == self._identity.user and (body.disabled or body.role == "user"):
            raise Invalid("You can't disable or demote yourself. Ask another admin, or use `indelible user`.")
        return _show_user(await self._accounts.update_user(name, role=body.role, disabled=body.disabled))

    # --- shares ---

    async def list_shares(self, chat_id: str) -> shapes.SharePage:
        async with self._access.raise_read_only(chat_id, self._identity.user_id):
            return shapes.SharePage(items=await self._shares.list_shares(chat_id, owner_id=self._identity.user_id))

    async def share_chat(self, chat_id: str, body: NewShare) -> shapes.CreatedShare:
        owner_id = self._identity.user_id
        async with self._access.raise_read_only(chat_id, owner_id):
            if body.user is not None:
                made = await self._shares.share_with_user(chat_id, body.user, owner_id=owner_id)
                return shapes.CreatedShare(**asdict(made), url=None)
            made, key = await self._shares.share_by_link(chat_id, owner_id=owner_id)
            return shapes.CreatedShare(**asdict(made), url=f"/shared/{key}")

    async def delete_share(self, chat_id: str, share_id: str) -> None:
        async with self._access.raise_read_only(chat_id, self._identity.user_id):
            await self._shares.delete_share(chat_id, share_id, owner_id=self._identity.user_id)


def check_token(label: str, scopes: Sequence[str]) -> None:
    """Raises `Invalid` if no token can have these. The command `indelible token` obeys it, too."""
    if len(label) > MAX_TOKEN_LABEL:
        raise Invalid(f"The label is too long (limit {MAX_TOKEN_LABEL} characters).")
    if not scopes or len(set(scopes)) != len(scopes) or not set(scopes) <= set(shapes.ALL_SCOPES):
        raise Invalid("A token needs one or more of the scopes read, write and admin, each once.")


def check_change(name: str, *, role: shapes.UserRole | None = None, disabled: bool | None = None) -> None:
    """Raises `Invalid` for a change that would have no effect: the settings say what the first admin may do."""
    if name == FIRST_ADMIN and (disabled or role == "user"):
        raise Invalid(
            f"{FIRST_ADMIN} is the first admin, and can't be disabled or demoted. "
            "To keep everybody out of it, remove the setting `token` and revoke the tokens of this user."
        )


def _show_user(account: Account) -> shapes.UserInfo:
    return shapes.UserInfo(
        name=account.name, role=account.role, disabled=account.disabled, created_at=account.created_at
    )


async def open_link(shares: ShareStore, key: str) -> shapes.Link:
    """The chat behind a link. A link that does not exist any more never did."""
    link = await shares.find_link(key)
    if link is None:
        raise NotFound("This link does not exist, or its owner has removed it.")
    return link
