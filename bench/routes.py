"""What a request costs beside its use case: CPU per request of six routes whose services answer from memory.

Requests are ASGI calls in this process, so neither a network nor uvicorn is in the figures. `routes` is the application
alone, from its routing to the response; `whole` has every layer that a request passes (login, limits, HEAD). Run it in
two trees in turn to compare them:

    for n in 1 2 3; do (cd OLD && PYTHONPATH=src python -m bench.routes); python -m bench.routes; done
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from indelible.api.shapes import Accepted, ChatDetails, ChatMessage, ChatPage, ChatSummary, InterruptResult, MessagePage
from indelible.content import Text
from indelible.server.app import Server
from indelible.service.chats import LocalService
from indelible.settings import load_settings

_ROUNDS: Final = 7
_REQUESTS: Final = 400
_CHAT: Final = "/api/v1/chats/chat_0000000000000000000000000A"
_NOW: Final = datetime.now(UTC)


def _make_results() -> dict[str, Any]:
    none: dict[str, Any] = dict.fromkeys(("reason", "continues", "model", "usage", "cost_usd", "timings", "parent_id"))
    messages = [
        ChatMessage(
            id="message_1", role="user", blocks=[Text("Is it raining?")], partial=False, created_at=_NOW, **none
        )
    ] * 4
    line: dict[str, Any] = {"id": "chat_1", "status": "idle", "title": "Rain", "model": None, "debug": None}
    beside: dict[str, Any] = {"labels": [], "pinned": False, "unread": False}
    summary = ChatSummary(**line, **beside, archived=False, version=3, created_at=_NOW, updated_at=_NOW)
    nothing: dict[str, Any] = dict.fromkeys(("usage", "cost_usd", "turn", "error", "retry", "live", "action"))
    details = ChatDetails(
        **line, **beside, **nothing, archived=False, cursor="x", queue=[], messages=messages, has_more=False
    )
    accepted = Accepted(status="running", turn="turn_1", cursor="x", message="message_1")
    return {
        "get_chat": details,
        "list_chats": ChatPage(items=[summary] * 10, next=None),
        "list_messages": MessagePage(cursor="x", items=messages, next=None),
        "send": accepted,
        "interrupt": InterruptResult(stopped=False, message_id=None, status="idle", turn=None),
        "retry": accepted,
    }


_ROUTES: Final[dict[str, tuple[str, str, str, bytes]]] = {
    "get_chat": ("GET", _CHAT, "", b""),
    "list_chats": ("GET", "/api/v1/chats", "limit=10&archived=false", b""),
    "list_messages": ("GET", f"{_CHAT}/messages", "limit=4&before=message_1", b""),
    "send": ("POST", f"{_CHAT}/messages", "", b'{"text": "And in Bergen?", "if_busy": "queue", "model": "demo"}'),
    "interrupt": ("POST", f"{_CHAT}/interrupt", "", b'{"wait_s": 0, "turn": "turn_1"}'),
    "retry": ("POST", f"{_CHAT}/retry", "", b""),
}


async def measure() -> dict[str, dict[str, float]]:
    for name, result in _make_results().items():

        async def answer(*_: object, _result: Any = result, **__: object) -> Any:
            return _result

        setattr(LocalService, name, answer)
    with tempfile.TemporaryDirectory() as place:
        server = Server(load_settings(database=f"{place}/x.db", model="demo"), worker=False)
        inner: Any = server.application
        while not hasattr(inner, "routes"):
            inner = inner._application
        async with inner.router.lifespan_context(inner):
            return {
                "routes": {name: await _measure(inner, name) for name in _ROUTES},
                "whole": {name: await _measure(server.application, name) for name in _ROUTES},
            }


async def _measure(application: Any, name: str) -> float:
    """Microseconds of CPU per request, in the best of some rounds."""
    method, path, query, body = _ROUTES[name]
    headers = [(b"host", b"localhost"), (b"accept", b"application/json"), (b"user-agent", b"bench")]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())] if body else []
    found = await _who()
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time()
        for _ in range(_REQUESTS):
            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
                "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
                "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), **found,
            }  # fmt: skip
            statuses: list[int] = []

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message: Any, statuses: list[int] = statuses) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            await application(scope, receive, send)
            assert statuses[0] < 300, (name, statuses)
        best = min(best, (time.process_time() - began) / _REQUESTS * 1e6)
    return best


async def _who() -> dict[str, Any]:
    """What access control would have found."""
    from indelible.server.revocation import OpenRequest  # noqa: PLC0415
    from indelible.service.access import Identity  # noqa: PLC0415

    return {
        "identity": Identity(user_id="user_1", user="local", role="admin", how="none"),
        "open_request": OpenRequest(),
    }


if __name__ == "__main__":
    measured = asyncio.run(measure())
    if "--json" in sys.argv:
        print(json.dumps(measured))
    else:
        print(Path.cwd())
        for what, found in measured.items():
            print(f"{what:7}", "  ".join(f"{name} {spent_us:5.1f}" for name, spent_us in found.items()))
