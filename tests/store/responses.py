"""The response that the client of a repeatable request gets from the store, the first time and every other."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from indelible.store.outcome import IdempotencyKey, Outcome, RequestRepeated, StoredResponse


async def respond(write: Callable[..., Coroutine[Any, Any, Outcome]], once: IdempotencyKey) -> StoredResponse:
    try:
        return once.respond(await write(key=once))
    except RequestRepeated as repeated:
        return repeated.response
