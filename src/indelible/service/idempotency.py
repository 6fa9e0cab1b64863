"""A write for a request that may be repeated: the second time it gets the result of the first (rule 3.5).

The store commits the write, its result and the request's key in one transaction (store/commands/idempotency.py), and
raises `RequestRepeated` if the key is there already. So a use case is written once, for requests with a key and
without one.

Must stay true (tests/service/test_local.py, tests/server/test_idempotency_over_http.py): a repeated request changes
nothing and gets the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from indelible.content import encode
from indelible.store.commands.idempotency import Request, RequestRepeated, StoredResponse
from indelible.store.protocol import Once, Outcome

T = TypeVar("T")


async def perform_once(
    request: Request | None,
    write: Callable[..., Coroutine[Any, Any, Outcome]],
    describe: Callable[[Outcome], T],
    result_type: type[T],
) -> T:
    """Call `write(once=…)` and describe its outcome; None is a request without a key. The route knows the status."""
    once = None if request is None else Once(request, lambda outcome: StoredResponse(200, encode(describe(outcome))))
    try:
        return describe(await write(once=once))
    except RequestRepeated as repeated:
        return msgspec.json.decode(repeated.response.body, type=result_type)
