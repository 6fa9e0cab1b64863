"""The OpenAPI document: every answer has a schema, and what the server really sends fits the types of the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

from indelible.testing import ScriptedModel


async def load_document(server: RunningServer) -> dict[str, Any]:
    async with server.request("GET", "//openapi.json") as response:
        document: dict[str, Any] = await response.json()
        return document


def list_references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from list_references(each)
    elif isinstance(value, list):
        for each in value:
            yield from list_references(each)


async def test_every_successful_json_answer_has_a_schema(harness: AppHarness) -> None:
    document = await load_document(await harness.start_server(ScriptedModel(), worker=False))
    without = [
        (method, path, status)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for status, answer in operation["responses"].items()
        if status.startswith("2") and not has_schema(status, answer)
    ]
    assert without == []


NO_JSON = {"text/event-stream", "text/plain", "*/*", "image/webp"}


def has_schema(status: str, answer: dict[str, Any]) -> bool:
    """204 has no body, and what is no JSON has no schema; everything else has one that says something."""
    content = answer.get("content", {})
    if status == "204" or set(content) & NO_JSON:
        return "application/json" not in content
    return bool(content["application/json"]["schema"])


async def test_every_reference_leads_to_a_schema(harness: AppHarness) -> None:
    document = await load_document(await harness.start_server(ScriptedModel(), worker=False))
    schemas = document["components"]["schemas"]
    missing = {place for place in list_references(document) if place.rpartition("/")[2] not in schemas}
    assert missing == set()
    assert {"Accepted", "ChatDetails", "ChatMessage", "CreatedChat", "InterruptResult", "NewMessage"} <= set(schemas)


async def test_every_operation_documents_its_problems_one_by_one(harness: AppHarness) -> None:
    """A `default` would say nothing: with it no answer is undocumented (test_any_request.py)."""
    document = await load_document(await harness.start_server(ScriptedModel(), worker=False))
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert not any("default" in operation["responses"] for operation in operations)
    assert all({"500", "503"} <= set(operation["responses"]) for operation in operations)
    send = document["paths"]["/api/v1/chats/{chat_id}/messages"]["post"]["responses"]
    assert {"200", "202", "400", "401", "403", "404", "409", "413", "415", "421", "422", "429", "500", "503"} == set(
        send
    )
    assert {"200", "500", "503"} == set(document["paths"]["/healthz"]["get"]["responses"])
    problem = send["409"]["content"]["application/problem+json"]["schema"]
    assert problem == {"$ref": "#/components/schemas/Problem"}


async def test_a_message_in_the_document_has_its_times_its_usage_and_its_cost(harness: AppHarness) -> None:
    document = await load_document(await harness.start_server(ScriptedModel(), worker=False))
    message = document["components"]["schemas"]["ChatMessage"]["properties"]
    assert {"created_at", "usage", "cost_usd", "parent_id", "siblings"} <= set(message)
