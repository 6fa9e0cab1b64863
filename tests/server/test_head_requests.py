"""`HEAD` is answered like `GET`, without the body, and opens no stream."""

from __future__ import annotations

from typing import Any

from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer, say
from tests.support.waiting import deadline

from indelible.api.operations import PREFIX
from indelible.testing import ScriptedModel

STREAMS = {
    f"{PREFIX}/chats/{{chat_id}}/events",
    f"{PREFIX}/shared/{{key}}/events",
    f"{PREFIX}/events",
    "/ai-sdk/chat/{name}/stream",
}


async def ask(server: RunningServer, method: str, path: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    async with deadline(), server.request(method, f"/{path}", allow_redirects=False, **more) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, await response.read()


async def test_a_head_request_gets_the_status_and_the_headers_of_a_get_and_no_body(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("Hello.")]))
    async with server.request("POST", "/files?name=rain.txt", data=b"rain") as uploaded:
        file_id = (await uploaded.json())["id"]
    chat = await server.client.create_chat(title="Rain")
    paths = ["/", "/healthz", "/readyz", "/web/routes.json", "/web/app.js", "/web/none.js", "/docs", "/openapi.json"]
    paths += ["/login", "/nothing", "/v1/models", "/v1/models/none", f"{PREFIX}/chats", f"{PREFIX}/chats/chat_none"]
    paths += [f"{PREFIX}/chats/{chat['id']}", f"{PREFIX}/files/{file_id}", f"{PREFIX}/chats/{chat['id']}/retry"]
    for path in paths:
        status, headers, body = await ask(server, "GET", path)
        head_status, head_headers, head_body = await ask(server, "HEAD", path)
        assert (head_status, head_body) == (status, b""), path
        if status != 405:
            assert head_headers.get("content-length") == headers.get("content-length") == str(len(body)), path
            assert {**head_headers, "date": ""} == {**headers, "date": ""}, path
    status, headers, body = await ask(server, "HEAD", "/metrics")
    assert (status, headers["content-type"].partition(";")[0], body) == (200, "text/plain", b"")


async def test_a_part_of_a_file_is_described_without_reading_it(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("POST", "/files?name=rain.txt", data=b"rain") as uploaded:
        path = f"{PREFIX}/files/{(await uploaded.json())['id']}"
    status, headers, body = await ask(server, "HEAD", path, headers={"Range": "bytes=1-2"})
    assert (status, headers["content-range"], headers["content-length"], body) == (206, "bytes 1-2/4", "2", b"")


async def test_a_head_request_opens_no_stream(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("Hello.")]))
    async with server.request("POST", "//v1/responses", json={"input": "Hi"}) as made:
        response_id = (await made.json())["id"]
    chat_id = f"chat_{response_id[5:31]}"
    for path in (f"{PREFIX}/chats/{chat_id}/events", f"{PREFIX}/events", f"/v1/responses/{response_id}?stream=true"):
        status, headers, body = await ask(server, "HEAD", path)
        assert (status, body) == (405, b""), path
        assert "HEAD" not in headers["allow"], path
        assert "GET" in headers["allow"], path


async def test_every_route_that_is_read_answers_a_head_request(harness: AppHarness) -> None:
    """Whatever is there or not, the answer comes to an end: a new stream cannot be forgotten."""
    server = await harness.start_server(worker=False)
    async with server.request("GET", "//web/routes.json") as listed:
        read = [path for method, path in map(str.split, await listed.json()) if method == "GET"]
    assert set(read) >= STREAMS
    chat = await server.client.create_chat(title="Rain")
    for path in read:
        named = path.replace("{chat_id}", chat["id"]).replace("{model_id:path}", "none")
        for name in ("key", "file_id", "run_id", "name", "response_id", "conversation_id", "item_id"):
            named = named.replace(f"{{{name}}}", "none")
        status, _headers, body = await ask(server, "HEAD", named)
        assert status < 500, path
        assert body == b"", path
