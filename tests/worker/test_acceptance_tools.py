"""What people see of a running tool, and what becomes of it (rule 10.8): S73, on both databases."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.app_harness import AppHarness
from tests.support.messages import find_reply
from tests.worker.dead_worker import die_after

from indelible.app.chat import Chat
from indelible.content import Block, ToolCall, ToolProgress, ToolResult
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script
from indelible.tools.tool import ToolContext

pytestmark = pytest.mark.both_databases

CALL: Script = [parts.tool_call("c", "dig", "{}"), parts.finish("tool_calls")]
DONE: Script = [parts.text_delta("1", "Done"), parts.finish()]


async def dig(context: ToolContext) -> str:
    """Digs, and says how deep it is."""
    await context.progress("one metre")
    await context.progress("two metres")
    await asyncio.Event().wait()
    return "never"


async def dig_quickly(context: ToolContext) -> str:
    await context.progress("one metre")
    return "A hole"


def find_progress(blocks: list[Block]) -> str:
    return "".join(block.progress for block in blocks if isinstance(block, ToolCall))


def find_result(prompted: Call) -> str:
    (output,) = [block.output for entry in prompted.messages for block in entry.blocks if isinstance(block, ToolResult)]
    assert isinstance(output, str)
    return output


async def load_result(chat: Chat) -> ToolResult:
    blocks = [block for message in await chat.messages() for block in message.blocks]
    (result,) = [block for block in blocks if isinstance(block, ToolResult)]
    return result


async def start_digging(harness: AppHarness, model: ScriptedModel) -> Chat:
    await harness.start_worker(model, tools=[dig])
    chat = await harness.app.create_chat()
    await chat.post("Dig")
    await harness.wait_until(
        chat, lambda view: view.live is not None and "two metres" in find_progress(view.live.blocks)
    )
    return chat


async def test_s73_progress_is_part_of_the_running_reply(harness: AppHarness) -> None:
    chat = await start_digging(harness, ScriptedModel([CALL]))
    snapshot = await harness.feed.snapshot(chat.id)
    assert snapshot.live is not None
    assert find_progress(snapshot.live.blocks) == "one metre\ntwo metres"
    await chat.interrupt()


async def test_s73_progress_stays_with_the_result_of_a_stopped_tool_and_the_model_hears_of_it(
    harness: AppHarness,
) -> None:
    model = ScriptedModel([CALL, DONE])
    chat = await start_digging(harness, model)
    await chat.interrupt()
    (result,) = [
        block for message in await chat.messages() for block in message.blocks if isinstance(block, ToolResult)
    ]
    assert (result.is_error, result.progress) == (True, "one metre\ntwo metres")
    assert find_progress(find_reply(await chat.messages()).blocks) == ""
    await chat.send("How deep is it?")
    assert find_result(model.calls[1]).startswith(
        "Interrupted: the user stopped the reply while this tool was running."
    )
    assert find_result(model.calls[1]).endswith("Its progress until then:\none metre\ntwo metres")


async def test_s73_progress_of_a_tool_that_ended_stays_with_its_result_and_is_no_part_of_it(
    harness: AppHarness,
) -> None:
    model = ScriptedModel([[parts.tool_call("c", "dig_quickly", "{}"), parts.finish("tool_calls")], DONE])
    await harness.start_worker(model, tools=[dig_quickly])
    chat = await harness.app.create_chat()
    await chat.send("Dig")
    (result,) = [
        block for message in await chat.messages() for block in message.blocks if isinstance(block, ToolResult)
    ]
    assert (result.output, result.progress) == ("A hole", "one metre")
    assert find_result(model.calls[1]) == "A hole"


async def test_s73_the_model_hears_how_far_a_tool_had_come_whose_worker_died(harness: AppHarness) -> None:
    chat = await harness.app.create_chat()
    await chat.post("Dig")
    dead = await die_after(harness, chat, parts.tool_call("c", "dig", "{}"), parts.finish("tool_calls"))
    await dead.start_tool(0, "c", "dig")
    await dead.write(ToolProgress("c", "one metre"))
    model = ScriptedModel([DONE])
    await harness.start_worker(model, tools=[dig])
    await harness.wait_for_end(chat)
    told = find_result(model.calls[0])
    assert told.startswith("Outcome unknown")
    assert told.endswith("Its progress until then:\none metre")


async def test_s73_only_the_last_16_kib_are_kept(harness: AppHarness) -> None:
    async def shout(context: ToolContext) -> str:
        for number in range(40):
            await context.progress(f"{number} " + "é" * 500)
        return "Silence"

    model = ScriptedModel([[parts.tool_call("c", "shout", "{}"), parts.finish("tool_calls")], DONE])
    await harness.start_worker(model, tools=[shout])
    chat = await harness.app.create_chat()
    await chat.send("Shout")
    (result,) = [
        block for message in await chat.messages() for block in message.blocks if isinstance(block, ToolResult)
    ]
    assert len(result.progress.encode()) <= 16 * 1024
    assert result.progress.startswith("…")
    assert result.progress.endswith("39 " + "é" * 500)
