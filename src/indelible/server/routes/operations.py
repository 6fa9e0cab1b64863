"""The routes of all use cases that have one (api/operations.py).

Each protocol has its object per request. A write may be repeated with its `Idempotency-Key`, unless it makes a secret,
which the stored response would have in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from indelible.api.operations import PREFIX, AccountApi, ChatApi, FileApi, ListApi, operations
from indelible.server.dependencies import (
    get_accounts,
    get_files,
    get_lists,
    get_lists_once,
    get_service,
    get_service_once,
)
from indelible.server.router import Router
from indelible.server.streaming.reply_stream import answer_turn

_STREAM: Final = {
    200: {
        "description": "With `Accept: text/event-stream`: events; see docs/http.md.",
        "content": {"text/event-stream": {}},
    }
}


def _make_router() -> Router:
    router = Router(prefix=PREFIX)
    apis: list[tuple[type, Callable[[Request], Any], Callable[[Request], Any]]] = [
        (ChatApi, get_service, get_service_once),
        (ListApi, get_lists, get_lists_once),
        (FileApi, get_files, get_files),
        (AccountApi, get_accounts, get_accounts),
    ]
    for api, reads, writes in apis:
        for use_case in operations(api):
            declared = use_case.operation
            about: dict[str, Any] = {"tag": declared.path.split("/")[1]}
            if declared.starts_turn:
                about |= {"respond": partial(answer_turn, status=declared.status), "responses": _STREAM}
            router.add(use_case, reads if declared.method == "GET" else writes, **about)
    return router


router: Final = _make_router()
