"""Following a chat: the same is shown wherever a reader joins, and a reply that was cut is shown as one."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.waiting import Watched, poll_until

from indelible.app.app import App
from indelible.app.chat import Chat
from indelible.client.client import RemoteService
from indelible.client.http_transport import HttpTransport, ServerFailed
from indelible.clock import SystemClock
from indelible.content import (
    Block,
    Part,
    Reasoning,
    ReasoningDelta,
    ReasoningEnd,
    Text,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolResult,
)
from indelible.content.assemble import assemble
from indelible.errors import ModelFailed
from indelible.models import Call
from indelible.terminal.feed_view import ChatSetup, FeedView, Stage, to_parts
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.tools import tool

OpenApp = Callable[..., AbstractAsyncContextManager[App]]

REPLY: list[Part] = [
    parts.reasoning_start("r"),
    parts.reasoning_delta("r", "Let me "),
    parts.reasoning_delta("r", "see."),
    parts.reasoning_end("r"),
    parts.text_start("t"),
    parts.text_delta("t", "Once "),
    parts.text_delta("t", "upon"),
    parts.text_end("t"),
    parts.text_start("u"),
    parts.text_delta("u", "a time"),
    parts.text_delta("u", "."),
    parts.finish(),
]


class Listener(Watched, Stage):
    """A stage that notes what it is shown, speech joined as a reader would see it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._open: tuple[str, str] | None = None

    def show(self, part: Part) -> None:
        if isinstance(part, TextDelta | ReasoningDelta):
            speech = (type(part).__name__.removesuffix("Delta"), part.id)
            if self._open != speech:
                self.seen.append(f"{speech[0]}: ")
            self._open = speech
            self.seen[-1] += part.delta
        elif isinstance(part, TextEnd | ReasoningEnd):
            self._open = None
        elif isinstance(part, ToolResult):
            self.seen.append(f"{part.name} → {part.output}")
        self.changed()

    def begin_attempt(self) -> None:
        self.seen.append("begin")
        self.changed()

    def end_attempt(self, *, cut: bool) -> None:
        self._open = None
        self.seen.append("cut" if cut else "end")

    def drop_attempt(self) -> None:
        self._open = None
        self.seen.append("drop")

    def quote(self, text: str) -> None:
        self.seen.append(f"you: {text}")
        self.changed()

    def note(self, text: str) -> None:
        self.seen.append(f"note: {text}")

    def announce(self, text: str) -> None:
        self.seen.append(f"meanwhile: {text}")


async def test_a_server_that_is_away_is_announced_until_it_is_back() -> None:
    with socket.socket() as away:
        away.bind(("127.0.0.1", 0))  # and nobody listens
        url, listener = f"http://127.0.0.1:{away.getsockname()[1]}", Listener()
        async with HttpTransport(url, clock=ManualClock(skip_sleeps=True)) as http:
            feed_view = FeedView(Chat(RemoteService(http), "chat_1"), clock=SystemClock())
            with pytest.raises(ServerFailed):
                await feed_view.follow(listener)
    (announced,) = listener.seen
    assert announced.startswith("meanwhile: The server is unreachable: can't connect to 127.0.0.1")
    assert re.search(r"Trying again for 2\d s\.$", announced)


async def ask(app: App, words: str) -> tuple[Chat, list[str]]:
    """Say something in a new chat, and follow it from there."""
    feed_view, listener = await ChatSetup().create_chat(app, clock=app.clock), Listener()
    await feed_view.follow(listener, await feed_view.chat.post(words))
    return feed_view.chat, listener.seen


@pytest.mark.parametrize("joined_at", range(len(REPLY)))
async def test_a_reader_that_joins_anywhere_is_shown_the_same(open_chats: OpenApp, joined_at: int) -> None:
    joined = asyncio.Event()

    async def wait_for_the_reader(call: Call) -> AsyncIterator[Part]:
        for part in REPLY[:joined_at]:
            yield part
        await joined.wait()
        for part in REPLY[joined_at:]:
            yield part

    async with open_chats(ScriptedModel([wait_for_the_reader])) as app:
        chat = await app.create_chat("Well?")
        said = assemble(REPLY[:joined_at])

        async def is_said() -> bool:
            live = (await app.feed.snapshot(chat.id)).live
            return live is not None and read_all(live.blocks) == read_all(said)

        await poll_until(is_said, what="the reply up to there")
        listener = Listener()
        following = asyncio.create_task(FeedView(chat, clock=app.clock).follow(listener))
        await listener.wait_until(lambda: bool(listener.seen))
        joined.set()
        await following
    assert listener.seen == ["you: Well?", "begin", "Reasoning: Let me see.", "Text: Once upon", "Text: a time.", "end"]


def read_all(blocks: list[Block]) -> list[str]:
    """What was said, without the times at which it was."""
    return [block.text for block in blocks]


async def test_one_s_own_words_are_not_quoted_and_those_of_the_queue_are(open_chats: OpenApp) -> None:
    model = ScriptedModel([[parts.text_delta("1", answer), parts.finish()] for answer in ("One.", "Two.")])
    async with open_chats(model) as app:
        feed_view, listener = await ChatSetup().create_chat(app, clock=app.clock), Listener()
        sent = await feed_view.chat.post("first")
        await feed_view.chat.post("second")
        await feed_view.follow(listener, sent)
        if "Text: Two." not in listener.seen:  # the second came when the first was answered already
            await feed_view.follow(listener)
    said = [seen for seen in listener.seen if seen not in {"begin", "end"}]
    assert said == ["Text: One.", "you: second", "Text: Two."]


async def test_a_reply_that_fails_in_its_text_is_cut_and_is_continued(open_chats: OpenApp) -> None:
    overloaded = ModelFailed("The provider is overloaded.", kind="overloaded")
    model = ScriptedModel(
        [[parts.text_delta("1", "Once "), overloaded], [parts.text_delta("1", "upon a time."), parts.finish()]]
    )
    async with open_chats(model) as app:
        chat, seen = await ask(app, "A story")
        assert seen == [
            *("begin", "Text: Once ", "cut"),
            "meanwhile: The provider is overloaded. Trying again in 0 s.",
            *("begin", "Text: upon a time.", "end"),
        ]
        again = Listener()
        await FeedView(chat, clock=app.clock).follow(again)
    assert again.seen == ["you: A story", "begin", "Text: Once ", "cut", "begin", "Text: upon a time.", "end"]


async def test_thinking_that_comes_to_nothing_is_dropped(open_chats: OpenApp) -> None:
    overloaded = ModelFailed("The provider is overloaded.", kind="overloaded")
    model = ScriptedModel(
        [[parts.reasoning_delta("1", "Hm."), overloaded], [parts.text_delta("1", "Yes."), parts.finish()]]
    )
    async with open_chats(model) as app:
        _, seen = await ask(app, "Well?")
    meanwhile = "meanwhile: The provider is overloaded. Trying again in 0 s."
    assert seen == ["begin", "Reasoning: Hm.", "drop", meanwhile, "begin", "Text: Yes.", "end"]


async def test_a_tool_s_answer_is_shown_once_as_it_comes_and_again_when_the_chat_is_resumed(
    open_chats: OpenApp,
) -> None:
    @tool
    def weather(city: str) -> str:
        """Tell the weather."""
        return f"{city}: rain"

    call = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]
    model = ScriptedModel([call, [parts.text_delta("1", "It rains."), parts.finish()]])
    async with open_chats(model, tools=[weather]) as app:
        chat, seen = await ask(app, "Well?")
        assert seen == ["begin", "weather → Oslo: rain", "end", "begin", "Text: It rains.", "end"]
        again = Listener()
        await FeedView(chat, clock=app.clock).follow(again)
    assert again.seen == ["you: Well?", "begin", "end", "weather → Oslo: rain", "begin", "Text: It rains.", "end"]


async def test_the_answer_to_a_call_that_was_cut_off_is_shown(open_chats: OpenApp) -> None:
    model = ScriptedModel(
        [[parts.tool_input_start("c1", "weather"), parts.tool_input_delta("c1", '{"ci'), parts.hang()]]
    )
    async with open_chats(model) as app:
        feed_view, listener = await ChatSetup().create_chat(app, clock=app.clock), Listener()
        sent = await feed_view.chat.post("Well?")

        async def has_begun() -> bool:
            live = (await app.feed.snapshot(feed_view.chat.id)).live
            return live is not None and bool(live.blocks)

        await poll_until(has_begun, what="the call")
        await feed_view.chat.interrupt(wait=False)
        await feed_view.follow(listener, sent)
    begun, ended, answered, noted = listener.seen
    assert (begun, ended, noted) == ("begin", "end", "note: Stopped by you.")
    assert answered.startswith("weather → ")


async def test_a_deleted_chat_is_announced(open_chats: OpenApp) -> None:
    async with open_chats(ScriptedModel([[parts.hang()]])) as app:
        feed_view, listener = await ChatSetup().create_chat(app, clock=app.clock), Listener()
        sent = await feed_view.chat.post("Well?")
        following = asyncio.create_task(feed_view.follow(listener, sent))
        await listener.wait_until(lambda: bool(listener.seen))
        await feed_view.chat.delete()
        await following
    assert listener.seen[-1] == "note: The chat was deleted."


def test_blocks_spelled_out_say_what_the_blocks_say() -> None:
    blocks: list[Block] = [
        Reasoning(text="Hm."),
        Text(text="One."),
        Text(text="Two."),
        ToolCall(id="c", name="t", arguments="{}"),
        ToolResult(call_id="c", name="t", output="1"),
    ]
    assert assemble(to_parts(blocks)) == blocks
    assert [type(part).__name__ for part in to_parts(blocks[1:2], is_open=True)] == ["TextStart", "TextDelta"]
