"""What our own routes answer, to good requests and to bad ones (routes.txt), and how they are described (openapi.txt).

One walk over every route, as a program or a browser takes it, is held against a real server. Of a success its status,
the headers that clients read and the fields of its JSON are recorded; of a refusal all of it. What each answer has to
mean is tested in tests/server; here it is only held still.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.frozen.recorded_answers import Ask, Asking
from tests.frozen.recording import compare
from tests.support.app_harness import AppHarness
from tests.support.json_client import JsonClient
from tests.support.messages import read_text
from tests.support.running_server import has_text, read_until, say, say_half
from tests.support.waiting import poll_until

from indelible.content import Part, ToolSpec
from indelible.loop.prompt.compact import INSTRUCTION
from indelible.models.protocol import Call
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Step

API: Final = "/api/v1"
_HEADERS: Final = (
    "accept-ranges",
    "cache-control",
    "content-disposition",
    "content-range",
    "content-security-policy",
    "cross-origin-resource-policy",
    "etag",
    "referrer-policy",
    "set-cookie",
    "www-authenticate",
    "x-content-type-options",
    "x-robots-tag",
)
_STREAM: Final = {"accept": "text/event-stream"}
_CALL: Final[list[Step]] = [parts.tool_call("call_1", "ask", "{}"), parts.finish("tool_calls")]
_NOT_THERE: Final = f"{API}/chats/chat_0000000000000000000000000A"


async def walk_conversation(ask: Ask, client: JsonClient) -> tuple[str, str]:
    """A chat with a reply, a queue and branches; the chat and its first message."""
    await ask("POST", f"{API}/chats", {"message": "Is it raining?", "title": "Rain"}, headers=_STREAM)
    listed = await ask("GET", f"{API}/chats")
    one = f"{API}/chats/{listed['items'][0]['id']}"
    page = await ask("GET", f"{one}/messages")
    first, reply = (item["id"] for item in page["items"])
    await ask("GET", one)
    await ask("GET", f"{one}/tree")
    await ask("GET", f"{one}/messages?before={reply}&limit=1")
    await ask("GET", f"{one}/messages?after={first}&limit=1")
    await ask("GET", f"{one}/attempts")
    await ask("GET", f"{one}/attempts?limit=1")
    await ask("POST", f"{one}/messages/{reply}/regenerate", headers=_STREAM)
    await ask("POST", f"{one}/messages/{first}/edit", {"text": "Is it snowing?"}, headers=_STREAM)
    await ask("POST", f"{one}/branch", {"message_id": first})
    await ask("POST", f"{one}/branch", {"message_id": first, "exact": True})
    await ask("POST", f"{one}/continue", {})
    await ask("POST", f"{one}/messages", {"content": [{"type": "text", "text": "And in Bergen?"}], "model": "scripted"})
    chat_id = one.rpartition("/")[2]
    await read_until(client, chat_id, has_text("Bergen"))
    again = {"idempotency-key": "one"}
    waiting = await ask("POST", f"{one}/messages", {"text": "And in Oslo?", "if_busy": "queue"}, headers=again)
    await ask("POST", f"{one}/messages", {"text": "And in Oslo?", "if_busy": "queue"}, headers=again)
    await ask("POST", f"{one}/messages", {"text": "Another"}, headers=again)
    queued = f"{one}/queue/{waiting['queued']}"
    await ask("GET", f"{one}/queue")
    await ask("PUT", f"{one}/queue/order", {"ids": [waiting["queued"]]})
    await ask("PATCH", queued, {"text": "And in Rome?"})
    await ask("POST", f"{one}/retry")
    await ask("POST", f"{queued}/promote")
    await read_until(client, chat_id, has_text("Rome"))
    await ask("POST", f"{one}/messages", {"text": "And then?"})
    left = await ask("GET", f"{one}/queue")
    for item in left["items"]:
        await ask("DELETE", f"{one}/queue/{item['id']}")
    await ask("POST", f"{one}/interrupt", {"wait_s": 60})
    await ask("POST", f"{one}/interrupt")
    await ask("POST", f"{one}/interrupt", {"turn": "turn_1"})
    await ask("POST", f"{one}/messages", {"text": "Fail."}, headers=_STREAM)
    await ask("POST", f"{one}/messages", {"text": "Ask me."}, headers=_STREAM)
    await ask("POST", f"{one}/tool-results", {"results": [{"tool_call_id": "call_2", "output": "42"}]})
    results = {"results": [{"tool_call_id": "call_1", "output": {"answer": 42}, "is_error": False}]}
    await ask("POST", f"{one}/tool-results", results, headers=_STREAM)
    await ask("POST", f"{one}/compact")
    await ask("POST", f"{one}/interrupt", {"wait_s": 60})
    return one, first


async def walk_records(ask: Ask, one: str) -> None:
    """One turn has failed, so it was recorded, a little later."""
    runs = await ask("GET", f"{one}/debug/runs?limit=1")
    for item in runs["items"]:
        run = f"{one}/debug/runs/{item['id']}"
        for query in ("", "?bodies=false", "?bodies=0&download=yes", "?bodies=maybe"):
            await ask("GET", run + query)
    await ask("GET", f"{one}/debug/runs/run_1")


async def walk_lists(ask: Ask, one: str, first: str) -> None:
    changes = {"title": None, "labels": ["weather"], "pinned": True, "model": "scripted", "system": "Be brief."}
    await ask("PATCH", one, {**changes, "parameters": {"temperature": 0.5}, "debug": "all"})
    tool = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}
    await ask("PATCH", one, {"tools": [tool]})
    await ask("PATCH", one, {"tools": None, "debug": None, "labels": None, "parameters": None, "archived": True})
    await ask("PATCH", one, {})
    copy = await ask("POST", f"{one}/fork", {"message_id": first})
    query = "archived=true&label=weather&pinned=1&unread=false&limit=1"
    await ask("GET", f"{API}/chats?{query}")
    await ask("GET", f"{API}/chats?q=rain")
    await ask("GET", f"{API}/chats?shared=true")
    await ask("POST", f"{one}/read")
    await ask("POST", f"{one}/read", {"seq": 1})
    for chat in (one, f"{API}/chats/new"):
        await ask("PUT", f"{chat}/draft", {"text": "And in Bergen?"})
        await ask("GET", f"{chat}/draft")
        await ask("PUT", f"{chat}/draft", {"text": ""})
    exported = await ask("GET", f"{one}/export")
    await ask("GET", f"{one}/export?format=md")
    await ask("POST", f"{API}/chats/import", exported)
    await ask("POST", f"{API}/chats", {"parameters": {"temperature": 1}, "tools": [tool], "system": "Be brief."})
    await ask("GET", f"{API}/usage")
    await ask("GET", f"{API}/usage?since=2026-01-01&until=2030-01-01&by=user")
    await ask("GET", f"{API}/usage?user=nobody")
    await ask("DELETE", f"{API}/chats/{copy['id']}")
    await ask("DELETE", f"{API}/chats/{copy['id']}")


async def walk_files(ask: Ask) -> None:
    stored = await ask("POST", f"{API}/files?name=words.txt", b"Some words.", headers={"content-type": "text/plain"})
    file = f"{API}/files/{stored['id']}"
    await ask("GET", f"{API}/files")
    for path in (file, f"{file}/info", f"{file}/preview"):
        await ask("GET", path)
        await ask("HEAD", path)
    await ask("GET", file, headers={"range": "bytes=5-"})
    await ask("GET", file, headers={"range": "bytes=50-"})
    await ask("GET", file, headers={"if-none-match": f'"{stored["sha256"]}"'})
    await ask("POST", f"{API}/chats", {"message": [{"type": "file", "media_type": "text/plain", "file_id": "file_1"}]})
    await ask("DELETE", file)
    await ask("DELETE", file)


async def walk_people(ask: Ask, one: str) -> None:
    """On loopback, where everybody is the first admin."""
    await ask("POST", f"{API}/users", {"name": "ada"})
    await ask("GET", f"{API}/users")
    await ask("PATCH", f"{API}/users/ada", {"role": "admin"})
    await ask("PATCH", f"{API}/users/ada", {"disabled": True})
    await ask("PATCH", f"{API}/users/ada", {"disabled": False, "role": "user"})
    await ask("PATCH", f"{API}/users/nobody", {"role": "user"})
    await ask("POST", f"{API}/users", {"name": "ada"})
    token = await ask("POST", f"{API}/tokens", {"label": "laptop", "scopes": ["read"], "expires_in_s": 60})
    await ask("GET", f"{API}/tokens")
    await ask("POST", f"{API}/session", {"token": token["token"]})
    await ask("POST", f"{API}/session", {"token": "wrong"})
    await ask("GET", f"{API}/session")
    await ask("DELETE", f"{API}/session")
    await ask("DELETE", f"{API}/tokens/{token['id']}")
    link = await ask("POST", f"{one}/shares", {})
    user = await ask("POST", f"{one}/shares", {"user": "ada"})
    await ask("GET", f"{one}/shares")
    key = link["url"].rpartition("/")[2]
    for path in ("", "/messages", "/messages?limit=1", "/files/file_1", "/files/file_1/info", "/files/file_1/preview"):
        await ask("GET", f"{API}/shared/{key}{path}")
    await ask("GET", f"/shared/{key}")
    await ask("GET", f"{API}/shared/nothing")
    for share in (link, user, user):
        await ask("DELETE", f"{one}/shares/{share['id']}")


BAD: Final[list[tuple[str, str, bytes | None]]] = [
    *(
        ("POST", f"{_NOT_THERE}/messages", body)
        for body in (
            None, b"", b"{", b"[]", b"null", b"5", b'"Hi"', b"NaN", b'{"text": NaN}', b'{"text": "\xff"}',
            b"[" * 20_000,
            b'{"text": "\\ud800"}', b"{}", b'{"text": null}', b'{"text": 5}', b'{"text": "Hi", "content": []}',
            b'{"text": "Hi", "more": 1}', b'{"txet": "Hi"}', b'{"content": "Hi"}', b'{"content": [5]}',
            b'{"content": [{"type": "poem"}]}', b'{"content": [{"text": "Hi"}]}', b'{"content": [{"type": "text"}]}',
            b'{"content": [{"type": "tool_call", "id": "1", "name": "a", "arguments": "{}"}]}', b'{"content": []}',
            b'{"content": [%b]}' % b",".join([b'{"type": "text", "text": "a"}'] * 101), b'{"text": " "}',
            b'{"text": "Hi", "if_busy": "wait"}', b'{"text": "Hi", "model": 5}', b'{"text": "Hi", "model": ""}',
            b'{"text": "Hi", "model": "none"}', b'{"text": "Hi", "model": "%b"}' % (b"a" * 201), b'{"text": "Hi"}',
            b'{"text": "%b"}' % (b"a" * 300_000), b'{"%b": 1, "text": "Hi"}' % (b"a" * 400),
            b"{%b}" % b",".join(b'"%d": 1' % at for at in range(60)),
        )
    ),
    *(
        ("POST", f"{API}/chats", body)
        for body in (
            None, b'{"message": 5}', b'{"message": ""}', b'{"message": []}', b'{"title": "%b"}' % (b"a" * 1001),
            b'{"tools": {}}', b'{"tools": [{"name": "a b"}]}', b'{"tools": [{"name": "a"}, {"description": "b"}]}',
            b'{"tools": [{"name": "a", "provider_executed": true}]}', b'{"tools": [{"name": "a", "input_schema": []}]}',
            b'{"tools": [%b]}' % b",".join([b'{"name": "a"}'] * 129), b'{"parameters": []}',
            b'{"parameters": {"n": 2}}',
            b'{"parameters": {"temperature": "warm"}}', b'{"system": 1}', b'{"unknown": {"field": [1]}}',
        )
    ),
    *(
        ("PATCH", _NOT_THERE, body)
        for body in (
            None, b"{}", b'{"pinned": null}', b'{"pinned": 1}', b'{"pinned": "true"}', b'{"archived": null}',
            b'{"labels": "a"}', b'{"labels": [1]}', b'{"labels": ["%b"]}' % (b"a" * 101), b'{"debug": "some"}',
            b'{"labels": [%b]}' % b",".join([b'"a"'] * 101), b'{"title": 1, "pinned": 5}', b'{"owner": "ada"}',
        )
    ),
    *(
        ("POST", f"{_NOT_THERE}/{path}", body)
        for path, body in (
            ("interrupt", b'{"wait_s": -1}'), ("interrupt", b'{"wait_s": 61}'), ("interrupt", b'{"wait_s": "5"}'),
            ("interrupt", b'{"wait_s": true}'), ("interrupt", b'{"wait_s": null}'), ("interrupt", b"null"),
            ("interrupt", b'{"turn": 5}'), ("interrupt", None), ("retry", b'{"model": 5}'), ("retry", b"null"),
            ("retry", b"[]"), ("retry", None), ("continue", b'{"mode": "a"}'), ("compact", b'{"anything": 1}'),
            ("compact", b"{"), ("fork", b"{}"), ("fork", b'{"message_id": 5}'), ("branch", b'{"exact": true}'),
            ("branch", b'{"message_id": "a", "exact": "yes"}'), ("branch", b'{"message_id": "%b"}' % (b"a" * 201)),
            ("tool-results", b"{}"), ("tool-results", b'{"results": {}}'), ("tool-results", b'{"results": [1]}'),
            ("tool-results", b'{"results": [{"output": 1}]}'), ("tool-results", b'{"results": []}'),
            ("tool-results", b'{"results": [{"tool_call_id": "a", "is_error": "no"}]}'),
            ("read", b'{"seq": -1}'), ("read", b'{"seq": 1.5}'), ("read", b'{"seq": "1"}'), ("read", b'{"seq": true}'),
            ("read", b'{"seq": 9223372036854775808}'), ("read", b'{"seq": 1.0}'), ("read", b'{"seq": null}'),
            ("shares", b'{"user": ""}'), ("shares", b'{"user": 5}'), ("shares", None),
        )
    ),
    ("PUT", f"{_NOT_THERE}/draft", b"{}"),
    ("PUT", f"{_NOT_THERE}/draft", b'{"text": null}'),
    ("PUT", f"{_NOT_THERE}/queue/order", b'{"ids": "a"}'),
    ("PUT", f"{_NOT_THERE}/queue/order", b'{"ids": [5]}'),
    ("PATCH", f"{_NOT_THERE}/queue/queued_1", b"{}"),
    ("POST", f"{API}/tokens", b'{"label": "a"}'),
    ("POST", f"{API}/tokens", b'{"scopes": []}'),
    ("POST", f"{API}/tokens", b'{"scopes": ["all"]}'),
    ("POST", f"{API}/tokens", b'{"scopes": ["read", "read"]}'),
    ("POST", f"{API}/tokens", b'{"scopes": ["read"], "expires_in_s": 0}'),
    ("POST", f"{API}/tokens", b'{"scopes": ["read"], "expires_in_s": "60"}'),
    ("POST", f"{API}/session", b'{"token": ""}'),
    ("POST", f"{API}/session", b'{"tokn": "a-secret"}'),
    ("POST", f"{API}/users", b'{"name": ""}'),
    ("POST", f"{API}/users", b'{"name": "a", "role": "king"}'),
    ("PATCH", f"{API}/users/local", b'{"disabled": true}'),
    ("PATCH", f"{API}/users/local", b'{"disabled": "yes"}'),
    ("POST", f"{API}/chats/import", None),
    ("POST", f"{API}/chats/import", b"{}"),
    ("POST", f"{API}/chats/import", b"{"),
    ("POST", f"{API}/files", b"Hi"),
    ("POST", f"{API}/files?name=", b"Hi"),
    ("POST", f"{API}/files?name={'a' * 1001}", b"Hi"),
    *(
        ("GET", f"{API}/{path}", None)
        for path in (
            "chats?limit=0", "chats?limit=201", "chats?limit=x", "chats?limit=1.0", "chats?limit=",
            "chats?limit=1&limit=x",
            "chats?pinned=maybe", "chats?pinned=on", "chats?pinned=", "chats?unread=TRUE",
            "chats?cursor=x", "chats?unknown=1",
            "chats?q=" + "a" * 501, "chats/chat_1", "chats/%20", "chats/a%2Fb", "chats/chat_1/messages?before=x",
            "chats/chat_1/messages?limit=-1", "usage?since=yesterday", "usage?since=2026-13-01", "usage?by=day",
            "usage?since=2026-01-01T00:00:00", "files?cursor=x", "files?limit=abc", "files/file_1", "files/file_1/info",
            "chats/chat_1/export?format=pdf", "chats/chat_1/debug/runs/run_1?download=5", "chats/chat_1/events",
            "shared/x/events", "nothing", "", "chats/", "chats//messages",
        )
    ),
]  # fmt: skip
OTHERS: Final[list[tuple[str, str, dict[str, str]]]] = [
    *((method, path, {}) for path in (
        f"{API}/chats", _NOT_THERE, f"{_NOT_THERE}/messages", f"{_NOT_THERE}/events", f"{API}/events", f"{API}/files",
        f"{API}/files/file_1", f"{API}/session", f"{API}/chats/import", f"{API}/shared/x", f"{API}/nothing", "/",
        "/docs", "/openapi.json", "/healthz", "/readyz", "/login", "/login/methods", "/login/oidc", "/shared/x",
        "/web/index.html", "/web/nothing.js", "/nothing",
    ) for method in ("HEAD", "OPTIONS", "TRACE")),
    *((method, path, {}) for method, path in (
        ("PUT", f"{API}/chats"), ("DELETE", f"{API}/chats"), ("POST", _NOT_THERE), ("GET", f"{_NOT_THERE}/fork"),
        ("GET", f"{_NOT_THERE}/queue/order"), ("POST", f"{_NOT_THERE}/draft"), ("POST", f"{_NOT_THERE}/events"),
        ("PATCH", f"{API}/session"), ("PUT", f"{API}/files"), ("POST", f"{API}/files/file_1"), ("POST", "/healthz"),
        ("POST", "/"), ("POST", "/docs"), ("POST", "/login"), ("DELETE", "/web/index.html"), ("BREW", f"{API}/chats"),
        ("GET", f"{API}/chats/import"), ("GET", f"{API}/chats/"), ("GET", "/docs/"), ("GET", "/web"),
        ("GET", "/healthz/"), ("GET", f"{API}/nothing/"), ("GET", "//example.com/"), ("POST", f"{API}/chats/"),
        ("GET", f"{API}/chats/?limit=1"), ("GET", "/redoc"), ("GET", "/api"), ("GET", "/API/v1/chats"),
    )),
    ("OPTIONS", f"{API}/chats", {"origin": "http://evil.example", "access-control-request-method": "POST"}),
    ("GET", f"{API}/chats", {"host": "evil.example"}),
    ("POST", f"{API}/chats", {"origin": "http://evil.example"}),
]  # fmt: skip


class SlowToSummarise(ScriptedModel):
    """A summary takes until it is stopped."""

    def stream(self, call: Call) -> AsyncIterator[Part]:
        if read_text(call.messages[0].blocks) == INSTRUCTION:
            return ScriptedModel([[parts.hang()]]).stream(call)
        return super().stream(call)


@pytest.mark.may_log("the model scripted:scripted raised an error")
async def test_our_own_routes_answer_what_is_recorded(engine: AsyncEngine) -> None:
    broken: list[Step] = [RuntimeError("no")]
    replies = [
        say("It is."),
        say("Again."),
        say("Snow."),
        say_half("Bergen"),
        say_half("Rome"),
        broken,
        _CALL,
        say("42."),
    ]
    tool = ToolSpec(name="ask", description="Ask the user.", input_schema={"type": "object"})
    async with AppHarness(engine).opened() as harness:
        server = await harness.start_server(SlowToSummarise([*replies, *([say("More.")] * 5)]), client_tools=[tool])
        asking = Asking(server, _HEADERS, is_shape=True)
        ask = asking.ask
        for path in ("/healthz", "/readyz", "/login/methods", f"{API}/models", f"{API}/session", "/web/routes.json"):
            await ask("GET", path)
        one, first = await walk_conversation(ask, server.client)

        async def is_recorded() -> bool:
            return bool((await server.client.list_runs(one.rpartition("/")[2]))["items"])

        await poll_until(is_recorded)
        await walk_records(ask, one)
        await walk_lists(ask, one, first)
        await walk_files(ask)
        await walk_people(ask, one)
        for method, path, body in BAD:
            await ask(method, path, body)
        for method, path, headers in OTHERS:
            await ask(method, path, headers=headers)
        plain: dict[str, Any] = {"headers": {"content-type": "text/plain"}}
        for path in (f"{API}/chats", f"{_NOT_THERE}/retry", f"{_NOT_THERE}/compact", f"{API}/chats/import"):
            await ask("POST", path, b"{}", **plain)
            await ask("POST", path, b"{}", headers={"content-type": "application/json; charset=utf-8"})
            await ask("POST", path, b"{}", headers={"content-encoding": "gzip"})
    compare("routes.txt", "\n".join(asking.shown))


async def test_our_own_routes_are_described_as_recorded(engine: AsyncEngine) -> None:
    async with AppHarness(engine).opened() as harness:
        server = await harness.start_server(worker=False)
        async with server.request("GET", "//openapi.json") as response:
            document = await response.json()
        async with server.request("GET", "//web/routes.json") as response:
            routes = await response.json()
    compare("openapi.txt", json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))
    compare("routes_of_the_page.txt", "\n".join(sorted(routes)))
