"""Which models a user may choose, and what invented names may cost (S107)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness, serve_app
from tests.support.running_server import RunningServer, say, wait_until_idle

from indelible.errors import ModelFailed
from indelible.models.catalog import Catalog
from indelible.server.health import MAX_MODELS, PrometheusMetrics
from indelible.settings import load_settings
from indelible.testing import ScriptedModel

pytestmark = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)

KEYS = {"OPENAI_API_KEY": "key-of-openai", "X_KEY": "key-of-x"}
LOCAL = "http://localhost:8000/v1"
PAID = "https://x.test/v1"


@pytest.mark.parametrize(
    ("name", "is_allowed"),
    [
        ("demo", True),
        ("openai:gpt-5.1", True),
        ("openai:gpt-5.1-mini", True),
        ("openai:gpt-5.1-pro", False),
        ("openai-chat:gpt-5.1", False),
        ("anthropic:claude-opus-4-6", False),  # there is no key for it here, and there may be one at the worker
        ("ollama:anything", True),
        (f"openai-chat:anything@{LOCAL}", True),
        (f"openai-chat:anything@{PAID}", False),
        ("openai-chat:anything@https://evil.test/v1", False),
        ("nobody:gpt-5.1", False),
        ("gpt-5.1", False),
    ],
)
def test_s107_the_operators_keys_are_for_the_models_that_the_operator_listed(
    migrated: str, name: str, is_allowed: bool
) -> None:
    settings = load_settings(
        model="openai:gpt-5.1", models=["openai:gpt-5.1-mini"], base_urls={LOCAL: "", PAID: "X_KEY"}
    )
    catalog = Catalog(settings, environment=KEYS)
    if is_allowed:
        catalog.find_for_user(name)
        return
    with pytest.raises(ModelFailed) as caught:
        catalog.find_for_user(name)
    assert caught.value.kind == "config"


async def ask_with(server: RunningServer, chat_id: str, model: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Every request that names a model."""
    message = (await server.client.read_all_messages(chat_id))[0]["id"]
    return {
        "create": ("POST", "/chats", {"model": model}),
        "update": ("PATCH", f"/chats/{chat_id}", {"model": model}),
        "send": ("POST", f"/chats/{chat_id}/messages", {"text": "Hi", "model": model}),
        "edit": ("POST", f"/chats/{chat_id}/messages/{message}/edit", {"text": "Hi", "model": model}),
        "regenerate": ("POST", f"/chats/{chat_id}/messages/{message}/regenerate", {"model": model}),
        "retry": ("POST", f"/chats/{chat_id}/retry", {"model": model}),
        "continue": ("POST", f"/chats/{chat_id}/continue", {"model": model}),
    }


async def test_s107_a_model_that_is_not_offered_is_refused_at_once(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    async with serve_app(database, ScriptedModel([say("Hello")])) as server:
        chat_id = (await server.client.create_chat("Hi", model="scripted"))["id"]
        await wait_until_idle(server.client, chat_id)
        for method, path, body in (await ask_with(server, chat_id, "openai:gpt-5.1-pro")).values():
            async with server.request(method, path, json=body) as response:
                problem = await read_problem(response)
                assert (problem["status"], problem["kind"]) == (422, "invalid"), path
                assert "openai:gpt-5.1-pro" in problem["detail"]
        assert len((await server.client.list_chats())["items"]) == 1


async def test_s107_invented_names_do_not_grow_the_metrics(harness: AppHarness) -> None:
    metrics = PrometheusMetrics()
    for number in range(300):
        metrics.step_ended("ollama", f"invented-{number}")
        metrics.prompt_sent("ollama", f"invented-{number}", size_bytes=1, messages=1)
        metrics.stream_retried("ollama", f"invented-{number}", kind="config", chain_broken=False)
        metrics.first_part_received("ollama", f"invented-{number}", seconds=1)
        metrics.parts_received("ollama", f"invented-{number}", waits_s=[1])
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    named = {(sample.labels["provider"], sample.labels["model"]) for sample in samples if "model" in sample.labels}
    assert len(named) == MAX_MODELS + 1
    assert ("other", "other") in named
    counted = sum(sample.value for sample in samples if sample.name == "indelible_steps_total")
    assert counted == 300
    await asyncio.sleep(0)
