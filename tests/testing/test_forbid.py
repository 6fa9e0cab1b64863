"""The switch that forbids calls of real models: nothing leaves this machine while it is on."""

from __future__ import annotations

from pathlib import Path

import pytest
from yarl import URL

import indelible
from indelible.errors import ModelFailed
from indelible.models.http.client import Http, call_switch
from indelible.models.http.hooks import HttpRequest
from indelible.settings import load_settings
from indelible.testing import SimulatedProvider, forbid_model_calls, parts


async def call(url: str) -> int:
    request = HttpRequest(method="POST", url=url, headers={}, body=b"{}")
    async with Http(connect_timeout_s=1) as http, http.send(request) as answer:
        return answer.status


async def test_a_real_provider_is_not_called_and_the_reply_fails_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    settings = load_settings(auto_titles=False)
    with forbid_model_calls():
        async with indelible.open(tmp_path / "chats.db", model="openai:gpt-5.1", settings=settings) as app:
            chat = await app.create_chat()
            with pytest.raises(ModelFailed, match=r"forbidden here, so api\.openai\.com was not called"):
                await chat.send("Hello")


async def test_the_environment_forbids_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_FORBID_MODEL_CALLS", "1")
    with pytest.raises(ModelFailed, match="forbidden"):
        await call("https://api.example.com/v1")


async def test_a_provider_on_this_machine_may_still_be_called() -> None:
    async with SimulatedProvider([[parts.text_delta("1", "Hi"), parts.finish()]]) as provider:
        with forbid_model_calls():
            assert await call(f"{provider.url}/nowhere") == 404


async def test_switches_nest_and_the_last_one_that_ends_allows_it_again() -> None:
    with forbid_model_calls():
        with forbid_model_calls():
            pass
        with pytest.raises(ModelFailed, match="forbidden"):
            await call("https://api.example.invalid/v1")
    call_switch.check(URL("https://api.example.invalid/v1"))
