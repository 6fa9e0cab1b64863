"""Somebody else's chat is a chat that is not there, on every route (docs/login.md)."""

from __future__ import annotations

from typing import Any

from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness
from tests.support.running_server import API, RunningServer

import indelible
from indelible.api.operations import APIS, operations
from indelible.api.records import RunRecord
from indelible.ids import new_id
from indelible.server.app import own

USE_CASES = [each for api in APIS for each in operations(api)]
ROUTES = [each for each in own.facts if "{chat_id}" in each.path]
"""Every route that names a chat."""
EXAMPLES: dict[tuple[str, str], Any] = {
    (each.operation.method, API + each.operation.path): each.operation.example for each in USE_CASES
}


async def record_run(app: indelible.App, chat_id: str) -> str:
    fields: dict[str, Any] = {"turn_id": None, "kind": "turn", "status": "in_progress", "worker_id": "w"}
    run = RunRecord(id=new_id("run"), chat_id=chat_id, started_at=app.clock.now(), **fields)
    await app.records.write([run])
    return run.id


async def test_no_route_knows_of_a_chat_of_somebody_else(harness: AppHarness, database: str) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with indelible.open(database, user="ada", worker=False) as app:
        hers = await app.create_chat("Hello")
        queued = await hers.post("And Bergen?")
        before = await app.store.view(hers.id)
        run_id = await record_run(app, hers.id)
        names = {"chat_id": hers.id, "message_id": before.messages[0].id, "queued_id": queued.queued}
        names |= {"run_id": run_id, "share_id": (await app.shares.share_by_link(hers.id, owner_id=app.owner_id))[0].id}

        for method, path in [(each.method, each.path) for each in ROUTES]:
            example = EXAMPLES.get((method, path)) or {}
            body = {name: value.format(**names) if isinstance(value, str) else value for name, value in example.items()}
            async with server.request(method, f"/{path.format(**names)}", json=body or None) as response:
                problem = await read_problem(response)
                assert (problem["status"], problem["detail"]) == (404, "Chat not found. It may have been deleted."), (
                    method,
                    path,
                )

        assert await app.store.view(hers.id) == before
    assert (await server.client.list_chats())["items"] == []


async def test_the_routes_that_are_walked_are_all_that_the_server_has(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with server.request("GET", "//openapi.json") as response:
        paths = (await response.json())["paths"]
    with_chat = {(method.upper(), path) for path, methods in paths.items() for method in methods if "{chat_id}" in path}
    assert with_chat == {(each.method, each.path) for each in ROUTES}
