"""docs/http.md and the OpenAPI have every route, and what the page shows is what is asked and answered."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, has_text, read_until, say_half
from tests.support.waiting import poll_until

from indelible.api.events import FeedEvent
from indelible.api.operations import APIS, operations
from indelible.content import ToolSpec
from indelible.server.app import own
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

PAGE = (Path(__file__).parent.parent.parent / "docs" / "http.md").read_text()
SECTIONS: dict[str, str] = dict(re.findall(r"^### `([A-Z]+ \S+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def list_examples(route: str) -> list[Any]:
    """The JSON of a route's section: what is asked, if it takes a body, and what is answered."""
    return [json.loads(example) for example in re.findall(r"```json\n(.*?)```", SECTIONS[route], re.DOTALL)]


BODIES = [(f"{each.method} {each.path}", each.body) for each in own.facts if each.body is not None]
"""Every route that takes a body, and its type."""


async def test_openapi_and_the_page_have_every_route_there_is(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with server.request("GET", "//openapi.json") as response:
        paths = (await response.json())["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}

    assert served == {f"{each.method} {each.path}" for each in own.facts}
    assert set(SECTIONS) == served
    async with server.request("GET", "//docs") as response:
        assert response.status == 200


async def test_openapi_says_what_a_problem_looks_like(harness: AppHarness) -> None:
    server: RunningServer = await harness.start_server(worker=False)
    async with server.request("GET", "//openapi.json") as response:
        paths = (await response.json())["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            problems = {status: answer for status, answer in operation["responses"].items() if status >= "4"}
            for status, answer in problems.items():
                expected = set() if status == "416" else {"application/problem+json"}  # 416 has no body (RFC 9110)
                assert set(answer.get("content", {})) == expected, (method, path, status)
            assert operation["description"], (method, path)


@pytest.mark.parametrize(("route", "kind"), BODIES, ids=str)
def test_a_body_on_the_page_is_one_that_the_route_takes(route: str, kind: type) -> None:
    asked, *_ = list_examples(route)
    msgspec.convert(asked, kind)


# --- a walk through every route that answers with JSON ---

ONE = "/api/v1/chats/{chat_id}"
FILE = "/api/v1/files/{file_id}"


NOT_NOW = {f"POST {ONE}/compact"}
"""Its answer is that of every command, and its turn would need a summary from the model."""


class Walk:
    """Asks routes for what they do, and compares each answer with the one on the page."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.client = server.client
        self.names: dict[str, str] = {}
        self.walked: set[str] = set()

    async def ask(self, route: str, body: Any = None, **names: str) -> dict[str, Any]:
        """Send the body that the page shows, with the names of this walk in it, or another one."""
        method, _, path = route.partition(" ")
        async with self.server.request(method, f"/{path.format(**{**self.names, **names})}", json=body) as response:
            assert response.status < 300, await response.text()
            assert str(response.status) in SECTIONS[route], "the page says another status"
            answer: dict[str, Any] = {} if response.status == 204 else await response.json()
        shown = list_examples(route)[-1] if answer and "as above" not in SECTIONS[route] else answer
        assert list(answer) == list(shown), route
        for name, value in shown.items():
            if isinstance(value, list) and value and answer[name]:
                assert list(answer[name][0]) == list(value[0]), (route, name)
        self.walked.add(route)
        return answer

    async def wait_for(self, text: str) -> None:
        await read_until(self.client, self.names["chat_id"], has_text(text), after="start")

    async def wait_for_status(self, status: str) -> None:
        def is_so(events: list[FeedEvent]) -> bool:
            return events[-1].data.get("status") == status

        await read_until(self.client, self.names["chat_id"], is_so, after="start")

    async def stop(self) -> None:
        await self.client.interrupt(self.names["chat_id"], wait_s=60)


async def walk_queue(walk: Walk) -> None:
    """While a reply is running."""
    queued = await walk.ask(f"POST {ONE}/messages", {"text": "And in Bergen?"})
    walk.names["queued_id"] = queued["queued"]
    await walk.ask(f"GET {ONE}/queue")
    await walk.ask(f"PUT {ONE}/queue/order", {"ids": [queued["queued"]]})
    await walk.ask(f"PATCH {ONE}/queue/{{queued_id}}", {"text": "And in Oslo?"})
    await walk.ask(f"POST {ONE}/queue/{{queued_id}}/promote")
    await walk.wait_for("ning")
    other = await walk.client.send(walk.names["chat_id"], "And?")
    await walk.ask(f"DELETE {ONE}/queue/{{queued_id}}", queued_id=other["queued"])


async def walk_turns(walk: Walk) -> None:
    stopped = await walk.ask(f"POST {ONE}/interrupt", {"wait_s": 10})
    await walk.ask(f"POST {ONE}/continue")
    await walk.wait_for_status("error")
    await walk.ask(f"POST {ONE}/retry")
    await walk.wait_for("again")
    await walk.stop()
    await walk.ask(f"POST {ONE}/messages/{{message_id}}/regenerate", message_id=stopped["message_id"])
    await walk.wait_for_status("requires_action")
    await walk.ask(f"POST {ONE}/tool-results", {"results": [{"tool_call_id": "call_1", "output": "42"}]})
    await walk.wait_for("edit me")
    await walk.ask(f"POST {ONE}/messages/{{message_id}}/edit", {"text": "Is it snowing?"})
    await walk.wait_for("end")
    await walk.stop()


async def walk_records(walk: Walk) -> None:
    """One of the turns has failed, so it was recorded."""

    async def is_recorded() -> bool:
        return bool((await walk.client.list_runs(walk.names["chat_id"]))["items"])

    await poll_until(is_recorded)
    await walk.ask(f"GET {ONE}/attempts")
    runs = await walk.ask(f"GET {ONE}/debug/runs")
    await walk.ask(f"GET {ONE}/debug/runs/{{run_id}}", run_id=runs["items"][0]["id"])


async def walk_people(walk: Walk) -> None:
    """On loopback, where everybody is the first admin."""
    for route, body in (("POST /api/v1/users", {"name": "ada"}), ("GET /api/v1/users", None)):
        await walk.ask(route, body)
    await walk.ask("PATCH /api/v1/users/{name}", {"role": "admin"}, name="ada")
    token = await walk.ask("POST /api/v1/tokens", {"label": "laptop", "scopes": ["read"], "expires_in_s": 60})
    await walk.ask("GET /api/v1/tokens")
    await walk.ask("POST /api/v1/session", {"token": token["token"]})
    await walk.ask("GET /api/v1/session")
    await walk.ask("DELETE /api/v1/session")
    await walk.ask("DELETE /api/v1/tokens/{token_id}", token_id=token["id"])
    share = await walk.ask(f"POST {ONE}/shares", {"user": None})
    await walk.ask(f"GET {ONE}/shares")
    key = share["url"].rpartition("/")[2]
    for route in ("GET /api/v1/shared/{key}", "GET /api/v1/shared/{key}/messages"):
        await walk.ask(route, key=key)
    await walk.ask(f"DELETE {ONE}/shares/{{share_id}}", share_id=share["id"])


async def walk_files(walk: Walk) -> None:
    """The upload's body is no JSON, and its name is in the query."""
    route = "POST /api/v1/files"
    async with walk.server.request("POST", "/files?name=photo.png", data=b"rain") as response:
        assert response.status == 201
        stored = await response.json()
    assert list(stored) == list(list_examples(route)[-1])
    walk.walked.add(route)
    walk.names["file_id"] = stored["id"]
    await walk.ask("GET /api/v1/files")
    await walk.ask(f"GET {FILE}/info")
    await walk.ask(f"DELETE {FILE}")


async def walk_the_others(walk: Walk) -> None:
    """Operations that need no certain state of the chat, with the bodies of their examples."""
    for operation in [each.operation for api in APIS for each in operations(api)]:
        route = f"{operation.method} /api/v1{operation.path}"
        if route not in walk.walked | NOT_NOW:
            await walk.ask(route, operation.example)


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_what_is_answered_has_the_fields_that_the_page_shows(harness: AppHarness) -> None:
    ask = ToolSpec(name="ask", description="Ask the user.", input_schema={"type": "object"})
    calls: list[Step] = [parts.tool_call("call_1", "ask", "{}"), parts.finish("tool_calls")]
    broken: list[Step] = [RuntimeError("no")]
    replies = [say_half("It is rai"), say_half("ning"), broken, say_half("again"), calls, say_half("edit me")]
    server: RunningServer = await harness.start_server(ScriptedModel([*replies, say_half("end")]), client_tools=[ask])
    walk = Walk(server)
    chat = await walk.ask("POST /api/v1/chats", {"message": "Is it raining?"})
    walk.names = {"chat_id": chat["id"], "message_id": chat["message"]}
    await walk.wait_for("It is rai")
    await walk.ask(f"GET {ONE}")
    await walk_queue(walk)
    await walk_turns(walk)
    await walk.ask(f"GET {ONE}/messages")
    await walk_records(walk)
    await walk.ask(f"POST {ONE}/branch", {"message_id": chat["message"]})
    await walk.ask(f"PATCH {ONE}", {"title": "Rain", "debug": "all"})
    copy = await walk.ask(f"POST {ONE}/fork", {"message_id": chat["message"]})
    await walk.ask(f"POST {ONE}/read", {"seq": 3})
    await walk.ask(f"PUT {ONE}/draft", {"text": "And in Bergen?"})
    exported = await walk.ask(f"GET {ONE}/export")
    await walk.ask("POST /api/v1/chats/import", exported)
    for route in ("GET /healthz", "GET /readyz"):
        await walk.ask(route)
    await walk_people(walk)
    await walk.ask(f"DELETE {ONE}", chat_id=copy["id"])
    await walk_files(walk)
    await walk_the_others(walk)

    streams = {f"GET {ONE}/events", "GET /api/v1/shared/{key}/events", "GET /api/v1/events"}
    shared = {f"GET /api/v1/shared/{{key}}/files/{{file_id}}{rest}" for rest in ("", "/preview", "/info")}
    without_json = {"GET /metrics", f"GET {FILE}", f"GET {FILE}/preview", *streams, *shared}
    assert walk.walked | NOT_NOW | without_json == set(SECTIONS)
