"""What requests cost: statements, counted where they go to the driver, and files of ours that take part.

The numbers are upper bounds that a change may lower. The worker has a database of its own here, so its statements do
not count; nor does what the server sends without being asked: the feed's polls, the search for stops, and the look at
the token, which happens now and then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.server.compat.compat_clients import open_openai
from tests.store.statements import counted
from tests.support.app_harness import AppHarness
from tests.support.engine import OpenDatabase
from tests.support.executed_files import watching_files
from tests.support.running_server import RunningServer, has_text, read_until, say, say_half
from tests.support.waiting import poll_until

from indelible.testing import ScriptedModel

UNASKED = (
    "SELECT c.id, c.owner_id, c.seq, a.id AS attempt_id",
    "SELECT c.id, t.id AS turn_id",
    "SELECT c.id, c.user_id",
)


@contextmanager
def counting(server: RunningServer) -> Iterator[list[str]]:
    database = server.app.store.database
    assert isinstance(database, OpenDatabase)
    asked: list[str] = []
    with counted(database) as sent:
        yield asked
    asked += [each for each in (" ".join(sql.split()) for sql in sent) if not each.startswith(UNASKED)]


async def start(harness: AppHarness, model: ScriptedModel) -> RunningServer:
    await harness.start_worker(model)
    return await harness.start_server(model, worker=False)


@pytest.mark.both_databases
@pytest.mark.parametrize("background", [False, True])
async def test_a_response_that_continues_another_costs_at_most_fourteen_statements(
    harness: AppHarness, background: bool
) -> None:
    server = await start(harness, ScriptedModel([say("One."), say("Two.")]))
    async with open_openai(server) as client:
        first = await client.responses.create(input="First?")
        with counting(server) as statements:
            second = await client.responses.create(
                input="Second?", previous_response_id=first.id, background=background
            )
        assert len(statements) <= 14, statements
        assert not [each for each in statements if "SELECT owner_id" in each]

        async def is_complete() -> bool:
            return (await client.responses.retrieve(second.id)).output_text == "Two."

        await poll_until(is_complete, what="the second response")


@pytest.mark.both_databases
async def test_a_chat_costs_at_most_five_statements(harness: AppHarness) -> None:
    server = await start(harness, ScriptedModel([say("One.")]))
    async with open_openai(server) as client:
        made = await client.responses.create(input="First?")
    (chat,) = (await server.client.list_chats())["items"]
    with counting(server) as statements:
        assert (await server.client.get_chat(chat["id"]))["status"] == "idle"
    assert len(statements) <= 5, statements
    assert made.output_text == "One."


@pytest.mark.both_databases
async def test_a_stop_over_http_costs_at_most_24_statements(harness: AppHarness) -> None:
    server = await start(harness, ScriptedModel([say_half("Hel", "lo")]))
    chat_id = (await server.client.create_chat("Hi"))["id"]
    await read_until(server.client, chat_id, has_text("Hello"))
    with counting(server) as statements:
        stopped = await server.client.interrupt(chat_id, wait_s=60)
    assert (stopped["stopped"], stopped["status"]) == (True, "idle")
    assert len(statements) <= 24, statements


async def test_a_stop_over_http_executes_few_files(harness: AppHarness) -> None:
    with watching_files() as executed:
        server = await start(harness, ScriptedModel([say_half("Hel", "lo")]))
        chat_id = (await server.client.create_chat("Hi"))["id"]
        await read_until(server.client, chat_id, has_text("Hello"))
        with executed.counting() as files:
            await server.client.interrupt(chat_id)
        assert "store/commands/facts.py" in files
        assert len(files) <= 60, sorted(files)
