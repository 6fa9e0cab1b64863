"""What was tried and what was recorded, over HTTP: the routes, their pages, the export, and the chat's own mode."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.server.asking import read_problem
from tests.server.serving import QUICK, Here, run_server, say, say_half, wait_until, wait_until_idle
from tests.server.test_http_page import list_examples

from indelible.client import Client
from indelible.errors import Invalid, NotFound
from indelible.server.application import Server
from indelible.settings import load_settings
from indelible.testing import SimulatedProvider
from indelible.testing.model import Script
from indelible.testing.provider.faults import Fault, Status

ONE_RUN = "GET /api/v1/chats/{chat_id}/debug/runs/{run_id}"


@asynccontextmanager
async def serve_recorded(
    database: str, scripts: Sequence[Script], faults: Sequence[Fault | None] = (), **settings: Any
) -> AsyncIterator[tuple[Here, SimulatedProvider]]:
    """A server that asks a simulated provider, and records all of it."""
    async with SimulatedProvider(scripts, faults) as provider:
        model = f"openai:gpt-5.1@{provider.base_url('openai')}"
        given = {**QUICK, "database": database, "port": 0, "model": model, "debug": "all", **settings}
        async with run_server(server := Server(load_settings(**given))) as (url, process), Client(url) as client:
            yield Here(url, client, server, process), provider


async def read_runs(here: Here, chat_id: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many runs that have ended; the newest first."""

    async def are_there() -> bool:
        runs = (await here.client.list_runs(chat_id))["items"]
        return len(runs) == count and all(run["ended_at"] is not None for run in runs)

    await wait_until_idle(here.client, chat_id)
    await wait_until(are_there)
    items: list[dict[str, Any]] = (await here.client.list_runs(chat_id))["items"]
    return items


def list_fields(run: dict[str, Any]) -> list[list[str]]:
    """The names of a run's fields, of its first step's and of that one's first attempt's."""
    step = run["steps"][0]
    return [list(run), list(step), list(step["attempts"][0])]


async def test_a_run_is_told_as_the_page_shows_it_and_can_be_downloaded(database: str) -> None:
    async with serve_recorded(database, [say("Hello.")], [Status(429)]) as (here, provider):
        chat = await here.client.create_chat("Hi")
        (listed,) = await read_runs(here, chat["id"], 1)
        run = await here.client.read_run(chat["id"], listed["id"])
        async with here.ask("GET", f"/chats/{chat['id']}/debug/runs/{listed['id']}?download=true") as response:
            assert response.headers["content-disposition"] == f'attachment; filename="{listed["id"]}.json"'
            assert await response.json() == run
        sent = [request.body for request in provider.requests]

    assert (listed["kind"], listed["status"]) == ("turn", "completed")
    assert (listed["step_count"], listed["attempt_count"]) == (1, 2)
    assert list_fields(run) == list_fields(list_examples(ONE_RUN)[-1])
    refused, heard = run["steps"][0]["attempts"]
    assert [(each["number"], each["status"], each["status_code"]) for each in (refused, heard)] == [
        (1, "completed", 429),
        (2, "completed", 200),
    ]
    assert [json.loads(each["request_body"]) for each in (refused, heard)] == sent
    assert "Hello." in heard["response_body"]


async def test_every_try_is_listed_whether_it_was_recorded_or_not(database: str) -> None:
    async with serve_recorded(database, [say("One."), say_half("Two")], [Status(529)], debug="off") as (here, _):
        chat = await here.client.create_chat("Hi")
        await wait_until_idle(here.client, chat["id"])
        page = await here.client.list_attempts(chat["id"])
        runs = await here.client.list_runs(chat["id"])
    second, first = page["items"]
    assert (first["step"], first["number"], second["number"]) == (1, 1, 2)
    assert (first["outcome"], first["error"]["kind"]) == ("reset", "overloaded")
    assert (second["outcome"], second["error"]) == ("complete", None)
    assert "gpt-5.1" in second["model"]
    assert (page["next"], runs) == (None, {"items": [], "next": None})


async def test_pages_follow_each_other_without_a_gap(database: str) -> None:
    async with serve_recorded(database, [say(f"{number}") for number in range(5)]) as (here, _):
        chat = await here.client.create_chat("0")
        for number in range(1, 5):
            await here.client.send(chat["id"], f"{number}")
        runs = await read_runs(here, chat["id"], 5)
        attempts = (await here.client.list_attempts(chat["id"]))["items"]
        for whole, read in ((runs, here.client.list_runs), (attempts, here.client.list_attempts)):
            found: list[dict[str, Any]] = []
            before: str | None = None
            while True:
                page = await read(chat["id"], before=before, limit=2)
                found += page["items"]
                before = page["next"]
                if before is None:
                    break
            assert found == whole
            assert len(found) == 5
            assert [item["started_at"] for item in found] == sorted((i["started_at"] for i in found), reverse=True)


async def test_a_chat_may_have_its_own_mode(database: str) -> None:
    async with serve_recorded(database, [say("One."), say("Two.")], debug="off") as (here, _):
        chat = await here.client.create_chat("1")
        await wait_until_idle(here.client, chat["id"])
        await here.client.change_chat(chat["id"], debug="all")
        assert (await here.client.list_chats())["items"][0]["debug"] == "all"
        await here.client.send(chat["id"], "2")
        (run,) = await read_runs(here, chat["id"], 1)
        assert run["status"] == "completed"
        await here.client.change_chat(chat["id"], debug=None)
        assert (await here.client.list_chats())["items"][0]["debug"] is None
        with pytest.raises(Invalid):
            await here.client.change_chat(chat["id"], debug="some")


async def test_records_of_a_run_that_still_runs_can_be_read(database: str) -> None:
    async with serve_recorded(database, [say_half("Half")], [Status(529)]) as (here, provider):
        chat = await here.client.create_chat("Hi")
        await provider.wait_for_requests(2)

        async def is_seen() -> bool:
            items = (await here.client.list_runs(chat["id"]))["items"]
            return bool(items) and items[0]["attempt_count"] == 1

        await wait_until(is_seen)
        (listed,) = (await here.client.list_runs(chat["id"]))["items"]
        run = await here.client.read_run(chat["id"], listed["id"])
        assert (run["status"], run["ended_at"], run["steps"][0]["status"]) == ("in_progress", None, "in_progress")
        assert [each["status_code"] for each in run["steps"][0]["attempts"]] == [529]
        await here.client.interrupt(chat["id"], wait_s=10)
        (ended,) = await read_runs(here, chat["id"], 1)
    assert ended["status"] == "interrupted"


async def test_a_run_that_is_not_there_is_a_problem(database: str) -> None:
    async with serve_recorded(database, [say("Hello.")]) as (here, _):
        chat, other = await here.client.create_chat("Hi"), await here.client.create_chat()
        (run,) = await read_runs(here, chat["id"], 1)
        for chat_id, run_id in ((chat["id"], "run_nope"), (other["id"], run["id"])):
            with pytest.raises(NotFound, match="no such run"):
                await here.client.read_run(chat_id, run_id)
        for path in ("attempts?limit=0", "debug/runs?limit=201", "debug/runs?before=%00"):
            async with here.ask("GET", f"/chats/{chat['id']}/{path}") as response:
                assert (await read_problem(response))["kind"] in {"invalid", "not_found"}
        await here.client.delete_chat(chat["id"])
        with pytest.raises(NotFound):
            await here.client.list_runs(chat["id"])
