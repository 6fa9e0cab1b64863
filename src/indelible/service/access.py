"""Who sends a request, what they may do with a chat (docs/login.md), and how much they may spend in a day.

    the owner                 everything
    a user it is shared with  read it: the chat, its messages, its tree, its events; anything else is `ReadOnly`
    everybody else            it does not exist: `NotFound`

The store compares the owner in the locked row of every command; this module explains its refusal. So the owner's
request costs nothing here, and nobody else's can change anything. files.py says which files a guest may open.

Must stay true (tests/server/test_access_matrix.py): the table above, for every route. (tests/service/test_budget.py):
the limit is per user, ends at midnight UTC, and stops no running reply; deleting a chat gives nothing back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, time, timedelta
from typing import Final, Literal

import msgspec

from indelible.api.shapes import ALL_SCOPES, ChatSummary, Scope, UsageDay, UserRole
from indelible.clock import Clock
from indelible.errors import ChatNotFound, NotFound, NotPermitted, RateLimited, ReadOnly
from indelible.machine import commands
from indelible.machine.commands import Command
from indelible.service.guests import show_summary
from indelible.store.accounts import Credential, CredentialKey
from indelible.store.shares import ShareStore
from indelible.store.store import Store

_READ_ONLY: Final = "This chat is shared with you for reading. Only its owner can do this."


class Access:
    """Without `shares`, a chat is its owner's alone."""

    def __init__(self, store: Store, shares: ShareStore | None) -> None:
        self._store = store
        self._shares = shares

    async def check_read(self, chat_id: str, user_id: str) -> str | None:
        """The share that makes the user who reads the chat a guest (guests.py); None for the owner.

        Raises `NotFound` for a user who may not read it.
        """
        if await self._store.owner(chat_id) == user_id:
            return None
        share_id = await self.find_share(chat_id, user_id)
        if share_id is None:
            raise ChatNotFound
        return share_id

    async def check_owner(self, chat_id: str, user_id: str) -> None:
        """Raises `NotFound`, or `ReadOnly`, unless the chat is this user's."""
        async with self.raise_read_only(chat_id, user_id):
            if await self._store.owner(chat_id) != user_id:
                raise ChatNotFound

    async def find_share(self, chat_id: str, user_id: str) -> str | None:
        """The share that lets this user read another's chat."""
        return None if self._shares is None else await self._shares.find_share(chat_id, user_id)

    async def list_shared(self, user_id: str, *, limit: int) -> list[ChatSummary]:
        """The chats that others share with this user, as a guest sees them, most recently updated first."""
        found = [] if self._shares is None else await self._shares.list_shared(user_id, limit=limit)
        return [show_summary(summary) for summary in found]

    @asynccontextmanager
    async def raise_read_only(self, chat_id: str, user_id: str) -> AsyncIterator[None]:
        """A `NotFound` within the block is `ReadOnly` to those who may read the chat."""
        try:
            yield
        except NotFound as error:
            if await self.find_share(chat_id, user_id) is not None:
                raise ReadOnly(_READ_ONLY) from error
            raise


LoginHow = Literal["none", "proxy", "token", "session"]
_NEEDS: dict[Scope, str] = {
    "read": "This token may not read.",
    "write": "This token may only read. Use one with the scope `write`.",
    "admin": "This needs a login, or a token with the scope `admin`.",
}


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`key` is the row that these rights come from; None if they come from the settings alone.

    `token_expires_at` is the end of the token that they come from, also those of a session that it opened.
    """

    user_id: str
    user: str
    role: UserRole
    how: LoginHow
    scopes: tuple[Scope, ...] = ALL_SCOPES
    key: CredentialKey | None = None
    expires_at: datetime | None = None
    token_expires_at: datetime | None = None

    @classmethod
    def of(cls, credential: Credential, how: LoginHow) -> Identity:
        return cls(**msgspec.structs.asdict(credential), how=how)

    def check_scope(self, scope: Scope) -> None:
        """Raises `NotPermitted` if this login has no such scope."""
        if scope not in self.scopes:
            raise NotPermitted(_NEEDS[scope])

    @property
    def is_admin(self) -> bool:
        """Whether this is an admin who may act as one."""
        return self.role == "admin" and "admin" in self.scopes

    def check_admin(self) -> None:
        """Raises `NotPermitted` unless this is an admin who may act as one."""
        self.check_scope("admin")
        if self.role != "admin":
            raise NotPermitted("Only an admin may do this.")


STARTS_A_REPLY: Final = (
    commands.Send,
    commands.SendInterrupt,
    commands.SendSteer,
    commands.Edit,
    commands.Regenerate,
    commands.Retry,
    commands.Continue,
    commands.Compact,
    commands.PromoteQueued,
    commands.ToolResults,
)
"""The commands of users that a daily limit refuses."""


def starts_a_reply(command: Command) -> bool:
    """Whether this command may start a reply, or a summary, or resume one."""
    return isinstance(command, STARTS_A_REPLY) or (isinstance(command, commands.Create) and command.with_message)


class Budget:
    """What `Store.usage` finds, compared with limits; 0 means no limit."""

    def __init__(
        self,
        load_usage: Callable[..., Awaitable[list[UsageDay]]],
        *,
        clock: Clock,
        max_tokens: int = 0,
        max_usd: float = 0,
    ) -> None:
        self._load_usage = load_usage
        self._clock = clock
        self._max_tokens = max_tokens
        self._max_usd = max_usd

    async def check(self, user_id: str, command: Command) -> None:
        """Raises `RateLimited` if this command would start a reply beyond the limit."""
        if not starts_a_reply(command) or not (self._max_tokens or self._max_usd):
            return
        now = self._clock.now().astimezone(UTC)
        today = now.date()
        used = await self._load_usage(user_id, since=today, until=today)
        wait_s = (datetime.combine(today + timedelta(days=1), time(), tzinfo=UTC) - now).total_seconds()
        if self._max_tokens and sum(line.input_tokens + line.output_tokens for line in used) >= self._max_tokens:
            detail = f"Today's limit of {self._max_tokens:,} tokens is used up. It is renewed at midnight UTC."
            raise RateLimited(detail, retry_after_s=wait_s)
        if self._max_usd and sum(line.cost or 0 for line in used) >= self._max_usd:
            detail = f"Today's limit of ${self._max_usd:,.2f} is used up. It is renewed at midnight UTC."
            raise RateLimited(detail, retry_after_s=wait_s)
