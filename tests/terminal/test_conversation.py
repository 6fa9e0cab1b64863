"""A chat in memory: what it keeps, and what it tells the model."""

from __future__ import annotations

import io

from indelible.content import Message, Part, Text, TextDelta, ToolProgress
from indelible.errors import ModelFailed
from indelible.loop import Scope
from indelible.models.demo import DemoModel
from indelible.settings import load_settings
from indelible.terminal import Conversation, answer_lines, make_demo_tools
from indelible.testing import ManualClock, ScriptedModel, parts


def texts(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in conversation.history]


async def test_a_stopped_reply_is_kept_and_the_notice_never_reaches_the_model() -> None:
    model = ScriptedModel(
        [[parts.text_delta("1", "Once upon"), parts.hang()], [parts.text_delta("1", "Yes."), parts.finish()]]
    )
    conversation = Conversation(model, clock=ManualClock())
    told: list[str] = []
    scope = Scope()

    def stop_at_text(part: Part) -> None:
        if isinstance(part, TextDelta):
            scope.interrupt()

    assert not await conversation.reply("A story?", scope=scope, publish=stop_at_text, tell=told.append)
    assert told == ["Stopped by you. What was said is kept."]
    assert texts(conversation) == [("user", "A story?"), ("assistant", "Once upon"), ("notice", told[0])]
    assert conversation.history[1].partial

    assert await conversation.reply("Still there?", scope=Scope(), publish=lambda part: None, tell=told.append)
    assert [(message.role, message.blocks) for message in model.calls[1].messages] == [
        ("user", [Text(text="A story?")]),
        ("assistant", [Text(text="Once upon")]),
        ("user", [Text(text="Still there?")]),
    ]
    assert len(told) == 1


async def test_a_failed_reply_is_told_in_words_and_the_chat_goes_on() -> None:
    failure = ModelFailed("The provider does not accept the key.", kind="auth")
    model = ScriptedModel([failure, [parts.text_delta("1", "Hello."), parts.finish()]])
    conversation = Conversation(model, clock=ManualClock())
    told: list[str] = []
    assert not await conversation.reply("Hi", scope=Scope(), publish=lambda part: None, tell=told.append)
    assert told == ["The provider does not accept the key."]
    assert await conversation.reply("Hi", scope=Scope(), publish=lambda part: None, tell=told.append)
    assert conversation.history[-1] == Message(
        role="assistant", blocks=[Text(text="Hello.")], provider="scripted", model="scripted"
    )


async def test_a_retry_is_announced() -> None:
    failure = ModelFailed("The provider is overloaded.", kind="overloaded")
    model = ScriptedModel([failure, [parts.text_delta("1", "Hello."), parts.finish()]])
    conversation = Conversation(model, clock=ManualClock(skip_sleeps=True))
    told: list[str] = []
    assert await conversation.reply("Hi", scope=Scope(), publish=lambda part: None, tell=told.append)
    (announcement,) = told
    assert announcement.startswith("The provider is overloaded. Trying again in ")


async def test_the_demo_tools_run_and_say_how_far_they_are() -> None:
    clock = ManualClock(skip_sleeps=True)
    tools = make_demo_tools(clock, pace_s=0.02)
    conversation = Conversation(DemoModel(clock, pace_s=0), clock=clock, tools=tools)
    published: list[Part] = []
    assert await conversation.reply("roll a die", scope=Scope(), publish=published.append, tell=print)
    assert next(part.text for part in published if isinstance(part, ToolProgress)) == "it rolls"
    assert any(f"**{number}**" in conversation.history[-1].text for number in range(1, 7))
    assert await conversation.reply("what time is it?", scope=Scope(), publish=published.append, tell=print)
    assert str(clock.now().astimezone().year) in conversation.history[-1].text


def test_without_a_terminal_each_line_is_answered_and_a_failure_is_the_exit_status() -> None:
    model = ScriptedModel([[parts.text_delta("1", "One."), parts.finish()], ModelFailed("It broke."), [parts.finish()]])
    out, errors = io.StringIO(), io.StringIO()
    conversation = Conversation(model, clock=ManualClock())
    assert answer_lines(conversation, ["first\n", "  \n", "second\n"], out=out, errors=errors) == 1
    assert out.getvalue() == "One.\n\n\n"
    assert errors.getvalue() == "It broke.\n"
    assert answer_lines(conversation, ["third\n"], out=out, errors=errors) == 0


async def test_the_settings_limit_a_turn() -> None:
    call = [parts.tool_call("c1", "none", "{}"), parts.finish("tool_calls")]
    model = ScriptedModel([call, call])
    conversation = Conversation(model, clock=ManualClock(), settings=load_settings(max_steps=2))
    assert await conversation.reply("go", scope=Scope(), publish=lambda part: None, tell=lambda text: None)
    assert len(model.calls) == 2
