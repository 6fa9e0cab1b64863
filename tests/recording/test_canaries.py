"""Secrets over the whole stack: what may not be recorded, and what may not be shown, exported or logged.

A server, its worker and a simulated provider, with secrets wherever there is room for one: the key, headers, addresses,
JSON at any depth in requests and replies, events, error bodies, exceptions; in pieces of a few bytes, so that the
network cuts every one of them. No kestrel (canaries.py) may be in the database, and neither a kestrel nor a canary in
anything that leaves it. What is no secret has to be there, or the records would be worth nothing.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.models.wires_under_test import WIRES
from tests.recording.canaries import CANARY, KESTREL, LOOKS, NAMES
from tests.support.app_harness import serve_app
from tests.support.engine import begin_read
from tests.support.running_server import RunningServer, wait_until_idle
from tests.support.tables import debug_attempts, debug_runs, debug_steps
from tests.support.waiting import poll_until

from indelible import tool
from indelible.content import Usage
from indelible.testing import SimulatedProvider, parts
from indelible.testing.model import Script, Step
from indelible.testing.provider import WireName
from indelible.testing.provider.faults import Chunked, ErrorEvent, Fault, Malformed, Status

KEY = "kestrel+of/no-known=look"
"""The key itself. Only that it was sent as a key tells that it is one."""

HARMLESS = "harmless words"
USAGE = Usage(input_tokens=1234, output_tokens=567)
DEEP: Any = {"password": "kestrel"}
for _ in range(20):
    DEEP = {"level": [1, DEEP]}
SECRETS: dict[str, Any] = {
    "looks": list(LOOKS),
    "names": dict.fromkeys(NAMES, "kestrel"),
    "numbers": {"password": 31337, "api_key": ["kestrel", {"a": "kestrel"}]},
    "deep": DEEP,
    "inside": json.dumps({"api_key": "kestrel", "said": json.dumps({"client_secret": "kestrel"})}),
    "note": HARMLESS,
    "usage": {"input_tokens": 1234},
}
HEADERS = {
    "set-cookie": "sid=kestrel; theme=kestrel",
    "x-api-key": "kestrel",
    "x-echo": KEY,
    "location": "https://user:kestrel@host/path?token=kestrel",
    "x-debug": "Bearer canarycanarycanary",
    "x-ratelimit-remaining-tokens": "4321",
}
ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": f"Not with {KEY}.", "details": SECRETS}}


@tool
async def vault(password: str) -> dict[str, Any]:
    """Give everything away."""
    return {**SECRETS, "password": password}


def spell(secret: str) -> Step:
    return parts.text_delta("t", f"{secret}\n")


def write_script() -> list[Script]:
    """Calls a tool with a secret, reads more of them, and says them all."""
    arguments = json.dumps({"password": "kestrel"})
    asks: list[Step] = [parts.text_delta("t", HARMLESS), parts.tool_call("c1", "vault", arguments)]
    says: list[Step] = [parts.text_delta("t", f"{HARMLESS}\n"), *(spell(secret) for secret in LOOKS)]
    return [[*asks, parts.finish("tool_calls", usage=USAGE)], [*says, parts.finish("stop", usage=USAGE)]]


@asynccontextmanager
async def serve(
    database: str, wire: WireName, scripts: Sequence[Script], faults: Sequence[Fault | None]
) -> AsyncIterator[tuple[RunningServer, SimulatedProvider]]:
    async with SimulatedProvider(scripts, faults) as provider:
        whose = "anthropic" if wire == "anthropic" else "openai"
        given: dict[str, Any] = {f"{whose}_api_key": KEY, f"{whose}_base_url": provider.base_url(wire)}
        async with serve_app(database, f"{wire}:m", tools=[vault], debug="all", **given) as server:
            yield server, provider


async def dump_debug_tables(engine: AsyncEngine) -> str:
    """Everything in them, as text."""
    cells: list[str] = []
    async with begin_read(engine) as connection:
        for table in (debug_runs, debug_steps, debug_attempts):
            for row in await connection.execute(select(table)):
                cells += [cell.decode() if isinstance(cell, bytes) else str(cell) for cell in row]
    return "\n".join(cells)


async def wait_for_end(server: RunningServer, chat_id: str) -> list[dict[str, Any]]:
    """Wait until the chat rests and its records say so; what is listed of them."""

    async def has_ended() -> bool:
        runs = (await server.client.list_runs(chat_id))["items"]
        return bool(runs) and all(run["status"] != "in_progress" for run in runs)

    await wait_until_idle(server.client, chat_id)
    await poll_until(has_ended)
    items: list[dict[str, Any]] = (await server.client.list_runs(chat_id))["items"]
    return items


async def read_everything(server: RunningServer, chat_id: str) -> list[str]:
    """All that the API tells of what was recorded, the exported file included."""
    told: list[str] = []
    runs = await wait_for_end(server, chat_id)
    paths = ["attempts", "debug/runs", *(f"debug/runs/{run['id']}" for run in runs)]
    paths += [f"debug/runs/{run['id']}?download=true" for run in runs]
    for path in paths:
        async with server.request("GET", f"/chats/{chat_id}/{path}") as response:
            assert response.status == 200
            told.append(await response.text())
    return told


def read_files(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.iterdir()]


def find_kestrels(text: str) -> list[str]:
    """What must not even be recorded, with what stands around it."""
    return [text[max(0, at.start() - 60) : at.end() + 20] for at in re.finditer(KESTREL, text, re.IGNORECASE)]


def find_canaries(text: str) -> list[str]:
    """What must not be shown: nothing that looks like a key, and no kestrel either."""
    found = re.finditer(f"{CANARY}|{KESTREL}", text, re.IGNORECASE)
    return [text[max(0, at.start() - 60) : at.end() + 20] for at in found]


def find_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Canaries in what we log ourselves; what drivers log of a conversation in their debug mode is not ours."""
    ours = [record for record in caplog.records if record.name.startswith("indelible")]
    others = [record for record in caplog.records if record.levelno >= logging.INFO]
    formatter = logging.Formatter("%(message)s")
    return find_canaries("\n".join(formatter.format(record) for record in (*ours, *others)))


@pytest.mark.parametrize("pieces", [None, [1, 2, 3, 5, 64]], ids=["whole", "in bits"])
@pytest.mark.parametrize("wire", WIRES)
async def test_no_secret_is_left_in_records_answers_exports_or_logs(
    database: str, engine: AsyncEngine, wire: WireName, pieces: list[int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="indelible")
    chunked = None if pieces is None else Chunked(pieces)
    faults = [Status(529, ERROR, HEADERS), ErrorEvent(2, ERROR), Malformed(2), chunked, chunked]
    scripts = write_script()
    scripts = [scripts[1][:1], scripts[1], scripts[0], scripts[1]]  # type: ignore[index]
    async with serve(database, wire, scripts, faults) as (server, provider):
        prompt = f"{HARMLESS}\n" + "\n".join(LOOKS)
        system = json.dumps(SECRETS)
        chat = await server.client.create_chat(prompt, system=system, parameters={"temperature": 0})
        told = await read_everything(server, chat["id"])
        sent = b"".join(request.raw for request in provider.requests)
        keys = [request.headers.get("x-api-key") or request.headers["authorization"] for request in provider.requests]
        (run,) = [json.loads(text) for text in told if text.startswith('{"id":"run_')][:1]
    dump = await dump_debug_tables(engine)

    assert sent.count(b"canary") > 100 < sent.count(b"kestrel")
    assert all(KEY in key for key in keys)
    assert find_kestrels(dump) == []
    assert [find_canaries(text) for text in told] == [[]] * len(told)
    assert find_logged(caplog) == []

    exchanges = [attempt for step in run["steps"] for attempt in step["attempts"]]
    assert len(exchanges) == len(provider.requests) == 5
    for exchange in exchanges:
        assert HARMLESS in exchange["request_body"]
        assert exchange["request_headers"]["content-type"] == "application/json"
        assert "[redacted]" in exchange["request_headers"].values()
    refused, *_, last = exchanges
    assert (refused["status_code"], refused["response_headers"]["x-ratelimit-remaining-tokens"]) == (529, "4321")
    assert refused["response_headers"]["x-echo"] == "[redacted]"
    assert HARMLESS in refused["response_body"]
    assert '"input_tokens": 1234' in refused["response_body"]
    assert HARMLESS in last["response_body"]
    assert re.search(r'"(input|prompt)_tokens": ?1234\b', last["response_body"])
    assert re.search(r'"(output|completion)_tokens": ?567\b', last["response_body"])


@pytest.mark.parametrize("wire", WIRES)
async def test_the_file_holds_no_known_secret_and_nothing_under_a_sensitive_name(
    tmp_path: Path, migrated_sqlite: Path, wire: WireName
) -> None:
    """What people and models say to each other is theirs, and kept. Everything else in the file is ours to guard."""
    path = shutil.copy(migrated_sqlite, tmp_path / "chats.db")
    bodies: list[Any] = [ERROR, f"Not with {KEY}. api key: canary0canary".encode()]
    files: list[bytes] = []
    async with serve(str(path), wire, [], [Status(401, body, HEADERS) for body in bodies]) as (server, provider):
        for _ in bodies:
            chat = await server.client.create_chat("Hello")
            told = await read_everything(server, chat["id"])
            seen = await server.client.get_chat(chat["id"])
            assert seen["status"] == "error"
            assert find_canaries(json.dumps(seen) + "".join(told)) == []
            files += read_files(tmp_path)
        assert [KEY in str(request.headers) for request in provider.requests] == [True] * len(bodies)
    files += read_files(tmp_path)
    assert any(b"debug_attempts" in each for each in files)
    assert [find_kestrels(each.decode("latin-1")) for each in files] == [[]] * len(files)


ODD = {"type": "error", "error": {"type": "invalid_request_error", "code": "odd", "message": f"Odd: {KEY}."}}


@pytest.mark.parametrize("wire", WIRES)
async def test_a_key_that_a_provider_repeats_is_not_shown_to_people(database: str, wire: WireName) -> None:
    """No pattern knows this key. What the provider says is shown with the error, all of it but the key."""
    said: Script = [parts.text_delta("t", "Well"), parts.finish()]
    faults: list[Fault] = [Status(400, ODD), ErrorEvent(1, ODD)]
    async with serve(database, wire, [said], faults) as (server, _):
        for _ in faults:
            chat = await server.client.create_chat("Hello")
            told = await read_everything(server, chat["id"])
            seen = await server.client.get_chat(chat["id"])
            assert "Odd" in seen["error"]["detail"]
            assert find_canaries(json.dumps(seen) + "".join(told)) == []


async def test_the_error_of_a_connection_shows_no_password_of_a_proxy(
    database: str, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("http_proxy", "http://user:kestrel@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    settings: dict[str, Any] = {"openai_api_key": KEY, "openai_base_url": "http://provider.invalid/sk-canarycanary/v1"}
    async with serve_app(database, "openai:m", tools=[vault], debug="all", retry_max_attempts=2, **settings) as server:
        chat = await server.client.create_chat("Hello")
        told = await read_everything(server, chat["id"])
        (run,) = [json.loads(text) for text in told if text.startswith('{"id":"run_')][:1]
        seen = await server.client.get_chat(chat["id"])
    (step,) = run["steps"]
    assert [attempt["status_code"] for attempt in step["attempts"]] == [None, None]
    assert all(attempt["error"] for attempt in step["attempts"])
    assert all(attempt["url"] == "http://provider.invalid/[redacted]/v1/responses" for attempt in step["attempts"])
    assert find_canaries("".join(told) + json.dumps(seen)) == []
    assert find_kestrels(await dump_debug_tables(engine)) == []
    assert find_logged(caplog) == []
