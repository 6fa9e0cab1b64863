"""What was tried and what was recorded, over HTTP: the routes, their pages, the export, and the chat's own mode."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.server.asking import read_problem
from tests.server.test_http_page import list_examples
from tests.support.app_harness import AppHarness, serve_app
from tests.support.running_server import RunningServer, say, say_half, wait_until_idle
from tests.support.waiting import poll_until

from indelible.api.records import AttemptRecord, RunRecord, StepRecord
from indelible.errors import Invalid, NotFound
from indelible.ids import new_id
from indelible.testing import SimulatedProvider
from indelible.testing.model import Script
from indelible.testing.provider.faults import Fault, Status

SAID = {"request_headers", "request_body", "response_headers", "response_body"}
ONE_RUN = "GET /api/v1/chats/{chat_id}/debug/runs/{run_id}"


@asynccontextmanager
async def serve_recorded(
    database: str, scripts: Sequence[Script], faults: Sequence[Fault | None] = (), **settings: Any
) -> AsyncIterator[tuple[RunningServer, SimulatedProvider]]:
    """A server that asks a simulated provider, and records all of it."""
    async with SimulatedProvider(scripts, faults) as provider:
        model = f"openai:gpt-5.1@{provider.base_url('openai')}"
        async with serve_app(database, model, **{"debug": "all", **settings}) as server:
            yield server, provider


async def read_runs(server: RunningServer, chat_id: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many runs that have ended; the newest first."""

    async def are_there() -> bool:
        runs = (await server.client.list_runs(chat_id))["items"]
        return len(runs) == count and all(run["ended_at"] is not None for run in runs)

    await wait_until_idle(server.client, chat_id)
    await poll_until(are_there)
    items: list[dict[str, Any]] = (await server.client.list_runs(chat_id))["items"]
    return items


async def record_run(server: RunningServer, chat_id: str, *, exchanges: int = 1, body: str = "{}") -> str:
    """A run with one step and so many exchanges, as a worker would have recorded it."""
    app = server.app
    known: dict[str, Any] = {"status": "completed", "started_at": app.clock.now(), "ended_at": app.clock.now()}
    run = RunRecord(id=new_id("run"), chat_id=chat_id, turn_id=None, kind="turn", worker_id="w", **known)
    said = {**known, "method": "POST", "url": "https://provider.test", "request_body": body, "response_body": body}
    numbers = range(1, exchanges + 1)
    place: dict[str, Any] = {"chat_id": chat_id, "run_id": run.id, "step": 1}
    attempts = [AttemptRecord(**place, number=number, **said) for number in numbers]
    assert await app.records.write([run, StepRecord(**place, **known), *attempts]) == 0
    return run.id


def list_fields(run: dict[str, Any]) -> list[list[str]]:
    """The names of a run's fields, of its first step's and of that one's first attempt's."""
    step = run["steps"][0]
    return [list(run), list(step), list(step["attempts"][0])]


async def test_a_run_is_described_as_the_page_shows_it_and_can_be_downloaded(database: str) -> None:
    async with serve_recorded(database, [say("Hello.")], [Status(429)]) as (server, provider):
        chat = await server.client.create_chat("Hi")
        (listed,) = await read_runs(server, chat["id"], 1)
        run = await server.client.read_run(chat["id"], listed["id"])
        async with server.request("GET", f"/chats/{chat['id']}/debug/runs/{listed['id']}?download=true") as response:
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
    async with serve_recorded(database, [say("One."), say_half("Two")], [Status(529)], debug="off") as (server, _):
        chat = await server.client.create_chat("Hi")
        await wait_until_idle(server.client, chat["id"])
        page = await server.client.list_attempts(chat["id"])
        runs = await server.client.list_runs(chat["id"])
    second, first = page["items"]
    assert (first["step"], first["number"], second["number"]) == (1, 1, 2)
    assert (first["outcome"], first["error"]["kind"]) == ("reset", "overloaded")
    assert (second["outcome"], second["error"]) == ("complete", None)
    assert "gpt-5.1" in second["model"]
    assert (page["next"], runs) == (None, {"items": [], "next": None, "previous": None})


async def test_pages_follow_each_other_without_a_gap(database: str) -> None:
    async with serve_recorded(database, [say(f"{number}") for number in range(5)]) as (server, _):
        chat = await server.client.create_chat("0")
        for number in range(1, 5):
            await server.client.send(chat["id"], f"{number}")
        runs = await read_runs(server, chat["id"], 5)
        attempts = (await server.client.list_attempts(chat["id"]))["items"]
        for whole, read in ((runs, server.client.list_runs), (attempts, server.client.list_attempts)):
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
    async with serve_recorded(database, [say("One."), say("Two.")], debug="off") as (server, _):
        chat = await server.client.create_chat("1")
        await wait_until_idle(server.client, chat["id"])
        assert (await server.client.update_chat(chat["id"], debug="all"))["debug"] == "all"
        assert (await server.client.get_chat(chat["id"]))["debug"] == "all"
        assert (await server.client.list_chats())["items"][0]["debug"] == "all"
        await server.client.send(chat["id"], "2")
        (run,) = await read_runs(server, chat["id"], 1)
        assert run["status"] == "completed"
        await server.client.update_chat(chat["id"], debug=None)
        assert (await server.client.list_chats())["items"][0]["debug"] is None
        with pytest.raises(Invalid):
            await server.client.update_chat(chat["id"], debug="some")


async def test_records_of_a_run_that_still_runs_can_be_read(database: str) -> None:
    async with serve_recorded(database, [say_half("Half")], [Status(529)]) as (server, provider):
        chat = await server.client.create_chat("Hi")
        await provider.wait_for_requests(2)

        async def is_seen() -> bool:
            items = (await server.client.list_runs(chat["id"]))["items"]
            return bool(items) and items[0]["attempt_count"] == 1

        await poll_until(is_seen)
        (listed,) = (await server.client.list_runs(chat["id"]))["items"]
        run = await server.client.read_run(chat["id"], listed["id"])
        assert (run["status"], run["ended_at"], run["steps"][0]["status"]) == ("in_progress", None, "in_progress")
        assert [each["status_code"] for each in run["steps"][0]["attempts"]] == [529]
        await server.client.interrupt(chat["id"], wait_s=60)
        (ended,) = await read_runs(server, chat["id"], 1)
    assert ended["status"] == "interrupted"


# --- a large run ---


async def test_without_bodies_a_run_is_a_tree_with_sizes(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()
    run_id = await record_run(server, chat["id"], exchanges=2, body="é" * 50)
    whole = await server.client.read_run(chat["id"], run_id)
    tree = await server.client.read_run(chat["id"], run_id, bodies=False)
    for exchange, line in zip(whole["steps"][0].pop("attempts"), tree["steps"][0].pop("attempts"), strict=True):
        assert (line.pop("request_bytes"), line.pop("response_bytes")) == (100, 100)
        assert exchange == {**line, **{name: value for name, value in exchange.items() if name in SAID}}
    assert tree == whole
    async with server.request("GET", f"/chats/{chat['id']}/debug/runs/{run_id}?bodies=some") as response:
        problem = await read_problem(response)
        assert (problem["status"], "bodies" in problem["detail"]) == (422, True)


@pytest.mark.may_log("an export was truncated")
async def test_a_run_that_is_deleted_while_it_is_sent_is_cut_and_never_taken_for_a_whole_one(
    harness: AppHarness,
) -> None:
    """The run is larger than whatever can be under way, so the server stands in the middle of it until it is read."""
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()
    run_id = await record_run(server, chat["id"], exchanges=60, body="x" * 256 * 1024)
    async with server.request("GET", f"/chats/{chat['id']}/debug/runs/{run_id}") as response:
        assert (response.status, response.content_type) == (200, "application/json")
        await response.content.readexactly(1)
        await server.client.delete_chat(chat["id"])
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    with pytest.raises(NotFound):
        await server.client.read_run(chat["id"], run_id)


# --- what is not there ---


async def test_a_run_that_is_not_there_is_a_problem(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat, other = await server.client.create_chat(), await server.client.create_chat()
    run_id = await record_run(server, chat["id"])
    names = ("run_nope", "%00", "%F0%9F%98%80", "%27", "x" * 5000, "%2E%2E")
    for chat_id, name in ((other["id"], run_id), *((chat["id"], name) for name in names)):
        for query in ("", "?bodies=false", "?download=true"):
            async with server.request("GET", f"/chats/{chat_id}/debug/runs/{name}{query}") as response:
                problem = await read_problem(response)
                assert (problem["status"], problem["kind"]) == (404, "not_found")
                assert "content-disposition" not in response.headers
    await server.client.delete_chat(chat["id"])
    with pytest.raises(NotFound):
        await server.client.list_runs(chat["id"])


@pytest.mark.parametrize("path", ["attempts", "debug/runs"])
async def test_a_page_that_can_not_be_is_a_problem_that_says_why(harness: AppHarness, path: str) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()
    wrong = {
        "0": ">= 1",
        "201": "<= 200",
        "many": "Expected `int`",
        "": "Expected `int`",
    }
    for limit, why in wrong.items():
        async with server.request("GET", f"/chats/{chat['id']}/{path}?limit={limit}") as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (422, "invalid")
            assert "query.limit" in problem["detail"]
            assert why in problem["detail"]
    for garbage in ("%00", "%F0%9F%98%80"):
        async with server.request("GET", f"/chats/{chat['id']}/{path}?before={garbage}") as response:
            assert (await read_problem(response))["status"] == 404
        async with server.request("GET", f"/chats/{garbage}/{path}") as response:
            assert (await read_problem(response))["status"] == 404


async def test_a_page_from_below_a_run_of_another_chat_shows_runs_of_this_one_only(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat, other = await server.client.create_chat(), await server.client.create_chat()
    first, between, last = [await record_run(server, each["id"]) for each in (chat, other, chat)]
    for before, shown in ((between, [first]), (first, []), ("zzz", [last, first]), ("~", [last, first]), ("0", [])):
        page = await server.client.list_runs(chat["id"], before=before)
        assert ([run["id"] for run in page["items"]], page["next"]) == (shown, None)
        assert (await server.client.list_attempts(chat["id"], before=before))["items"] == []
