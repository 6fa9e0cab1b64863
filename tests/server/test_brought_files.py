"""A conversation that a request brings along names only files of its user, as a message does."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import say

from indelible.testing import ScriptedModel

AT = "2026-01-01T00:00:00Z"


def bring_conversation(file_id: str) -> tuple[str, dict[str, Any]]:
    content = [{"type": "input_text", "text": "Look"}, {"type": "input_file", "file_id": file_id}]
    return "//v1/conversations", {"items": [{"type": "message", "role": "user", "content": content}]}


def bring_responses(file_id: str) -> tuple[str, dict[str, Any]]:
    looked = {"role": "user", "content": [{"type": "input_file", "file_id": file_id}]}
    return "//v1/responses", {"input": [looked, {"role": "user", "content": "And now?"}]}


def bring_completion(file_id: str) -> tuple[str, dict[str, Any]]:
    looked = {"role": "user", "content": [{"type": "file", "file": {"file_id": file_id}}]}
    answer = {"role": "assistant", "content": "I see."}
    return "//v1/chat/completions", {"messages": [looked, answer, {"role": "user", "content": "And now?"}]}


def bring_chat(file_id: str) -> tuple[str, dict[str, Any]]:
    message = {"id": "m1", "role": "user", "blocks": [{"type": "file", "file_id": file_id}], "created_at": AT}
    file = {"format": "indelible.chat", "version": 1, "exported_at": AT, "created_at": AT, "title": None, "model": None}
    file |= {"system": None, "parameters": None, "tools": None, "labels": [], "head": "m1", "messages": [message]}
    return "/chats/import", file


@pytest.mark.parametrize("bring", [bring_conversation, bring_responses, bring_completion, bring_chat])
async def test_a_file_of_another_user_is_refused_wherever_a_conversation_comes_from(
    harness: AppHarness, bring: Any
) -> None:
    model = ScriptedModel([say("Rain."), say("Rain.")])
    server = await harness.start_server(model)
    theirs = await server.app.user("grace").upload(b"It rains.", name="notes.txt")
    path, body = bring(theirs.id)
    async with server.request("POST", path, json=body) as response:
        assert (response.status, "File not found" in await response.text()) == (404, True)
    assert await server.app.chats() == []
    assert model.calls == []

    own = await server.app.upload(b"It rains.", name="notes.txt")
    path, body = bring(own.id)
    async with server.request("POST", path, json=body) as response:
        assert response.status in {200, 201}
    [chat] = [*await server.app.chats(), *await server.app.chats(archived=True)]
    assert set(await server.app._dependencies.files.find_used(chat.id, [own.id])) == {own.id}
    assert all(b"It rains." in repr(call.messages).encode() for call in model.calls)
