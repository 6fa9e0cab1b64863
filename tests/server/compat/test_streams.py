"""Streams of the compatible APIs while servers and workers come and go: nothing is repeated, nothing is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from tests.server.compat.compat_clients import open_openai, text_of_events
from tests.support.app_harness import AppHarness
from tests.support.running_server import say, say_half
from tests.support.waiting import deadline

from indelible.testing import ScriptedModel


async def test_a_response_goes_on_after_its_worker_died_and_a_replay_has_the_same_events(harness: AppHarness) -> None:
    dying = await harness.start_worker(ScriptedModel([say_half("Once", " upon")]))
    server = await harness.start_server(worker=False, model="demo")
    async with open_openai(server) as client, deadline():
        seen: list[Any] = []
        stream = await client.responses.create(input="A story", background=True, stream=True)
        async for event in stream:
            seen.append(event)
            if text_of_events(seen) == "Once upon":
                break
        response_id = seen[0].response.id
        await harness.kill_worker(dying)
        await harness.retire_worker(dying)
        await harness.start_worker(ScriptedModel([say(" a time.")]))
        rest = [event async for event in stream]
        live = [*seen, *rest]
        assert text_of_events(live) == "Once upon a time."
        assert [item.status for item in live[-1].response.output] == ["incomplete", "completed"]
        for start in (-1, len(seen) - 1):
            replayed = await client.responses.retrieve(response_id, stream=True, starting_after=start)
            assert [event async for event in replayed] == live[start + 1 :]


async def test_a_disconnect_at_the_first_event_leaves_nothing_stuck(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("Hello.")]))
    async with open_openai(server) as client, deadline():
        stream = await client.responses.create(input="Hi", stream=True)
        first: Any = await anext(aiter(stream))
        await stream.close()
        await server.wait_for_readers(0)
        replayed = await client.responses.retrieve(first.response.id, stream=True)
        assert text_of_events([event async for event in replayed]) == "Hello."


async def test_a_stream_ends_with_its_server_and_is_resumed_on_the_next(harness: AppHarness) -> None:
    """Two servers on one database: the first one shuts down, its client notices and continues on the second."""
    worker = await harness.start_worker(ScriptedModel([say_half("Once")]))
    leaving = await harness.start_server(worker=False, model="demo")
    other = await harness.start_server(worker=False, model="demo")
    async with open_openai(leaving) as client, open_openai(other) as elsewhere, deadline():
        seen: list[Any] = []
        stream = await client.responses.create(input="Hi", stream=True, background=True)

        async def read() -> None:
            async for event in stream:
                seen.append(event)
                if event.type == "response.output_text.delta":
                    leaving.process.shut_down()

        with pytest.raises(openai.APIConnectionError):
            await read()
        assert seen[-1].type == "response.output_text.delta"
        await harness.stop_worker(worker)
        await harness.start_worker(ScriptedModel([say(" upon.")]))
        resumed = await elsewhere.responses.retrieve(
            seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
        )
        rest = [event async for event in resumed]
        assert text_of_events([*seen, *rest]) == "Once upon."
        assert rest[-1].type == "response.completed"


async def test_ten_readers_of_one_response_get_the_same(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("Hello.")]))
    async with open_openai(server) as client, deadline():
        made = await client.responses.create(input="Hi", background=True)

        async def read() -> list[Any]:
            stream = await client.responses.retrieve(made.id, stream=True)
            return [event async for event in stream]

        read_all = await asyncio.gather(*(read() for _ in range(10)))
        assert all(events == read_all[0] for events in read_all)
