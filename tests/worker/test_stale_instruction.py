"""S91: the instruction to continue a reply is for that reply only, whatever becomes of it.

The rule is in loop/prompt/build.py, and every case of it in tests/loop/test_prompt.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.support.app_harness import AppHarness
from tests.support.messages import outline, read_text
from tests.support.waiting import deadline

from indelible.app.chat import Chat
from indelible.app.reply import Reply
from indelible.content import Part, Text
from indelible.errors import ModelFailed
from indelible.models.protocol import Call
from indelible.store.commands.change import CONTINUE
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script, Step

pytestmark = pytest.mark.both_databases

Resume = Callable[[Chat], Awaitable[Reply]]
FOUR: Script = [parts.text_delta("1", "Four."), parts.finish()]


def read_prompt(call: Call) -> list[tuple[str, str]]:
    return [(message.role, read_text(message.blocks)) for message in call.messages]


async def continue_after_a_crash(harness: AppHarness, *scripts: Script) -> tuple[Chat, ScriptedModel]:
    """A worker died after “Once upon”; the model of the next one has these scripts, of which the first has begun."""
    dying = await harness.start_worker(ScriptedModel([[parts.text_delta("1", "Once upon"), parts.hang()]]))
    chat = await harness.app.create_chat("A story")
    await harness.wait_for_text(chat, "Once upon")
    await harness.kill_worker(dying)
    await harness.retire_worker(dying)
    asked = asyncio.Event()

    def begin(call: Call) -> AsyncIterator[Part]:
        asked.set()
        return ScriptedModel(scripts[:1]).stream(call)

    model = ScriptedModel([begin, *scripts[1:]])
    await harness.start_worker(model)
    async with deadline():
        await asked.wait()
    assert read_prompt(model.calls[0])[-1] == ("user", CONTINUE)
    return chat, model


@pytest.mark.parametrize(
    "thoughts", [[], [parts.reasoning_delta("1", "Well")]], ids=["before the first word", "in thought"]
)
async def test_s91_a_stopped_continuation_leaves_no_instruction_before_another_question(
    harness: AppHarness, thoughts: list[Step]
) -> None:
    chat, model = await continue_after_a_crash(harness, [*thoughts, parts.hang()], FOUR)
    await harness.wait_until(chat, lambda view: view.live is not None and len(view.live.blocks) == len(thoughts))
    await chat.interrupt()
    await chat.send("Two and two?")
    assert read_prompt(model.calls[1]) == [
        ("user", "A story"), ("assistant", "Once upon"), ("user", "Two and two?")
    ]  # fmt: skip


async def test_s91_neither_does_a_failed_one(harness: AppHarness) -> None:
    chat, model = await continue_after_a_crash(harness, ModelFailed("No.", kind="auth"), FOUR)
    await harness.wait_until(chat, lambda view: view.status == "error")
    await chat.send("Two and two?")
    assert ("user", CONTINUE) not in read_prompt(model.calls[1])


@pytest.mark.parametrize("command", [Chat.retry, Chat.continue_], ids=["retry", "continue"])
async def test_s91_whoever_asks_for_it_still_gets_the_rest(harness: AppHarness, command: Resume) -> None:
    """What people see ends with a partial reply, though the model was told to continue it before the stop."""
    going_on: Script = [parts.text_delta("1", " a time."), parts.finish()]
    chat, model = await continue_after_a_crash(harness, [parts.hang()], going_on, FOUR)
    await chat.interrupt()
    assert (await command(chat)).text == " a time."
    assert read_prompt(model.calls[1])[-1] == ("user", CONTINUE)
    await chat.send("Two and two?")
    told = [block.text for message in model.calls[2].messages for block in message.blocks if isinstance(block, Text)]
    assert told == ["A story", "Once upon", CONTINUE, " a time.", "Two and two?"]
    assert outline(await chat.messages())[-1] == ("assistant", "Four.")
