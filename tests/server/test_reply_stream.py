"""A command and its reply in one response (server/feed_routes.py): the feed from there on, until the chat rests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import (
    RunningServer,
    has_ended,
    has_text,
    list_contents,
    read_text,
    read_until,
    say,
    say_half,
    wait_until_idle,
)
from tests.support.waiting import deadline

from indelible.api.events import EventBody, EventKind, FeedEvent
from indelible.api.shapes import Scope
from indelible.errors import ModelFailed
from indelible.testing import ScriptedModel, parts

STREAM = {"Accept": "text/event-stream"}
KEY = {"Idempotency-Key": "once"}
TOKEN = "t" * 20
WRITING: list[Scope] = ["write"]


async def iterate(response: aiohttp.ClientResponse) -> AsyncIterator[FeedEvent]:
    """The events of a response, to its end."""
    assert (response.status, response.content_type) == (200, "text/event-stream"), await response.text()
    fields: dict[str, str] = {}
    async for line in response.content:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        else:
            kind = cast("EventKind", fields["event"])
            yield FeedEvent(kind, fields.get("id"), EventBody(fields["data"].encode()))
            fields = {}
    assert not fields


async def stream(server: RunningServer, path: str, body: Any = None, **headers: str) -> list[FeedEvent]:
    async with deadline(), server.request("POST", path, json=body, headers=STREAM | headers) as response:
        return [event async for event in iterate(response)]


async def test_a_chat_is_created_and_its_reply_read_in_one_request(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("It rains.")]))

    accepted, *rest = await stream(server, "/chats", {"message": "Is it raining?"})

    assert str(accepted.kind) == "accepted"
    assert accepted.data["status"] == "running"
    assert accepted.cursor == accepted.data["cursor"]
    assert read_text(rest) == "It rains."
    assert rest[-1].kind == "status"
    assert rest[-1].data["status"] == "idle"
    [_, reply] = await server.client.read_all_messages(accepted.data["id"])
    assert [event.data["message"]["id"] for event in rest if event.kind == "message"] == [reply["id"]]


async def test_what_is_streamed_is_the_feed(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two.")]))
    chat_id = (await stream(server, "/chats", {"message": "1"}))[0].data["id"]

    accepted, *rest = await stream(server, f"/chats/{chat_id}/messages", {"text": "2"})

    assert list_contents(rest) == list_contents(
        await read_until(server.client, chat_id, has_ended, after=accepted.data["cursor"])
    )


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/event-stream", "text/event"])
async def test_who_does_not_ask_for_events_first_gets_json(harness: AppHarness, accept: str) -> None:
    server = await harness.start_server(worker=False)
    async with server.request("POST", "/chats", json={"message": "Hi"}, headers={"Accept": accept}) as response:
        assert response.status == 201
        assert (await response.json())["status"] == "running"


async def test_a_connection_that_breaks_is_continued_on_the_feed(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("It ", "rains")]))
    seen: list[FeedEvent] = []
    async with deadline(), server.request("POST", "/chats", json={"message": "?"}, headers=STREAM) as response:
        async for event in iterate(response):
            seen.append(event)
            if read_text(seen):
                break
    chat_id, cursor = seen[0].data["id"], seen[-1].cursor
    assert cursor is not None
    await read_until(server.client, chat_id, has_text("It rains"))  # a reply that nobody reads goes on
    await server.client.interrupt(chat_id)

    rest = await read_until(server.client, chat_id, has_ended, after=cursor)

    assert read_text([*seen, *rest]) == "It rains"


async def test_a_repeated_request_gets_the_same_reply_and_sends_nothing_twice(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("It rains.")]))
    first = await stream(server, "/chats", {"message": "?"}, **KEY)

    again = await stream(server, "/chats", {"message": "?"}, **KEY)

    assert list_contents(again[:1]) == list_contents(first[:1])
    assert read_text(again) == "It rains."
    assert list_contents(again[-1:]) == list_contents(first[-1:])
    assert len((await server.client.list_chats())["items"]) == 1


async def test_a_message_that_waits_in_the_queue_is_followed_to_the_end_of_its_own_reply(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("One"), say("Two.")]))
    chat_id = (await server.client.create_chat("1"))["id"]
    await read_until(server.client, chat_id, has_text("One"))
    async with deadline(), asyncio.TaskGroup() as group:
        sending = group.create_task(stream(server, f"/chats/{chat_id}/messages", {"text": "2"}))
        await read_until(server.client, chat_id, lambda events: bool(events[-1].data.get("queue")))
        await server.client.interrupt(chat_id)

    accepted, *rest = sending.result()

    assert accepted.data["queued"] is not None
    assert read_text(rest) == "OneTwo."  # the running reply is read along, from its beginning
    assert rest[-1].data["status"] == "idle"


async def test_a_chat_without_a_message_is_accepted_and_that_is_all(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)

    assert [event.kind for event in await stream(server, "/chats", {"title": "Rain"})] == ["accepted"]


async def test_the_stream_ends_with_an_error_and_a_retry_can_be_read_too(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([ModelFailed("The key is wrong.", kind="auth"), say("Yes.")]))

    accepted, *rest = await stream(server, "/chats", {"message": "?"})
    assert (rest[-1].kind, rest[-1].data["status"]) == ("status", "error")

    assert read_text(await stream(server, f"/chats/{accepted.data['id']}/retry")) == "Yes."


async def test_the_stream_ends_where_the_client_has_to_act_and_goes_on_with_its_results(harness: AppHarness) -> None:
    call = [parts.tool_call("call_1", "ask_user", "{}"), parts.finish("tool_calls")]
    server = await harness.start_server(ScriptedModel([call, say("Thanks.")]))
    tools = [{"name": "ask_user", "description": "", "input_schema": {"type": "object"}}]

    accepted, *rest = await stream(server, "/chats", {"message": "?", "tools": tools})
    assert rest[-1].data["status"] == "requires_action"

    results = {"results": [{"tool_call_id": "call_1", "output": "Yes"}]}
    assert read_text(await stream(server, f"/chats/{accepted.data['id']}/tool-results", results)) == "Thanks."


async def test_edited_and_regenerated_messages_are_read_in_the_response(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say("One."), say("Two."), say("Three.")]))
    accepted = (await stream(server, "/chats", {"message": "1"}))[0]
    chat = f"/chats/{accepted.data['id']}"

    assert read_text(await stream(server, f"{chat}/messages/{accepted.data['message']}/regenerate")) == "Two."
    edit = f"{chat}/messages/{accepted.data['message']}/edit"
    assert read_text(await stream(server, edit, {"text": "2"})) == "Three."


async def test_a_refused_command_is_an_ordinary_problem(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    chat_id = (await server.client.create_chat(title="Rain"))["id"]
    async with server.request("POST", f"/chats/{chat_id}/retry", headers=STREAM) as response:
        assert (response.status, response.content_type) == (409, "application/problem+json")
    async with server.request("POST", "/chats/chat_0/messages", json={"text": "?"}, headers=STREAM) as response:
        assert response.status == 404


async def test_a_message_is_sent_although_no_more_feeds_may_be_open(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("It"), say("Yes.")]), user_max_feeds=1)
    async with deadline(), server.request("POST", "/chats", json={"message": "1"}, headers=STREAM) as response:
        async for event in iterate(response):
            if event.kind == "part":
                break
        async with server.request("POST", "/chats", json={"message": "2"}, headers=STREAM) as second:
            assert (second.status, second.content_type) == (201, "application/json")
            chat_id = (await second.json())["id"]
    await server.wait_for_readers(0)
    await wait_until_idle(server.client, chat_id)


async def test_a_deleted_chat_ends_the_stream(harness: AppHarness) -> None:
    server = await harness.start_server(ScriptedModel([say_half("It")]))
    kinds: list[str] = []
    chat_id = ""
    async with deadline(), server.request("POST", "/chats", json={"message": "1"}, headers=STREAM) as response:
        async for event in iterate(response):
            kinds.append(event.kind)
            if str(event.kind) == "accepted":
                chat_id = event.data["id"]
            if event.kind == "part" and kinds.count("part") == 1:
                await server.client.delete_chat(chat_id)
    assert kinds[-1] == "end"


async def test_a_token_that_may_not_read_gets_json(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, client_token=TOKEN)
    ada = await server.app.accounts.ensure_account("ada")
    for scopes, kind in ((WRITING, "application/json"), ([*WRITING, "read"], "text/event-stream")):
        _, secret = await server.app.accounts.create_token(ada.id, label="", scopes=scopes)
        headers = STREAM | {"Authorization": f"Bearer {secret}"}
        async with deadline(), server.request("POST", "/chats", json={"message": "?"}, headers=headers) as response:
            assert response.content_type == kind
