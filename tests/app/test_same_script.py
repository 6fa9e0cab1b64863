"""One script, twice: with `indelible.open`, and with `indelible.Client` on a real server. Both give the same.

The script knows a `User` and nothing else. What it saw is compared with what is expected, and not only one run with the
other, so that both cannot be wrong in the same way.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest
from tests.app.conftest import OpenPair, OpenUser
from tests.support.messages import outline

import indelible
from indelible.content import ToolCall
from indelible.errors import ReadOnly
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script


def say(text: str) -> Script:
    usage = indelible.Usage(input_tokens=3, output_tokens=5)
    return [parts.text_delta("1", text), parts.finish(usage=usage)]


def hang(text: str) -> Script:
    return [parts.text_delta("1", text), parts.hang()]


@indelible.tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def ask(question: str) -> str:
    raise NotImplementedError


TOOLS: Final[dict[str, Any]] = {"tools": [weather], "client_tools": [ask]}


async def test_create_stream_and_read(open_user: OpenUser, database: str) -> None:
    call: Script = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
    async with open_user(database, ScriptedModel([call, say("Yes.")]), **TOOLS) as user:
        chat = await user.create_chat(title="Rain", system="Be brief.")
        shown = ""
        async with chat.stream("Is it raining in Oslo?") as reply:
            async for part in reply:
                shown += part.text

        assert (shown, reply.text, reply.outcome) == ("Yes.", "Yes.", "complete")
        assert [message.role for message in reply.messages] == ["assistant", "tool", "assistant"]
        assert reply.message is not None
        assert reply.usage == indelible.Usage(input_tokens=3, output_tokens=5)
        messages = await chat.messages()
        assert outline(messages) == [
            ("user", "Is it raining in Oslo?"), ("assistant", ""), ("tool", "rain in Oslo"), ("assistant", "Yes.")
        ]  # fmt: skip
        last = messages[-1]
        assert (last.id, last.text, last.usage) == (reply.message.id, "Yes.", reply.usage)
        assert (last.parent_id, last.siblings) == (messages[-2].id, [last.id])
        assert messages[0].created_at <= last.created_at
        details = await chat.details()
        assert (details.status, details.title, details.messages) == ("idle", "Rain", messages)
        assert [message.id for message in await chat.messages(limit=2)] == [messages[2].id, messages[3].id]
        assert (await chat.attempts())[0].outcome == "complete"


async def test_stop_retry_edit_regenerate_and_branches(open_user: OpenUser, database: str) -> None:
    script = [hang("Well"), say(" then"), say("again"), say("other")]
    async with open_user(database, ScriptedModel(script), **TOOLS) as user:
        chat = await user.create_chat()
        async with chat.stream("Talk") as reply:
            stops = [await chat.interrupt() async for _ in reply]
        assert reply.message is not None
        assert (reply.outcome, reply.text) == ("interrupted", "Well")
        expected = indelible.InterruptResult(stopped=True, message_id=reply.message.id, status="idle", turn=None)
        assert stops == [expected]
        assert not (await chat.interrupt()).stopped
        assert (await chat.continue_()).text == " then"

        question, partial, *_ = await chat.messages()
        assert (partial.partial, partial.reason) == (True, "interrupted")
        assert (await chat.regenerate(partial.id)).text == "again"
        assert (await chat.edit(question.id, "Speak")).text == "other"
        edited = await chat.messages()
        assert outline(edited) == [("user", "Speak"), ("assistant", "other")]
        assert edited[0].siblings == [question.id, edited[0].id]
        await chat.switch_branch(partial.id)
        assert (await chat.messages())[0].id == question.id


async def test_the_queue(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([hang("One"), say("c"), say("b")]), **TOOLS) as user:
        chat = await user.create_chat()
        running = chat.send("a")
        async for _ in running:
            break
        await running.aclose()
        for text in ("b", "c", "never"):
            assert (await chat.post(text)).queued is not None
        first, second, third = await chat.queue()
        await chat.delete_queued(third.id)
        await chat.edit_queued(first.id, "B")
        await chat.reorder_queue([second.id, first.id])
        assert [row.id for row in await chat.queue()] == [second.id, first.id]
        with pytest.raises(indelible.Refused):
            await chat.reorder_queue([second.id])
        await chat.promote_queued(first.id)
        await chat.promote_queued(second.id)
        await running.wait()
        assert running.outcome == "interrupted"
        async with aclosing(chat.events()) as events:
            async for event in events:
                if event.kind in ("snapshot", "status") and event.data["status"] == "idle":
                    break
        users = [text for role, text in outline(await chat.messages()) if role == "user"]
        assert sorted(users[1:]) == ["B", "c"]


async def test_client_tools(open_user: OpenUser, database: str) -> None:
    call: Script = [parts.tool_call("c1", "ask", '{"question": "Sure?"}'), parts.finish("tool_calls")]
    async with open_user(database, ScriptedModel([call, say("Done")]), **TOOLS) as user:
        chat = await user.create_chat()
        reply = chat.send("Delete it")
        calls = [part async for part in reply if isinstance(part, ToolCall)]
        assert (reply.outcome, [call.name for call in calls]) == ("requires_action", ["ask"])
        results = [indelible.ToolResult(call_id=call.id, name=call.name, output="yes") for call in calls]
        assert (await chat.submit_tool_results(results)).text == "Done"


async def test_update_archive_fork_and_delete(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([say("One")]), **TOOLS) as user:
        chat = await user.create_chat()
        await chat.send("1")
        await chat.update(title="First", labels=["x"], pinned=True, parameters={"temperature": 0})
        (summary,) = await user.chats(search="first")
        assert (summary.title, summary.labels, summary.pinned) == ("First", ["x"], True)
        copy = await chat.fork((await chat.messages())[-1].id)
        assert outline(await copy.messages()) == [("user", "1"), ("assistant", "One")]
        await chat.archive()
        assert [found.id for found in await user.chats()] == [copy.id]
        assert [found.id for found in await user.chats(archived=True)] == [chat.id]
        with pytest.raises(indelible.NotAllowed):
            await chat.send("2")
        await chat.archive(archived=False)
        await chat.update(title=None)
        assert (await chat.details()).title is None
        await chat.delete()
        with pytest.raises(indelible.NotFound):
            await user.chat(chat.id)
        with pytest.raises(indelible.NotFound):
            await chat.messages()


async def test_lists_search_marks_drafts_files_and_usage(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([say("It is raining in Oslo.")]), **TOOLS) as user:
        chat = await user.create_chat(system="Be brief.")
        async with aclosing(user.events(chat.id)) as tab:
            assert [(await anext(tab)).kind for _ in range(2)] == ["chats", "snapshot"]
            await chat.send("How is the weather?")
            async for event in tab:
                if event.kind == "chat_changed" and event.data["status"] == "idle":
                    break
        await chat.update(labels=["weather"])
        (found,) = await user.chats(search="oslo rain", unread=True, label="weather", pinned=False)
        assert found.match.snippet.text == "It is raining in Oslo."  # type: ignore[union-attr]
        assert found.match.message_id == (await chat.messages())[-1].id  # type: ignore[union-attr]
        assert await user.chats(search="bergen") == await user.chats(unread=False) == []
        await chat.mark_read()
        assert (await user.chats())[0].unread is False
        await chat.save_draft("And in Bergen?")
        await user.save_draft("Next")
        assert (await chat.draft(), await user.draft()) == ("And in Bergen?", "Next")
        details = await chat.details()
        assert (details.labels, details.system, details.draft) == (["weather"], "Be brief.", "And in Bergen?")
        await user.save_draft("")
        assert await user.draft() == ""

        copy = await user.import_chat(await chat.export())
        assert outline(await copy.messages()) == outline(await chat.messages())
        assert b"## Assistant (scripted)\n\nIt is raining in Oslo." in await copy.export("md")
        with pytest.raises(indelible.Invalid):
            await user.import_chat(b"{}")
        used = await user.usage()
        assert (used.total.input_tokens, used.total.output_tokens, used.total.turns) == (3, 5, 1)
        assert [day.user for day in (await user.usage(by_user=True)).days] == ["local"]

        question, answer = await chat.messages()
        page = await chat._service.list_messages(chat.id, after=question.id)
        assert ([item.id for item in page.items], page.next, page.previous) == ([answer.id], answer.id, None)
        page = await chat._service.list_messages(chat.id, limit=1)
        assert ([item.id for item in page.items], page.next, page.previous) == ([answer.id], answer.id, None)
        page = await chat._service.list_messages(chat.id, limit=1, before=answer.id)
        assert ([item.id for item in page.items], page.next, page.previous) == ([question.id], None, question.id)


async def test_a_reply_is_read_on_from_its_cursor(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([hang("One, "), hang("Two, ")]), **TOOLS) as user:
        chat = await user.create_chat()
        async with chat.stream("Count") as reply:
            async for _ in reply:
                break
        seen = reply.text
        await chat.interrupt()
        kinds = []
        async with aclosing(chat.events(after=reply.cursor)) as events:
            async for event in events:
                kinds.append(event.kind)
                seen += "".join(part.text for part in event.parts)
                if event.kind == "status" and event.data["status"] == "idle":
                    break
        assert seen == "One, "
        assert "snapshot" not in kinds
        async with chat.stream("x", if_busy="steer") as other:
            await chat.delete()
            await other.wait()
        assert other.outcome == "deleted"


async def test_what_is_refused_is_the_same_error(open_user: OpenUser, database: str) -> None:
    async with open_user(database, ScriptedModel([]), **TOOLS) as user:
        chat = await user.create_chat()
        with pytest.raises(indelible.NotAllowed):
            await chat.retry()
        with pytest.raises(indelible.Invalid):
            await chat.send("  ")
        with pytest.raises(indelible.NotFound):
            await chat.edit("message_none", "x")
        with pytest.raises(indelible.NotFound):
            await user.chat("chat_none")
        assert await chat.messages() == []


async def test_a_guest_reads_the_same_and_is_refused_the_same(open_pair: OpenPair, database: str) -> None:
    async with open_pair(database, ScriptedModel([say("It is."), hang("Well")])) as (ada, grace, app):
        hers = await ada.create_chat(title="Rain", system="Be brief.")
        await hers.send("Is it raining?")
        await hers.update(labels=["weather"], pinned=True, debug="all")
        await hers.save_draft("And in Bergen?")
        async with hers.stream("And then?") as running:
            async for _ in running:
                break
            queued = await hers.post("Queued")
        with pytest.raises(indelible.NotFound):
            await grace.chat(hers.id)
        await grace.save_draft("Mine")  # whoever stores something is a user
        owner_id = await app.store.owner(hers.id)
        assert owner_id is not None
        await app.shares.share_with_user(hers.id, "grace", owner_id=owner_id)

        chat = await grace.chat(hers.id)
        assert outline(await chat.messages()) == [
            ("user", "Is it raining?"),
            ("assistant", "It is."),
            ("user", "And then?"),
        ]
        assert (await chat.status(), [item.role for item in (await chat.tree()).items]) == (
            "running",
            ["user", "assistant", "user"],
        )
        details = await chat.details()
        assert (details.title, details.labels, details.pinned, details.debug) == ("Rain", [], False, None)
        assert (details.system, details.draft, details.queue) == (None, None, [])
        assert details.live is not None
        async with aclosing(chat.events(after="start")) as events:
            first = await anext(events)
        assert (first.kind, first.data["queue"], first.data["debug"]) == ("snapshot", [], None)
        assert b"Be brief." not in await chat.export()
        assert await grace.chats() == []
        shared = await chat._service.list_chats(shared=True)
        assert [(found.id, found.labels, found.pinned) for found in shared.items] == [(hers.id, [], False)]
        for refused in (
            lambda: chat.post("Mine"),
            chat.queue,
            chat.attempts,
            chat.runs,
            chat.interrupt,
            lambda: chat.update(title="Mine"),
            lambda: chat.fork(details.messages[0].id),
            lambda: chat.switch_branch(details.messages[0].id),
            lambda: chat.delete_queued(str(queued.queued)),
            chat.draft,
            lambda: chat.save_draft("Mine"),
            chat.mark_read,
            chat.delete,
        ):
            with pytest.raises(ReadOnly, match="shared with you for reading"):
                await refused()
        assert (await hers.details()).title == "Rain"
        await hers.interrupt(wait=False)


async def test_files(open_user: OpenUser, database: str, tmp_path: Path) -> None:
    path = tmp_path / "rain.txt"
    path.write_bytes(b"It rains.\n" * 60_000)
    model = ScriptedModel([say("Rain.")])
    async with open_user(database, model, user_max_files=2, **TOOLS) as user:
        file = await user.upload(path)
        other = await user.upload(b"%PDF-1.7", name="dir/paper.pdf")
        assert (file.name, file.media_type, file.size) == ("rain.txt", "text/plain", 600_000)
        assert (other.name, other.media_type, other.has_preview) == ("paper.pdf", "application/pdf", False)
        assert await user.files() == [other, file]
        assert await user.files(limit=1) == [other]
        with pytest.raises(indelible.Refused, match="the limit"):
            await user.upload(b"one more")
        with pytest.raises(indelible.Invalid, match="Can't read"):
            await user.upload(tmp_path / "none.txt")

        chat = await user.create_chat()
        assert (await chat.send(["What is the weather?", file, indelible.Text("Be brief.")])).text == "Rain."
        question = (await chat.messages())[0]
        assert question.blocks == [indelible.Text("What is the weather?"), file.to_block(), indelible.Text("Be brief.")]
        assert await user.read_file(file.id) == path.read_bytes()
        with pytest.raises(indelible.NotAllowed, match="A chat uses this file"):
            await user.delete_file(file.id)
        await user.delete_file(other.id)
        await chat.delete()
        assert await user.files() == []
        with pytest.raises(indelible.NotFound):
            await user.read_file(file.id)
        with pytest.raises(indelible.NotFound, match="File not found"):
            await user.create_chat([file])
