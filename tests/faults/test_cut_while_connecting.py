"""Replies that end while PostgreSQL cannot be connected to, or only half (S95)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.app_harness import serve_app
from tests.support.counting_model import HurriedModel, ask_to_count, count
from tests.support.cutting_cable import CuttingCable
from tests.support.running_server import read_until, text_of, wait_until_idle

pytestmark = pytest.mark.may_log(*DATABASE_AWAY)

CHATS = 8
WORDS = 50


@pytest.mark.parametrize("cut_after", [0, 200, 450, 900])
async def test_s95_a_reply_that_ends_while_no_connection_can_be_made_is_not_failed(
    own_postgres: str, tmp_path: Path, cut_after: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cable = CuttingCable(own_postgres)
    model = HurriedModel(tmp_path / "finish")
    async with cable.plugged_in() as address, serve_app(address, model, lease_timeout_s=3600) as server:
        chats = [(await server.client.create_chat(ask_to_count(WORDS, pace_ms=500)))["id"] for _ in range(CHATS)]
        for chat_id in chats:
            await read_until(server.client, chat_id, lambda events: events[-1].kind == "part", after="start")
        cable.cut_after = cut_after
        await cable.cut()
        (tmp_path / "finish").touch()  # all replies end now
        enough = cable.cuts + 20
        while cable.cuts < enough:
            async with server.request("GET", f"/chats/{chats[0]}") as response:
                assert response.status == 503, await response.text()
                assert response.headers["Retry-After"]
        cable.cut_after = None
        await cable.cut()
        for chat_id in chats:
            await wait_until_idle(server.client, chat_id)
            messages = await server.client.read_all_messages(chat_id)
            assert "".join(text_of(message) for message in messages if message["role"] == "assistant") == count(WORDS)
            assert (await server.client.get_chat(chat_id))["error"] is None
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
