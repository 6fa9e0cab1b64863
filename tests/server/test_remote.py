"""The remote client itself: where it finds its server, who it is there, and what it raises."""

from __future__ import annotations

import pytest
from tests.support.app_harness import AppHarness
from tests.support.running_server import say

import indelible
from indelible.testing import ScriptedModel


async def test_the_address_and_the_token_come_from_the_environment(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await harness.start_server(ScriptedModel([say("Hi")]), token="secret", client_token="secret")  # noqa: S106
    monkeypatch.setenv("INDELIBLE_URL", f"{server.url}/")
    monkeypatch.setenv("INDELIBLE_TOKEN", "secret")

    async with indelible.Client() as client:
        reply = await (await client.create_chat()).send("Hello")

    assert (reply.text, client.url) == ("Hi", server.url)


async def test_an_argument_wins_over_the_environment(harness: AppHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await harness.start_server(worker=False, token="secret", client_token="secret")  # noqa: S106
    monkeypatch.setenv("INDELIBLE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("INDELIBLE_TOKEN", "another")

    async with indelible.Client(server.url, token="secret") as client:  # noqa: S106
        assert await client.chats() == []
    async with indelible.Client(server.url) as stranger:
        with pytest.raises(indelible.Refused, match="token"):
            await stranger.chats()


@pytest.mark.parametrize("url", [None, "", "127.0.0.1:8000"])
def test_a_client_without_a_usable_address_is_refused_at_once(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INDELIBLE_URL", raising=False)
    with pytest.raises(indelible.Invalid, match="URL"):
        indelible.Client(url)


async def test_a_server_that_cannot_be_reached_is_no_refusal() -> None:
    async with indelible.Client("http://127.0.0.1:1", retry_for_s=0) as client:
        with pytest.raises(indelible.ServerFailed, match="unreachable"):
            await client.create_chat()


async def test_the_models_that_may_be_asked_for_are_listed(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    async with indelible.Client(server.url) as client:
        assert [(model.id, model.default) for model in await client.list_models()] == [
            ("scripted", True),
            ("demo", False),
        ]
