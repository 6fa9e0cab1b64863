"""Everything that can be wrong with a request, and with the server: always the same shape, and never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette
from starlette.types import Message
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness, serve_app

from indelible.client.http_transport import make_refusal
from indelible.errors import REFUSALS, NotAllowed, Refused
from indelible.server.access import MAX_BODY_BYTES
from indelible.server.problems import MEDIA_TYPE, TITLES, add_problem_handlers, answer_refusal
from indelible.server.router import Router

PAGE = (Path(__file__).parent.parent.parent / "docs" / "errors.md").read_text()
JSON = {"Content-Type": "application/json"}
CHAT = "/chats/{chat}"

# What is asked, and the status and kind of the answer. {chat} is a chat that waits.
MISTAKES: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/nothing", {}, 404, "not_found"),
    ("GET", "//nothing", {}, 404, "not_found"),
    ("GET", "//web/nothing.js", {}, 404, "not_found"),
    ("PUT", "/chats", {}, 405, "method_not_allowed"),
    ("POST", "/chats", {"data": b"{", "headers": JSON}, 400, "bad_request"),
    ("POST", "/chats", {"data": b"", "headers": JSON}, 422, "invalid"),
    ("POST", "/chats", {"data": b"[]", "headers": JSON}, 422, "invalid"),
    ("POST", "/chats", {"data": b'{"message": "\xff"}', "headers": JSON}, 400, "bad_request"),
    ("POST", "/chats", {"data": b"[" * 100_000, "headers": JSON}, 400, "bad_request"),
    ("POST", "/chats", {"data": b'{"message": "Hi"}', "headers": {"Content-Type": "text/plain"}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"mesage": "Hi"}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"message": " \n"}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"message": [{"type": "text", "text": 5}]}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"message": [{"type": "reasoning", "text": "Hm"}]}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"message": [["text"]]}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"title": "x" * 1001}}, 422, "invalid"),
    ("POST", "/chats", {"json": {"message": "x" * 300_000}}, 413, "too_large"),
    ("POST", "/chats", {"json": {}, "headers": {"Idempotency-Key": "x" * 256}}, 422, "invalid"),
    ("GET", "/chats?limit=0", {}, 422, "invalid"),
    ("GET", "/chats?cursor=garbage", {}, 422, "invalid"),
    ("GET", "/chats?cursor=WyIyMDI2LTAxLTAxVDAwOjAwOjAwIiwiYSJd", {}, 422, "invalid"),  # a time without a zone
    ("GET", "/chats/nobody", {}, 404, "not_found"),
    ("GET", "/chats/%00", {}, 404, "not_found"),
    ("GET", "/chats/nobody/events", {}, 404, "not_found"),
    ("GET", f"{CHAT}/messages?before=nothing", {}, 404, "not_found"),
    ("GET", f"{CHAT}/messages?before=%00", {}, 404, "not_found"),
    ("POST", f"{CHAT}/messages", {"json": {"text": "Hi", "content": []}}, 422, "invalid"),
    ("POST", f"{CHAT}/messages", {"json": {"text": "Hi", "if_busy": "never"}}, 422, "invalid"),
    ("POST", f"{CHAT}/messages/nothing/edit", {"json": {"text": "Hi"}}, 404, "not_found"),
    ("POST", f"{CHAT}/messages/nothing/regenerate", {}, 404, "not_found"),
    ("POST", f"{CHAT}/branch", {"json": {"message_id": "\0"}}, 404, "not_found"),
    ("POST", f"{CHAT}/fork", {"json": {"message_id": "\0"}}, 404, "not_found"),
    ("PATCH", CHAT, {"json": {"pinned": None}}, 422, "invalid"),
    ("PUT", f"{CHAT}/queue/order", {"json": {"ids": []}}, 409, "not_allowed"),
    ("PATCH", f"{CHAT}/queue/nothing", {"json": {}}, 422, "invalid"),
    ("PATCH", f"{CHAT}/queue/nothing", {"json": {"text": "Hi"}}, 409, "not_allowed"),
    ("DELETE", f"{CHAT}/queue/nothing", {}, 409, "not_allowed"),
    ("POST", f"{CHAT}/queue/nothing/promote", {}, 409, "not_allowed"),
    ("POST", f"{CHAT}/interrupt", {"json": {"wait_s": 61}}, 422, "invalid"),
    ("POST", f"{CHAT}/retry", {}, 409, "not_allowed"),
    ("POST", f"{CHAT}/continue", {}, 409, "not_allowed"),
    ("POST", f"{CHAT}/tool-results", {"json": {"results": []}}, 409, "not_allowed"),
]


async def test_every_mistake_is_a_problem_of_its_kind_and_changes_nothing(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")
    before = await server.client.list_chats()
    for method, path, more, status, kind in MISTAKES:
        async with server.request(method, path.format(chat=chat["id"]), **more) as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (status, kind), (method, path, problem)
    assert await server.client.list_chats() == before


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
async def test_json_that_is_sent_as_something_else_is_refused_with_the_header_that_it_needs(
    harness: AppHarness, kind: str
) -> None:
    """`curl -d` sends a form unless it is given the header."""
    server = await harness.start_server(worker=False)
    async with server.request("POST", "/chats", data=b'{"title": "Rain"}', headers={"Content-Type": kind}) as response:
        problem = await read_problem(response)
    assert (problem["status"], problem["kind"]) == (422, "invalid")
    assert "Content-Type: application/json" in problem["detail"]


async def test_what_is_not_possible_now_names_the_state_and_the_command(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")

    async with server.request("POST", f"/chats/{chat['id']}/retry") as response:
        problem = await read_problem(response)

    assert (problem["state"], problem["command"]) == ("idle", "retry")


async def test_a_method_that_a_route_lacks_is_answered_with_those_that_it_has(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)

    async with server.request("DELETE", "//healthz") as response:
        await read_problem(response)
        assert response.headers["Allow"] == "GET, HEAD"
    for path, methods in (("/chats/chat_1", "DELETE, GET, HEAD, PATCH"), ("//web/app.js", "GET, HEAD")):
        async with server.request("PUT", path) as response:
            await read_problem(response)
            assert response.headers["Allow"] == methods


async def test_more_messages_than_may_wait_are_too_many_and_come_back_later(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, queue_max=1)
    chat = await server.client.create_chat("One")
    await server.client.send(chat["id"], "Two")

    async with server.request("POST", f"/chats/{chat['id']}/messages", json={"text": "Three"}) as response:
        problem = await read_problem(response)

        assert (problem["status"], problem["kind"]) == (429, "too_many")
        assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_body_without_an_end_is_refused_when_it_has_grown_too_long(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    taken = 0

    async def pour() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b" " * 65536

    async with server.request("POST", "/chats", data=pour(), headers=JSON) as response:
        problem = await read_problem(response)

    assert (problem["status"], problem["kind"]) == (413, "too_large")
    assert taken * 65536 < 4 * MAX_BODY_BYTES


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_body_that_announces_too_much_is_refused_before_it_is_sent(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    headers = {**JSON, "Content-Length": str(MAX_BODY_BYTES + 1), "Expect": "100-continue"}

    async with server.request("POST", "/chats", headers=headers, data=b"") as response:
        problem = await read_problem(response)

    assert (problem["status"], problem["kind"]) == (413, "too_large")


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
@pytest.mark.may_log("a request failed because the database did")
async def test_a_database_that_is_not_well_is_no_fault_of_the_request(database: str, engine: AsyncEngine) -> None:
    async with serve_app(database, worker=False) as server:
        async with engine.begin() as connection:
            await connection.execute(text("ALTER TABLE chats RENAME TO away"))
        for path in ("/chats", "/chats/chat_1/events", "//readyz"):
            async with server.request("GET", path) as response:
                problem = await read_problem(response)

                assert (problem["status"], problem["kind"]) == (503, "unavailable")
                assert response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_server_that_leaves_is_not_ready_and_takes_no_more_readers(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat()

    server.server.begin_shutdown()

    for path in ("//readyz", f"/chats/{chat['id']}/events"):
        async with server.request("GET", path) as response:
            problem = await read_problem(response)
            assert (problem["status"], problem["kind"]) == (503, "not_ready")
    async with server.request("GET", "//healthz") as response:
        assert response.status == 200


@pytest.mark.parametrize("refusal", REFUSALS.values())
def test_a_client_makes_the_same_refusal_of_the_servers_problem(refusal: type[Refused]) -> None:
    error = NotAllowed(command="retry", state="idle", detail="No.") if refusal is NotAllowed else refusal("No.")

    problem = json.loads(bytes(answer_refusal(error).body))
    made = make_refusal(problem, problem["detail"])

    assert (type(made), str(made)) == (refusal, "No.")
    if isinstance(made, NotAllowed):
        assert (made.command, made.state) == ("retry", "idle")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(RuntimeError("the key is sk-secret"), 500, "internal"), (Refused("No."), 422, "invalid")],
)
@pytest.mark.may_log("GET /broken failed")
async def test_a_defect_of_ours_is_reported_without_its_text(
    error: Exception, status: int, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router()
    application = Starlette(routes=[router])
    add_problem_handlers(application)

    @router.get("/broken")
    async def break_down() -> None:
        raise error

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/broken", "query_string": b"", "headers": []}
    with suppress(RuntimeError):  # the framework tells the server as well
        await application(scope, receive, send)

    [begin, body] = sent
    assert begin["status"] == status
    assert (b"content-type", MEDIA_TYPE.encode()) in begin["headers"]
    assert f'"kind":"{kind}"'.encode() in body["body"]
    assert b"sk-secret" not in body["body"]
    assert ("GET /broken failed" in caplog.text) == (status == 500)


def test_the_page_of_errors_has_every_kind_of_problem() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \| \d+", PAGE, re.MULTILINE)) == sorted(TITLES)
