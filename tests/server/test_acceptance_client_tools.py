"""S74: client tools over HTTP (rule 10.9), on both databases."""

from __future__ import annotations

import asyncio
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.commands import start_indelible
from tests.support.json_client import JsonClient
from tests.support.running_server import RunningServer
from tests.support.waiting import poll_until

from indelible.content import Part, ToolResult
from indelible.testing import ScriptedModel, parts

pytestmark = pytest.mark.both_databases

ASK = {
    "name": "ask_user",
    "description": "Asks the user.",
    "input_schema": {"type": "object", "properties": {"question": {"type": "string"}}},
}
CALL: list[Part] = [parts.tool_call("c1", "ask_user", '{"question": "Why?"}'), parts.finish("tool_calls")]
DONE: list[Part] = [parts.text_delta("1", "Done"), parts.finish()]


async def wait_for_status(client: JsonClient, chat_id: str, status: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def has_status() -> bool:
        found.update(await client.get_chat(chat_id))
        return bool(found["status"] == status)

    await poll_until(has_status, what=status)
    return found


async def ask(
    harness: AppHarness, *scripts: list[Part], window: int | None = None
) -> tuple[RunningServer, str, ScriptedModel]:
    model = ScriptedModel([CALL, *scripts], context_limit=window)
    server = await harness.start_server(model)
    chat_id = (await server.client.create_chat("Ask me", tools=[ASK]))["id"]
    await wait_for_status(server.client, chat_id, "requires_action")
    return server, chat_id, model


async def test_s74_a_tool_that_is_declared_with_the_chat_is_advertised_and_awaited(harness: AppHarness) -> None:
    server, chat_id, model = await ask(harness, DONE)
    (spec,) = model.calls[0].tools
    assert (spec.name, spec.description, spec.input_schema) == (ASK["name"], ASK["description"], ASK["input_schema"])
    await server.client.submit_tool_results(chat_id, [{"tool_call_id": "c1", "output": "Because"}])
    await wait_for_status(server.client, chat_id, "idle")
    results = [block for entry in model.calls[1].messages for block in entry.blocks if isinstance(block, ToolResult)]
    assert [result.output for result in results] == ["Because"]


async def test_s74_the_snapshot_tells_a_reader_that_joins_late_what_is_awaited(harness: AppHarness) -> None:
    server, chat_id, _ = await ask(harness)
    snapshot = await server.client.get_chat(chat_id)
    (call,) = snapshot["action"]["calls"]
    assert (call["id"], call["name"], call["arguments"]) == ("c1", "ask_user", '{"question": "Why?"}')
    assert snapshot["action"]["deadline_at"] is not None
    async for event in server.client.stream_events(chat_id):
        assert (event.kind, event.data["action"]) == ("snapshot", snapshot["action"])
        break
    await server.client.interrupt(chat_id)
    assert (await server.client.get_chat(chat_id))["action"] is None


async def test_s74_tools_can_be_changed_and_removed_and_parameters_stay(harness: AppHarness) -> None:
    model = ScriptedModel([DONE, DONE, DONE])
    server = await harness.start_server(model)
    client = server.client
    chat_id = (await client.create_chat(parameters={"temperature": 0.5}))["id"]
    for change in ({"tools": [ASK]}, {"parameters": {"temperature": 0.7}}, {"tools": None}):
        await client.update_chat(chat_id, **change)
        await client.send(chat_id, "Hello")
        await wait_for_status(client, chat_id, "idle")
    assert [[tool.name for tool in call.tools] for call in model.calls] == [["ask_user"], ["ask_user"], []]
    assert [call.parameters for call in model.calls] == [
        {"temperature": 0.5},
        {"temperature": 0.7},
        {"temperature": 0.7},
    ]


@pytest.mark.parametrize(
    "tool", [{"name": "two words"}, {"name": ""}, {"name": "x" * 65}, {"name": "a", "input_schema": []}, {}]
)
async def test_s74_a_declaration_that_no_provider_takes_is_refused(harness: AppHarness, tool: Any) -> None:
    server = await harness.start_server()
    async with server.request("POST", "/chats", json={"tools": [tool]}) as response:
        assert response.status == 422


@pytest.mark.parametrize(("window", "limit"), [(None, 64 * 1024), (1000, 16 * 1024), (200_000, 200_000)])
async def test_s74_a_result_of_three_megabytes_is_cut_to_what_its_model_can_take(
    harness: AppHarness, window: int | None, limit: int
) -> None:
    server, chat_id, model = await ask(harness, DONE, window=window)
    body = json.dumps({"results": [{"tool_call_id": "c1", "output": "rain " * 600_000}]}).encode()
    headers = {"content-type": "application/json"}
    path = f"/chats/{chat_id}/tool-results"
    async with server.request("POST", path, data=BytesIO(body), headers=headers) as response:
        assert response.status == 202
    await wait_for_status(server.client, chat_id, "idle")
    (result,) = [block for entry in model.calls[1].messages for block in entry.blocks if isinstance(block, ToolResult)]
    assert limit - 3 <= len(result.output.encode()) <= limit
    assert "bytes left out here" in result.output


async def test_s74_the_model_that_gets_a_result_is_the_one_of_its_turn(harness: AppHarness) -> None:
    wide = ScriptedModel([CALL, DONE], context_limit=200_000)
    server = await harness.start_server(ScriptedModel(context_limit=1000), models={"wide": wide})
    chat_id = (await server.client.create_chat(tools=[ASK]))["id"]
    await server.client.send(chat_id, "Ask me", model="wide")
    await wait_for_status(server.client, chat_id, "requires_action")
    await server.client.submit_tool_results(chat_id, [{"tool_call_id": "c1", "output": "x" * 150_000}])
    await wait_for_status(server.client, chat_id, "idle")
    (result,) = [block for entry in wide.calls[1].messages for block in entry.blocks if isinstance(block, ToolResult)]
    assert len(result.output) == 150_000


async def test_s74_a_result_beyond_the_limit_is_refused_and_not_cut(harness: AppHarness) -> None:
    server, chat_id, _ = await ask(harness)
    body = json.dumps({"results": [{"tool_call_id": "c1", "output": "x" * (4 * 1024 * 1024 + 1)}]}).encode()
    headers = {"content-type": "application/json"}
    path = f"/chats/{chat_id}/tool-results"
    async with server.request("POST", path, data=BytesIO(body), headers=headers) as response:
        assert response.status == 413
    assert (await server.client.get_chat(chat_id))["status"] == "requires_action"


async def test_s74_stop_works_while_a_chat_waits_for_its_client(harness: AppHarness) -> None:
    server, chat_id, _ = await ask(harness, DONE)
    stopped = await server.client.interrupt(chat_id)
    assert (stopped["stopped"], stopped["status"]) == (True, "idle")
    await server.client.send(chat_id, "Never mind")
    await wait_for_status(server.client, chat_id, "idle")


async def test_s74_client_tools_are_named_on_the_command_line(database: str, tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text('def ask_user(question: str) -> str:\n    """Asks."""\n    raise SystemExit\n')
    served = start_indelible(
        "serve", "--port", "0", "--database", database, "--client-tools", "mytools:ask_user", directory=tmp_path
    )
    with served as command:
        async with JsonClient(await asyncio.to_thread(command.read_url)) as client:
            chat_id = (await client.create_chat('ask_user {"question": "Why?"}'))["id"]
            snapshot = await wait_for_status(client, chat_id, "requires_action")
    assert [call["name"] for call in snapshot["action"]["calls"]] == ["ask_user"]
