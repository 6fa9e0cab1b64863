"""The front door: `indelible.open` starts everything, ends everything, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.statements import counted
from tests.support.app_harness import make_settings
from tests.support.messages import find_reply, outline, read_text
from tests.support.waiting import deadline

import indelible
from indelible.app.chat import Chat
from indelible.app.compose import open_app
from indelible.content import Part, TextDelta, ToolCall
from indelible.errors import Invalid, ModelFailed, NotFound, Shutdown
from indelible.models.protocol import Call, ModelTraits
from indelible.settings import load_settings
from indelible.store.database.errors import DatabaseUnusable
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

SETTINGS = make_settings(poll_interval_s=0.1)


def say(text: str) -> Script:
    return [parts.text_delta("1", text), parts.finish()]


HANG: Script = [parts.text_delta("1", "Well"), parts.hang()]


@pytest.fixture(autouse=True)
async def nothing_is_left_behind() -> AsyncIterator[None]:
    """No task and no thread of ours outlives what started it."""
    threads = set(threading.enumerate())
    yield
    assert asyncio.all_tasks() == {asyncio.current_task()}
    left = [thread.name for thread in set(threading.enumerate()) - threads if "indelible" in thread.name]
    assert left == []


@pytest.mark.both_databases
async def test_the_worker_of_a_program_begins_a_turn_in_the_transaction_of_its_message(database: str) -> None:
    model = ScriptedModel([say("One."), say("Two."), say("Three.")])
    settings = make_settings(poll_interval_s=600, heartbeat_interval_s=600)
    async with indelible.open(database, model=model, settings=settings) as app:
        chat = await app.create_chat()
        await chat.send("Hello")  # by then the worker has looked around once
        with counted(app.store.database) as sent:  # type: ignore[arg-type]
            await chat.send("And now?")
            await app.create_chat("Yet another")
    assert [statement for statement in sent if "AS ahead" in statement] == [], "nobody looked for the chats"
    assert sum(statement.count("INSERT INTO attempts") for statement in sent) == 2
    assert sum("response_id" in statement and "WITH RECURSIVE" in statement for statement in sent) == 2


@pytest.mark.both_databases
async def test_the_example_of_the_front_page(database: str) -> None:
    @indelible.tool
    async def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    call: Script = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
    shown = ""
    async with indelible.open(
        database, model=ScriptedModel([call, say("Yes.")]), tools=[weather], settings=SETTINGS
    ) as app:
        chat = await app.create_chat()
        async for part in chat.send("Is it raining in Oslo?"):
            shown += part.text
        messages = await chat.messages()
    assert shown == "Yes."
    assert outline(messages)[2] == ("tool", "rain in Oslo")


async def test_the_demo_model_answers_without_a_key(tmp_path: Path) -> None:
    async with indelible.open(tmp_path / "new.db", model="demo") as app:
        chat = await app.create_chat()
        reply = await chat.send("hello")
        stored = find_reply(await chat.messages())
    assert reply.text == read_text(stored.blocks) != ""


@pytest.mark.both_databases
async def test_what_is_under_way_when_it_closes_goes_on_when_it_opens_again(database: str) -> None:
    async with open_app(database, model=ScriptedModel([HANG]), settings=SETTINGS) as app:
        chat = await app.create_chat()
        async for part in chat.send("Talk"):
            assert part.text == "Well"
            break
    model = ScriptedModel([say(" then")])
    async with open_app(database, model=model, settings=SETTINGS) as app:
        again = await app.chat(chat.id)
        async with deadline():
            async for event in again.events():
                if event.kind in {"snapshot", "status"} and event.data["status"] == "idle":
                    break
        said = [text for role, text in outline(await again.messages()) if role == "assistant"]
    assert said == ["Well", " then"]


async def test_a_reader_learns_that_the_program_closes(database: str) -> None:
    async with open_app(database, model=ScriptedModel([HANG]), settings=SETTINGS) as app:
        chat = await app.create_chat()
        reading = asyncio.create_task(chat.send("Talk")._read_all())
        async for event in chat.events():
            if event.kind == "part":
                break
    with pytest.raises(Shutdown):
        await reading


async def test_what_the_body_raises_comes_out_as_it_is(database: str) -> None:
    failing = ScriptedModel([[ModelFailed("The key is wrong.", kind="auth")]])
    with pytest.raises(ModelFailed, match="The key is wrong"):
        async with open_app(database, model=failing, settings=SETTINGS) as app:
            await (await app.create_chat()).send("Hello")


async def test_a_cancelled_body_hands_over_and_leaves_nothing(database: str) -> None:
    begun = asyncio.Event()
    chat_id = ""

    async def program() -> None:
        nonlocal chat_id
        async with open_app(database, model=ScriptedModel([HANG]), settings=SETTINGS) as app:
            chat = await app.create_chat()
            chat_id = chat.id
            async for _ in chat.send("Talk"):
                begun.set()

    task = asyncio.create_task(program())
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    async with open_app(database, worker=False, settings=SETTINGS) as app:
        assert await (await app.chat(chat_id)).status() == "pending"


async def test_a_model_is_chosen_by_name(database: str) -> None:
    own, other = ScriptedModel([say("own")]), ScriptedModel([say("other")], name="other")
    async with open_app(database, model=own, models={"other": other}, settings=SETTINGS) as app:
        chat = await app.create_chat()
        assert (await chat.send("1")).text == "own"
        assert (await chat.send("2", model="other")).text == "other"
        with pytest.raises(Invalid, match="Unknown model 'nonesuch'"):
            await chat.send("3", model="nonesuch")


async def test_a_model_given_by_its_own_name_may_be_named(database: str) -> None:
    """`models` may give a name to the model that answers by default, too."""
    model = ScriptedModel([say("Hi")])
    async with open_app(database, model="mine", models={"mine": model}, settings=make_settings(model="mine")) as app:
        assert (await (await app.create_chat()).send("Hello")).text == "Hi"


async def test_the_model_argument_wins_over_the_settings(database: str) -> None:
    model = ScriptedModel([say("Hi")])
    async with open_app(database, model="mine", models={"mine": model}, settings=SETTINGS) as app:
        assert (await (await app.create_chat()).send("Hello")).text == "Hi"


async def test_two_programs_may_not_work_on_one_file(tmp_path: Path) -> None:
    file = tmp_path / "chats.db"
    async with open_app(file, model="demo", settings=SETTINGS):
        with pytest.raises(DatabaseUnusable, match="in use"):
            async with open_app(file, model="demo", settings=SETTINGS):
                raise AssertionError("unreachable")


@pytest.mark.both_databases
async def test_beside_a_working_program_one_can_send_and_read(database: str) -> None:
    model = ScriptedModel([say("One"), HANG])
    async with (
        open_app(database, model=model, settings=SETTINGS),
        open_app(database, worker=False, settings=SETTINGS) as beside,
    ):
        chat = await beside.create_chat()
        assert (await chat.send("1")).text == "One"
        reply = chat.send("2")
        async for part in reply:
            assert part.text == "Well"
            await chat.interrupt(wait=False)
        assert reply.outcome == "interrupted"
        assert [summary.id for summary in await beside.chats()] == [chat.id]


async def test_without_anybody_who_works_a_chat_is_pending(database: str) -> None:
    async with open_app(database, worker=False, settings=SETTINGS) as app:
        chat = await app.create_chat("Hello")
        assert await chat.status() == "pending"
        assert (await chat.interrupt()).status == "idle"


async def test_the_list_of_chats_is_the_users_own(database: str) -> None:
    async with (
        open_app(database, worker=False, user="ada", settings=SETTINGS) as ada,
        open_app(database, worker=False, user="bob", settings=SETTINGS) as bob,
    ):
        first = await ada.create_chat(title="First")
        second = await ada.create_chat(title="Second")
        other = await bob.create_chat(title="Other")
        assert [chat.title for chat in await ada.chats()] == ["Second", "First"]
        assert [chat.title for chat in await ada.chats(search="first")] == ["First"]
        await first.archive()
        assert [chat.id for chat in await ada.chats()] == [second.id]
        assert [chat.id for chat in await ada.chats(archived=True)] == [first.id]
        await first.archive(archived=False)
        await first.update(title="New", pinned=True)
        assert [chat.title for chat in await ada.chats(search="new")] == ["New"]
        with pytest.raises(NotFound):
            await ada.chat("chat_none")
        with pytest.raises(NotFound):
            await ada.chat(other.id)


async def test_messages_come_in_pages_and_without_what_only_a_model_sees(database: str) -> None:
    broken = ModelFailed("Busy.", kind="overloaded")
    model = ScriptedModel([[parts.text_delta("1", "One, "), broken], say("two.")])
    async with open_app(database, model=model, settings=SETTINGS) as app:
        chat = await app.create_chat()
        await chat.send("Count")
        told = [("user", "Count"), ("assistant", "One, "), ("assistant", "two.")]
        assert outline(await chat.messages()) == told
        assert outline(await chat.messages(limit=2)) == told[-2:]
        last = (await chat.messages())[-1].id
        assert outline(await chat.messages(before=last, limit=1)) == [told[1]]


async def test_two_tools_of_one_name_are_refused_at_once(database: str) -> None:
    def make(text: str) -> Any:
        async def roll() -> str:
            return text

        roll.__doc__ = text
        return indelible.tool(roll)

    with pytest.raises(ValueError, match="two tools named 'roll'"):
        async with open_app(database, model=ScriptedModel([]), tools=[make("a"), make("b")], settings=SETTINGS):
            raise AssertionError("unreachable")


async def test_client_tools_stop_a_reply_and_results_go_on_with_it(database: str) -> None:
    async def ask(question: str) -> str:
        raise NotImplementedError

    call: Script = [parts.tool_call("c1", "ask", '{"question": "Sure?"}'), parts.finish("tool_calls")]
    model = ScriptedModel([call, say("Done")])
    async with open_app(database, model=model, client_tools=[ask], settings=SETTINGS) as app:
        chat = await app.create_chat()
        reply = chat.send("Delete it")
        calls = [part async for part in reply if isinstance(part, ToolCall)]
        assert (reply.outcome, [call.name for call in calls]) == ("requires_action", ["ask"])
        results = [indelible.ToolResult(call_id=call.id, name=call.name, output="yes") for call in calls]
        assert (await chat.submit_tool_results(results)).text == "Done"


@pytest.mark.both_databases
async def test_many_replies_at_once_are_each_the_stored_one(database: str) -> None:
    class Echo:
        provider = name = "echo"
        context_limit = None
        traits = ModelTraits(makes_titles=False)

        def stream(self, call: Call) -> AsyncIterator[Part]:
            async def stream() -> AsyncIterator[Part]:
                for word in read_text(call.messages[-1].blocks).split():
                    yield TextDelta("1", f"{word} ")
                yield parts.finish()

            return stream()

    async with open_app(database, model=Echo(), settings=SETTINGS) as app:
        chats = [await app.create_chat() for _ in range(10)]
        replies = await asyncio.gather(*(chat.send(f"{at} " * 50)._read_all() for at, chat in enumerate(chats)))
        for at, (chat, reply) in enumerate(zip(chats, replies, strict=True)):
            assert reply.text == f"{at} " * 50 == read_text(find_reply(await chat.messages()).blocks)


async def test_a_tool_knows_its_chat_its_user_its_turn_and_the_value_given_to_open(database: str) -> None:
    seen: list[tuple[str | None, str | None, str | None]] = []

    @indelible.tool
    async def note(context: indelible.ToolContext[list[str]]) -> str:
        """Take a note."""
        seen.append((context.chat_id, context.user_id, context.turn_id))
        context.deps.append("noted")
        return "ok"

    @indelible.tool
    def note_in_a_thread(context: indelible.ToolContext[list[str]]) -> str:
        """Take a note in a thread."""
        seen.append((context.chat_id, context.user_id, context.turn_id))
        context.deps.append("noted")
        return "ok"

    calls: Script = [
        parts.tool_call("c1", "note", "{}"),
        parts.tool_call("c2", "note_in_a_thread", "{}"),
        parts.finish("tool_calls"),
    ]
    deps: list[str] = []
    model = ScriptedModel([calls, say("Done"), calls, say("Done")])
    async with open_app(database, model=model, tools=[note, note_in_a_thread], deps=deps, settings=SETTINGS) as app:
        expected = []
        for user_id, user in (
            (app.owner_id, app),
            (await app.store.ensure_user("ada"), app.user("ada")),
        ):
            chat = await user.create_chat()
            reply = await chat.send("Note it")
            expected += [(chat.id, user_id, reply.turn_id)] * 2

    assert note.input_schema["properties"] == {}
    assert (seen, deps) == (expected, ["noted"] * 4)


@pytest.mark.both_databases
async def test_looking_for_the_chats_of_a_name_creates_no_user(database: str, tmp_path: Path) -> None:
    async with open_app(database, model=ScriptedModel([say("Hi")]), settings=SETTINGS) as app:
        typo, mine = app.user("typo"), await app.create_chat()
        assert (await typo.chats(), await typo.chats(search="hello"), await typo.files()) == ([], [], [])
        assert (await typo.draft(), (await typo.usage()).days) == ("", [])
        for attempt in (
            lambda: typo.chat(mine.id),
            lambda: typo.read_file("file_1"),
            lambda: typo.delete_file("file_1"),
            lambda: anext(Chat(typo._service, mine.id).events()),
            lambda: Chat(typo._service, mine.id).post("Hello"),
            lambda: Chat(typo._service, mine.id).delete(),
        ):
            with pytest.raises(NotFound):
                await attempt()
        await typo.save_draft("")
        with pytest.raises(Invalid, match="name"):
            await app.user(" ").chats()
        assert [user.name for user in await app.accounts.list_users()] == ["local"]

        chat = await typo.create_chat()  # which is no typo then
        assert [found.id for found in await typo.chats()] == [chat.id]
        await app.user("bob").save_draft("Hm")
        await app.user("eve").upload(b"Hm", name="hm.txt")
        assert sorted(user.name for user in await app.accounts.list_users()) == ["bob", "eve", "local", "typo"]


@pytest.mark.may_log("WARNING indelible.app.compose: redis_url has no effect")
async def test_redis_has_no_effect_on_sqlite_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings(redis_url="redis://127.0.0.1:1/0")
    async with indelible.open(tmp_path / "chats.db", model=ScriptedModel(), settings=settings):
        pass
    assert caplog.messages == ["redis_url has no effect: a SQLite file has one process."]
