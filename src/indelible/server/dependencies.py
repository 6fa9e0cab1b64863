"""What every route works with: the store, the feed, who is asking, and how a command is answered.

A write may carry an `Idempotency-Key`. Then the command, its answer and the key are one transaction (SPEC 3.5): the
same request again gets the same answer and does nothing. A chat that is not the user's is a chat that is not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from starlette.responses import Response

from indelible.app.app import App
from indelible.content import encode
from indelible.errors import NotFound
from indelible.feed import Cursors
from indelible.ids import is_id
from indelible.machine.events import Position
from indelible.server.prometheus import PrometheusMetrics
from indelible.server.sse import Pace
from indelible.settings import Settings
from indelible.store.commands.idempotency import Request as KeyedRequest
from indelible.store.commands.idempotency import StoredResponse
from indelible.store.payloads import C, Payload
from indelible.store.protocol import Outcome

JSON: Final = "application/json"


@dataclass
class ServerState:
    """One per process. `is_ready` is false before the start is over and from the moment the end begins."""

    app: App
    settings: Settings
    metrics: PrometheusMetrics
    pace: Pace
    is_ready: bool = False


class RequestContext:
    """One request: who asks, and for what."""

    def __init__(self, request: Request) -> None:
        self.server_state: ServerState = request.app.state.server_state
        self.app = self.server_state.app
        self.store = self.server_state.app.store
        self.feed = self.server_state.app.feed
        self.owner_id = self.server_state.app.owner_id
        self._request = request

    async def check_chat(self, chat_id: str) -> str:
        """The chat's id, if the caller may know of it."""
        if await self.store.owner(chat_id) != self.owner_id:
            raise NotFound("There is no such chat.")
        return chat_id

    async def execute(
        self,
        chat_id: str,
        command: C,
        payload: Payload[C] | None = None,
        *,
        answer: Callable[[Outcome], Any],
        status: int = 200,
    ) -> Response:
        """Carry out a command and answer with what came of it; the same again if it was asked for before."""
        return write_json(await self.do_once(chat_id, command, payload, answer=answer, status=status), status)

    async def do_once(
        self,
        chat_id: str,
        command: C,
        payload: Payload[C] | None = None,
        *,
        answer: Callable[[Outcome], Any],
        status: int = 200,
    ) -> bytes:
        """The same, and give the JSON of the answer."""
        request = await self.read_key()
        if request is None:
            return encode(answer(await self.store.execute(chat_id, command, payload)))
        given: StoredResponse = await self.store.execute_once(
            request, chat_id, command, payload, answer=lambda outcome: StoredResponse(status, encode(answer(outcome)))
        )
        return given.body

    async def read_key(self) -> KeyedRequest | None:
        """What this request is known by if it comes again; None if it has no key."""
        key = self._request.headers.get("idempotency-key")
        if key is None:
            return None
        body_hash = hashlib.sha256(await self._request.body()).digest()
        return KeyedRequest(self.owner_id, key, f"{self._request.method} {self._request.url.path}", body_hash)


def get_context(request: Request) -> RequestContext:
    return RequestContext(request)


Context = Annotated[RequestContext, Depends(get_context)]


async def get_chat_id(chat_id: str, context: Context) -> str:
    return await context.check_chat(chat_id)


OwnedChatId = Annotated[str, Depends(get_chat_id)]
"""The chat of the path, if it is the caller's."""


def check_name(name: str) -> str:
    """An id that somebody brought. What no id of ours looks like names nothing, and some of it no database takes."""
    if not is_id(name):
        raise NotFound("There is nothing of this name.")
    return name


def answer_json(value: Any, status: int = 200) -> Response:
    return write_json(encode(value), status)


def write_json(body: bytes, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type=JSON)


def write_cursor(outcome: Outcome) -> str:
    """The cursor from which everything that follows this command can be read."""
    return Cursors(outcome.chat_id).write(Position(seq=outcome.seq, attempt=outcome.live_id))


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """What a command came to, for whoever sent it."""
    return {"status": outcome.status, "turn": outcome.turn_id, "cursor": write_cursor(outcome)}
