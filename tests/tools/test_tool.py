"""Declaring a tool, calling it, and the line it has back while it runs."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import Context
from typing import Annotated, Any, TypeVarTuple

import msgspec
import pytest
from pydantic import Field
from tests.support.waiting import DEADLINE_S

from indelible.concurrency.scope import CancelScope
from indelible.content import ToolSpec
from indelible.tools import BadArguments, Tool, ToolCallRecord, ToolContext, tool


@tool
async def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"{city}: rain for {days} days"


async def ignore(text: str) -> None:
    """Publish nothing."""


def make_context(publish_progress: Callable[[str], Awaitable[None]] = ignore) -> ToolContext:
    return ToolContext(
        call_id="call_1",
        name="weather",
        idempotency_key="turn/1/0",
        scope=CancelScope(),
        publish_progress=publish_progress,
    )


# --- declaring ---------------------------------------------------------------------------


def test_a_bare_decorator_takes_everything_from_the_function() -> None:
    assert weather.name == "weather"
    assert weather.description == "The weather in a city."
    assert (weather.serial, weather.exclusive, weather.idempotent, weather.timeout_s) == (False, False, False, None)
    assert weather.is_async
    assert weather.spec == ToolSpec(
        name="weather", description="The weather in a city.", input_schema=weather.input_schema
    )
    assert repr(weather) == (
        "Tool(name='weather', description='The weather in a city.', "
        "serial=False, exclusive=False, idempotent=False, timeout_s=None)"
    )


def test_a_decorator_with_options_takes_them() -> None:
    @tool(name="look-up_1", description="Looks.", serial=True, exclusive=True, idempotent=True, timeout_s=30)
    def look() -> None:
        """Not this one."""

    assert (look.name, look.description) == ("look-up_1", "Looks.")
    assert (look.serial, look.exclusive, look.idempotent, look.timeout_s) == (True, True, True, 30)
    assert not look.is_async
    assert tool(look.function, description="").description == ""
    assert tool()(look.function).name == "look"


async def test_a_tool_is_still_the_function_it_was() -> None:
    assert await weather("Oslo", days=2) == "Oslo: rain for 2 days"

    @tool
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8


@pytest.mark.parametrize("name", ["", "a b", "wetter.heute", "für", "a" * 65, "name\n"])
def test_a_name_that_providers_refuse_is_refused_at_once(name: str) -> None:
    def work() -> None: ...

    with pytest.raises(ValueError, match="cannot be a tool's name"):
        tool(work, name=name)
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        Tool.from_schema(name, "", {}, lambda arguments: arguments)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ValueError, match=r"'<lambda>' cannot be a tool's name.*name="):
        tool(lambda: None)
    assert tool(lambda: None, name="a" * 64).validate("") == {}


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_time(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s must be a positive number of seconds"):
        tool(timeout_s=timeout_s)(weather.function)


async def stream_words(text: str) -> AsyncIterator[str]:
    yield text


def list_words(text: str) -> Iterator[str]:
    yield text


class Words:
    def __call__(self, text: str) -> Iterator[str]:
        yield text


@pytest.mark.parametrize(
    "function", [stream_words, list_words, functools.partial(stream_words), Words(), functools.partial(Words())]
)
def test_a_generator_is_not_a_tool(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="a generator gives no single result"):
        tool(function)
    with pytest.raises(TypeError, match="a generator gives no single result"):
        Tool.from_schema("words", "", {}, function)


@pytest.mark.parametrize("thing", ["weather", 3, Words, classmethod(make_context)])
def test_only_functions_become_tools(thing: Any) -> None:
    with pytest.raises(TypeError, match="a tool is made from a function"):
        tool(thing)


def test_a_tool_is_not_made_into_a_tool_again() -> None:
    with pytest.raises(TypeError, match="'weather' is a tool already"):
        tool(weather)


def test_a_tool_can_be_put_in_sets_and_not_be_changed() -> None:
    assert {weather, weather} == {weather}
    with pytest.raises(AttributeError):
        weather.name = "other"  # type: ignore[misc]


# --- every kind of callable --------------------------------------------------------------


class Shop:
    """Sells things."""

    def __init__(self, price: int) -> None:
        self.price = price

    async def sell(self, count: int, context: ToolContext) -> int:
        """Sell some."""
        assert context.call_id == "call_1"
        return self.price * count

    def __call__(self, count: int) -> int:
        return self.price * count

    @tool
    @staticmethod
    async def greet(name: str) -> str:
        return f"Hello {name}"


class Clerk:
    async def __call__(self, count: int) -> int:
        """Count."""
        return count


async def test_a_bound_method_is_a_tool() -> None:
    sell = tool(Shop(3).sell)
    assert (sell.name, sell.description, sell.is_async) == ("sell", "Sell some.", True)
    assert await sell.bind('{"count": 2}', make_context())() == 6


def test_an_unbound_method_is_refused_with_how_to_bind_it() -> None:
    with pytest.raises(
        TypeError, match=r"'self' is not bound; make the tool from the bound method: tool\(thing.sell\)"
    ):
        tool(Shop.sell)


async def test_an_object_with_call_is_a_tool() -> None:
    shop = tool(Shop(3))
    assert (shop.name, shop.description, shop.is_async) == ("Shop", "Sells things.", False)
    assert shop.bind('{"count": 2}', make_context())() == 6
    clerk = tool(Clerk(), name="clerk")
    assert (clerk.description, clerk.is_async) == ("Count.", True)
    assert await clerk.bind('{"count": 2}', make_context())() == 2


async def test_a_static_method_is_a_tool() -> None:
    assert Shop.greet.is_async
    assert await Shop.greet.bind('{"name": "Ada"}', make_context())() == "Hello Ada"


async def test_what_a_partial_has_bound_is_not_the_models_to_set() -> None:
    def read(user: str, path: str, limit: int = 10) -> str:
        """Read a file."""
        return f"{user} {path} {limit}"

    for made in (
        tool(functools.partial(read, "ada", limit=5)),
        tool(functools.partial(functools.partial(read, user="ada"), limit=5)),
    ):
        assert (made.name, made.description) == ("read", "Read a file.")
        assert list(made.input_schema["properties"]) == ["path"]
        assert made.bind('{"path": "x"}', make_context())() == "ada x 5"
        with pytest.raises(BadArguments, match="user: there is no such argument"):
            made.bind('{"path": "x", "user": "eve"}', make_context())
    bound = tool(functools.partial(weather.function, days=3))
    assert bound.is_async
    assert await bound.bind('{"city": "Oslo"}', make_context())() == "Oslo: rain for 3 days"


async def test_a_decorated_function_keeps_its_types() -> None:
    def log(function: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        @functools.wraps(function)
        async def logged(*args: Any, **kwargs: Any) -> str:
            return f"logged {await function(*args, **kwargs)}"

        return logged

    logged = tool(log(weather.function))
    assert logged.input_schema == weather.input_schema
    assert logged.is_async
    assert await logged.bind('{"city": "Oslo"}', make_context())() == "logged Oslo: rain for 1 days"


# --- describing --------------------------------------------------------------------------


def test_an_args_section_describes_the_arguments_and_leaves_the_description() -> None:
    @tool
    def book(
        city: str, nights: int, room: Annotated[str, Field(description="From the field.")], context: ToolContext
    ) -> str:
        """Book a hotel.

        Costs money.

        Args:
            city: Where to stay: a name,
                not a code.

            nights (int, optional): How long.
            room: From the docstring.
            context: Not for the model.

        Returns:
            The number of the booking.

        """
        return f"{city} {nights} {room} {context.call_id}"

    assert book.description == "Book a hotel.\n\nCosts money.\n\nReturns:\n    The number of the booking."
    described = {name: schema["description"] for name, schema in book.input_schema["properties"].items()}
    assert described == {"city": "Where to stay: a name, not a code.", "nights": "How long.", "room": "From the field."}


@pytest.mark.parametrize(
    "section",
    [
        "Args:",
        "Args:\n    nobody: Is not a parameter.",
        "Args:\n    city: Where.\n    and a line that is no entry",
        "Args:\n        city: Where.\n    days: Further out.",
        "Arguments against it: none.",
        "args:\n    city: Where.",
    ],
)
def test_a_section_that_is_not_understood_stays_text(section: str) -> None:
    def plan(city: str, days: int) -> None: ...

    plan.__doc__ = f"Plan.\n\n{section}"
    made = tool(plan)
    assert made.description == f"Plan.\n\n{section}"
    assert all("description" not in schema for schema in made.input_schema["properties"].values())


def test_a_tool_without_a_docstring_has_an_empty_description() -> None:
    def plan() -> None: ...

    assert tool(plan).description == ""


# --- binding -----------------------------------------------------------------------------


async def test_binding_checks_and_does_not_yet_run() -> None:
    ran: list[str] = []

    @tool
    def note(text: str) -> None:
        ran.append(text)

    call = note.bind('{"text": "x"}', make_context())
    assert ran == []
    call()
    assert ran == ["x"]
    with pytest.raises(BadArguments, match="text: required, but missing"):
        note.bind("{}", make_context())


async def test_the_context_reaches_every_parameter_that_asks_for_it() -> None:
    @tool
    async def look(first: ToolContext, at: str, *, second: ToolContext | None = None) -> tuple[Any, ...]:
        return first, at, second

    context = make_context()
    assert await look.bind('{"at": "x"}', context)() == (context, "x", context)


async def test_a_tool_from_a_schema_gets_the_arguments_as_they_came() -> None:
    async def call_remote(arguments: dict[str, Any], context: ToolContext) -> tuple[Any, ...]:
        return arguments, context.call_id

    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    remote = Tool.from_schema("remote", "Far away.", schema, call_remote, serial=True, timeout_s=5)
    assert (remote.spec.input_schema, remote.is_async, remote.serial, remote.timeout_s) == (schema, True, True, 5)
    assert await remote.bind('{"q": "x", "more": [1]}', make_context())() == ({"q": "x", "more": [1]}, "call_1")
    alone = Tool.from_schema("alone", "", {}, lambda arguments: arguments)
    assert alone.bind("", make_context())() == {}
    with pytest.raises(BadArguments):
        alone.bind("[]", make_context())
    with pytest.raises(TypeError, match="must take"):
        Tool.from_schema("none", "", {}, lambda: None)
    with pytest.raises(TypeError, match="must take"):
        Tool.from_schema("three", "", {}, lambda a, b, c: (a, b, c))


# --- the line back -----------------------------------------------------------------------


async def test_progress_is_published_as_text_that_encodes() -> None:
    said: list[str] = []

    async def publish(text: str) -> None:
        said.append(text)

    context = make_context(publish)
    await context.progress("half \ud800")
    await context.progress({"done": 1})  # type: ignore[arg-type]
    assert said == ["half \ufffd", '{"done":1}']


async def test_report_from_a_thread_returns_after_it_was_published() -> None:
    said: list[str] = []
    published = asyncio.Event()

    async def publish(text: str) -> None:
        await published.wait()
        said.append(text)

    context = make_context(publish)

    def report() -> list[str]:
        context.report("half")
        return list(said)

    reporting = asyncio.create_task(asyncio.to_thread(report))
    published.set()
    assert await reporting == ["half"]


async def test_report_on_the_event_loop_says_what_to_use_instead() -> None:
    with pytest.raises(RuntimeError, match=r"await context\.progress"):
        make_context().report("half")


async def test_what_publishing_raises_reaches_the_tool() -> None:
    async def publish(text: str) -> None:
        raise LookupError(text)

    context = make_context(publish)
    with pytest.raises(LookupError, match="half"):
        await context.progress("half")
    with pytest.raises(LookupError, match="half"):
        await asyncio.to_thread(context.report, "half")


async def test_after_close_nothing_is_published() -> None:
    said: list[str] = []

    async def publish(text: str) -> None:
        said.append(text)

    context = make_context(publish)
    context.close()
    context.close()
    await context.progress("late")
    await asyncio.to_thread(context.report, "late")
    assert said == []


async def test_close_lets_go_of_a_report_whose_publishing_hangs_and_does_not_cut_the_publishing() -> None:
    began, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def publish(text: str) -> None:
        began.set()
        await go_on.wait()
        ended.set()

    context = make_context(publish)
    reporting = asyncio.create_task(asyncio.to_thread(context.report, "half"))
    await began.wait()
    context.close()
    await reporting
    assert not ended.is_set()
    go_on.set()
    await ended.wait()


def test_a_report_after_the_loop_is_gone_returns() -> None:
    async def make() -> ToolContext:
        return make_context()

    context = asyncio.run(make())
    context.report("nobody is there")
    gc.collect()


Arguments = TypeVarTuple("Arguments")


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop that does not run, and knows when another thread has asked it for something."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def call_soon_threadsafe(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(callback, *args, context=context)
        self.asked.set()
        return handle


def test_a_report_that_the_loop_never_gets_to_is_let_go_by_close() -> None:
    loop = WatchedLoop()
    said: list[str] = []

    async def publish(text: str) -> None:
        said.append(text)

    context = ToolContext(
        call_id="c", name="n", idempotency_key="k", scope=CancelScope(), publish_progress=publish, loop=loop
    )
    thread = threading.Thread(target=context.report, args=("half",), daemon=True)
    thread.start()
    assert loop.asked.wait(timeout=DEADLINE_S)
    context.close()
    thread.join(timeout=DEADLINE_S)
    assert not thread.is_alive()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert said == []


async def test_a_context_shows_its_call_and_cannot_be_changed() -> None:
    context = make_context()
    assert "idempotency_key='turn/1/0'" in repr(context)
    with pytest.raises(AttributeError):
        context.call_id = "other"  # type: ignore[misc]


def test_a_call_record_is_a_value_with_a_json_form() -> None:
    record = ToolCallRecord(id="c", name="n", arguments="{}", step=1, index=0, idempotency_key="t/1/0")
    assert msgspec.json.decode(msgspec.json.encode(record), type=ToolCallRecord) == record
    with pytest.raises(AttributeError):
        record.step = 2  # type: ignore[misc]
