"""Cutting what is open when a right is taken away: a token, a session, a user, a share.

A feed stays open for hours, so checking rights at its beginning is not enough. Every request in progress is registered
here with the rows that its rights come from, and one query finds the rows that are gone. It runs as soon as somebody's
rights change in this process, when a hint says that they changed in another one, and every `POLL_INTERVAL_S` seconds,
because hints can be lost and an expiry sends none. So an open stream ends within milliseconds, and at the latest
`POLL_INTERVAL_S` seconds and a query later (docs/login.md has what was measured).

To a request that is cut, its client seems to have disconnected. What the request has sent is complete, so the client
sees an ordinary end, reconnects, and gets the response that it must log in. Only a stream of a compatible API has no
end: half a reply must not pass for a whole one (server/compat/projection.py).

Once a minute it also notes which tokens and sessions were used.

Must stay true (tests/server/test_revocation.py): no stream outlives its right, on any replica; nothing is left behind
by a request that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from indelible.clock import Clock
from indelible.errors import IndelibleError
from indelible.logs import get_logger
from indelible.notify import Changed, Notifier
from indelible.store.accounts import AccountStore, CredentialKey

POLL_INTERVAL_S: Final = 2.0
_NOTE_S: Final = 60.0
_LAST_SEND_S: Final = 1.0
_DISCONNECT: Final[Message] = {"type": "http.disconnect"}
_log: Final = get_logger(__name__)


class OpenRequest:
    """One request under way, with the rows that its rights come from."""

    __slots__ = ("_cut", "_is_read", "keys")

    def __init__(self, *keys: CredentialKey) -> None:
        self.keys = set(keys)
        self._cut: asyncio.Future[None] | None = None
        self._is_read = False

    def depend_on(self, share_id: str | None) -> None:
        """From now on the request is cut with this share, if its right to a chat comes from one."""
        if share_id is not None:
            self.keys.add(CredentialKey("share", share_id))

    @property
    def is_cut(self) -> bool:
        return self._cut is not None and self._cut.done()

    def cut(self) -> None:
        if self._cut is None:
            self._cut = asyncio.get_running_loop().create_future()
        if not self._cut.done():
            self._cut.set_result(None)

    def watch(self, receive: Receive) -> Receive:
        """`receive`, which tells of a disconnect when the request is cut. It costs nothing until the body was read."""

        async def receive_or_cut() -> Message:
            if not self._is_read:
                message = await receive()
                self._is_read = not message.get("more_body")
                return message
            if self._cut is None:
                self._cut = asyncio.get_running_loop().create_future()
            receiving: asyncio.Future[Message] = asyncio.ensure_future(receive())
            try:
                await asyncio.wait({receiving, self._cut}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
                return _DISCONNECT if self._cut.done() else receiving.result()
            finally:
                receiving.cancel()

        return receive_or_cut


class Revocation:
    """One per process. `check` is what `run` does again and again."""

    def __init__(
        self,
        accounts: AccountStore,
        notifier: Notifier,
        *,
        clock: Clock,
        session_timeout_s: float,
        forget: Callable[[], None],
    ) -> None:
        self._accounts = accounts
        self._notifier = notifier
        self._forget = forget
        self._clock = clock
        self._session_timeout = timedelta(seconds=session_timeout_s)
        self._open: set[OpenRequest] = set()
        self._used: set[CredentialKey] = set()
        self._woken = asyncio.Event()

    async def serve(
        self, application: ASGIApp, request: OpenRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Let the application answer, until the request is cut."""
        self._open.add(request)
        self._used |= request.keys
        try:
            await application(scope, request.watch(receive), send)
        finally:
            self._open.discard(request)
        if request.is_cut:
            with suppress(RuntimeError, OSError, TimeoutError):  # it was complete, or had not begun, or nobody reads
                async with asyncio.timeout(_LAST_SEND_S):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    def wake(self) -> None:
        """Rights have changed."""
        self._forget()
        self._woken.set()

    async def check(self) -> None:
        """Cut every request whose rights are gone."""
        wanted = {key for request in self._open for key in request.keys}
        if not wanted:
            return
        valid = await self._accounts.find_valid(list(wanted))
        gone = [request for request in self._open if not request.keys <= valid and request.keys <= wanted]
        if gone:
            self._forget()
        for request in gone:  # those that came meanwhile were not asked for
            request.cut()

    async def note_used(self) -> None:
        """Write down which tokens and sessions were used since the last time; sessions then last longer."""
        used, self._used = self._used, {key for request in self._open for key in request.keys if key.kind == "token"}
        if used:
            await self._accounts.note_used(list(used), session_expires_at=self._clock.now() + self._session_timeout)

    async def run(self) -> None:
        """Check until cancelled, whatever the database does."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            noted_at_s = self._clock.monotonic()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL_S):
                        await self._woken.wait()
                self._woken.clear()
                try:
                    await self.check()
                    if self._clock.monotonic() - noted_at_s >= _NOTE_S:
                        noted_at_s = self._clock.monotonic()
                        await self.note_used()
                        await self._accounts.forget_expired()
                except IndelibleError as error:
                    _log.warning("checking open streams for revoked logins failed; trying again: %s", error)
                except Exception:  # without this task no stream would ever be cut again, and nobody would notice
                    _log.exception("checking open streams for revoked logins failed; trying again")

    async def _listen(self) -> None:
        with self._notifier.subscribe() as hints:
            while True:
                if is_about_rights(await hints.wait()):
                    self.wake()


def is_about_rights(changed: Changed) -> bool:
    """Users and chats share the bus; their ids differ."""
    return changed.everything or any(name.startswith("user_") for name in changed.for_readers)
