"""A test that awaits what never comes fails before pytest ends it, and says which line of it was waiting.

What ends a test at its time limit (pytest-timeout) knows only that the event loop was waiting. So every test that is a
coroutine gets a limit of its own, a little shorter, after which its task is cancelled: where the cancellation arrives
is what was awaited. tests/test_waiting.py checks it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

import pytest
from tests.support.waiting import deadline

SHARE: Final = 0.85
"""Of the time that pytest-timeout leaves to a test, set-up and teardown included."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    limit_s = find_limit_s(item)
    with pytest.MonkeyPatch.context() as patch:
        if limit_s is not None:
            test = getattr(item, "obj", None)
            drawn = getattr(test, "hypothesis", None)  # a property test: each of its examples is limited
            if drawn is not None and inspect.iscoroutinefunction(drawn.inner_test):
                patch.setattr(drawn, "inner_test", limit(drawn.inner_test, limit_s))
            elif inspect.iscoroutinefunction(test):
                patch.setattr(item, "obj", limit(test, limit_s))
        yield


def find_limit_s(item: pytest.Item) -> float | None:
    mark = item.get_closest_marker("timeout")
    timeout_s = mark.args[0] if mark is not None else item.config.getoption("timeout", None)
    return timeout_s * SHARE if timeout_s else None


def limit(test: Callable[..., Awaitable[Any]], limit_s: float) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        async with deadline(limit_s=limit_s):
            return await test(*args, **kwargs)

    return limited
