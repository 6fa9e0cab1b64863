"""What tools give, however large or secret: read beside the event loop, cut, and redacted."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator
from tests.tools.test_tool_run import Bench, make

from indelible.content import ToolResult
from indelible.errors import TestBroken

pytestmark = pytest.mark.may_log("the tool .* raised an error")

PASSWORD = "hunter2hunter2"  # noqa: S105
KEY = "sk-ant-" + "a1B2" * 10
OWN = "Correct-Horse-Battery-9"
LEAKS = f"postgresql://ada:{PASSWORD}@db/chats refused {KEY} and {OWN}"


def hide_own(text: str) -> str:
    return text.replace(OWN, "[redacted]")


async def run_one(function: Callable[..., Any], *, hide: Callable[[str], str] = hide_own) -> ToolResult:
    bench = Bench(hide=hide)
    await bench.run(make(function))
    (result,) = bench.journal.results.values()
    return result


class Watchful:
    """Remembers which threads have looked at it."""

    def __init__(self) -> None:
        self.seen_by: set[int] = set()

    def __str__(self) -> str:
        self.seen_by.add(threading.get_ident())
        return "watchful"


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_event_loop_turns_no_value_of_unknown_size_into_text(is_async: bool) -> None:
    watchful = Watchful()

    async def give() -> Any:
        """Give."""
        return {"inside": [watchful]}

    def give_plainly() -> Any:
        """Give."""
        return {"inside": [watchful]}

    result = await run_one(give if is_async else give_plainly)
    assert (result.output, result.is_error) == ('{"inside":["watchful"]}', False)
    assert watchful.seen_by
    assert threading.get_ident() not in watchful.seen_by


@pytest.mark.may_log("the tool .* raised an error")
async def test_the_event_loop_turns_no_exception_into_text() -> None:
    watchful = Watchful()

    async def fail() -> None:
        """Fail."""
        raise RuntimeError(watchful)

    assert (await run_one(fail)).output == "RuntimeError: watchful"
    assert threading.get_ident() not in watchful.seen_by


def count_up() -> Iterator[int]:
    yield from range(3)


async def count_up_slowly() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@pytest.mark.may_log("the tool .* raised an error")
@pytest.mark.parametrize("begin", [count_up, count_up_slowly, lambda: map(str, [1])])
async def test_an_iterator_is_a_mistake_and_no_result(begin: Callable[[], Any]) -> None:
    async def numbers() -> Any:
        """Give numbers."""
        return begin()

    result = await run_one(numbers)
    assert result.is_error
    assert "Return a list or a text." in result.output


def refuse_connection(length: int) -> None:
    raise OSError(f"{LEAKS}{'x' * length}")


@pytest.mark.may_log("the tool .* raised an error")
@pytest.mark.parametrize("length", [0, 10_000_000])
async def test_of_an_exception_model_and_log_get_neither_secrets_nor_megabytes(
    length: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect() -> None:
        """Connect."""
        try:
            refuse_connection(length)
        except OSError as error:
            raise RuntimeError(f"{LEAKS}{'y' * length}{LEAKS}") from error

    searched: list[int] = []

    def hide(text: str) -> str:
        searched.append(len(text))
        return hide_own(text)

    with caplog.at_level(logging.WARNING):
        result = await run_one(connect, hide=hide)
    assert 0 < max(searched) < 100_000, "it is cut before anybody searches it"
    (record,) = [record for record in caplog.records if record.name == "indelible.tools.run"]
    logged = logging.Formatter().format(record)
    for told in (result.output, logged):
        assert "postgresql://" in told
        assert "refused" in told
        assert [secret for secret in (PASSWORD, KEY, OWN) if secret in told] == []
        assert len(told) < 20_000
    assert result.output.startswith("RuntimeError: postgresql://")
    assert "OSError: postgresql://" in logged
    assert "in connect\n" in logged
    assert "direct cause" in logged


@pytest.mark.may_log("the tool .* raised an error")
async def test_the_log_has_what_was_raised_inside_a_task_group(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        error = KeyError(LEAKS)
        error.add_note(f"while reading the third row of {LEAKS}")
        raise error

    async def connect() -> None:
        """Connect."""
        async with asyncio.TaskGroup() as group:
            group.create_task(look())
            group.create_task(look())

    with caplog.at_level(logging.WARNING):
        result = await run_one(connect)
    assert result.output.startswith("ExceptionGroup: unhandled errors in a TaskGroup")
    logged = logging.Formatter().format(caplog.records[0])
    assert (logged.count("in look\n"), logged.count("KeyError: "), logged.count("third row")) == (2, 2, 2)
    assert [secret for secret in (PASSWORD, KEY, OWN) if secret in logged] == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_test_that_did_what_it_must_not_is_no_result_of_a_tool(is_async: bool) -> None:
    def fail() -> None:
        """Fail."""
        raise TestBroken

    async def fail_later() -> None:
        """Fail."""
        raise TestBroken

    with pytest.raises(TestBroken):
        await run_one(fail_later if is_async else fail)


class Trap:
    """Looking at its class ends the process."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit(3)


class Trapped(Exception):
    @property
    def __notes__(self) -> Any:  # type: ignore[override]
        raise SystemExit(3)


@pytest.mark.may_log("the tool .* raised an error")
@pytest.mark.parametrize("kind", [Trap, Trapped])
async def test_s97_what_cannot_even_be_looked_at_ends_nothing_but_its_call(kind: type) -> None:
    async def give() -> Any:
        """Give."""
        if kind is Trapped:
            raise Trapped
        return kind()

    result = await run_one(give)
    assert (result.is_error, "looking at it raised SystemExit" in result.output) == (True, True)


@pytest.mark.may_log("the tool .* raised an error")
async def test_of_many_exceptions_in_one_only_the_first_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        """Fail."""
        inner = ExceptionGroup("inner", [ValueError("x" * 100_000) for _ in range(1000)])
        raise ExceptionGroup("outer", [inner, inner])

    with caplog.at_level(logging.WARNING):
        await run_one(fail)
    logged = logging.Formatter().format(caplog.records[0])
    assert "ValueError: xxx" in logged
    assert len(logged) < 100_000


def refuse(_given: Any) -> Any:
    raise RuntimeError(f"{LEAKS}{'x' * 100_000}")


Strange = Annotated[int, BeforeValidator(refuse)]


async def test_of_a_validators_exception_they_get_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def check(thing: Strange) -> None:
        """Check."""

    bench = Bench(hide=hide_own)
    with caplog.at_level(logging.WARNING):
        await bench.run((make(check), '{"thing": 1}'))
    (result,) = bench.journal.results.values()
    assert result.output.startswith("The arguments")
    for told in [result.output, *map(logging.Formatter().format, caplog.records)]:
        assert [secret for secret in (PASSWORD, KEY, OWN) if secret in told] == []
        assert len(told) < 20_000
