"""`python -m bench compat`: the CPU of a token on the compatible APIs, against the native feed of the same server.

100 chats at a time, each with one reader, a reply of 250 tokens at 50 a second, on SQLite. The APIs take turns within
a round, so that a noisy moment falls on all alike; what counts is the ratio of the medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.options import ROUNDS
from bench.over_http.contenders import Contender, count_cpu_s, start_indelible, start_provider
from bench.over_http.wire import READ_BYTES, Client

CHATS: Final = int(os.environ.get("BENCH_CHATS", "100"))
TOKENS: Final = 250
RATE: Final = 50.0
_MESSAGE: Final = {"role": "user", "content": "Hello"}
_UI_MESSAGE: Final = {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
APIS: Final[dict[str, tuple[str, dict[str, Any], bytes]]] = {
    "Responses": ("/v1/responses", {"input": "Hello", "stream": True}, b"event: response.completed"),
    "AI SDK": ("/ai-sdk/chat", {"messages": [_UI_MESSAGE]}, b"[DONE]"),
    "Chat Completions": ("/v1/chat/completions", {"messages": [_MESSAGE], "stream": True, "store": True}, b"[DONE]"),
}
NATIVE: Final = "native feed"


async def read_native(url: str) -> None:
    client = Client(url)
    created = await client.post("/api/v1/chats", {"message": "Hello"})
    async with client.open_feed(created["id"], after=created["cursor"]) as events:
        await events.wait_for(b'"status":"idle"')
    client.close()


async def read_wire(url: str, path: str, body: dict[str, Any], end: bytes) -> None:
    client = Client(url)
    content = json.dumps(body).encode()
    async with client.connect() as (reader, writer):
        head = f"POST {path} HTTP/1.1\r\nHost: {client.host}:{client.port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        rest = b""
        while end not in rest:
            piece = await reader.read(READ_BYTES)
            if not piece:
                raise RuntimeError(f"{path} ended too soon.")
            rest = (rest + piece)[-READ_BYTES:]


async def measure_round(server: Contender, api: str, number: int) -> float:
    """Microseconds of CPU per token."""
    before = count_cpu_s(server.pid)
    if api == NATIVE:
        await asyncio.gather(*(read_native(server.url) for _ in range(CHATS)))
    else:
        path, body, end = APIS[api]
        named = [{**body, "id": f"bench-{number}-{chat}"} for chat in range(CHATS)]
        await asyncio.gather(*(read_wire(server.url, path, each, end) for each in named))
    return (count_cpu_s(server.pid) - before) * 1e6 / (CHATS * TOKENS)


async def measure() -> None:
    found: dict[str, list[float]] = {api: [] for api in (NATIVE, *APIS)}
    with tempfile.TemporaryDirectory() as directory, start_provider(TOKENS, RATE) as port:
        path = Path(directory)
        with start_indelible(port, str(path / "bench.db"), path) as server:
            await measure_round(server, NATIVE, -1)  # nothing is imported and compiled while it is measured
            for number in range(ROUNDS):
                for api, figures in found.items():
                    figures.append(await measure_round(server, api, number))
    show(found)


def show(found: dict[str, list[float]]) -> None:
    native = statistics.median(found[NATIVE])
    table = Table("api", "µs per token", "range", "× native", title=f"{CHATS} chats, {TOKENS} tokens at {RATE:.0f}/s")
    for api, figures in found.items():
        median = statistics.median(figures)
        table.add_row(api, f"{median:.0f}", f"{min(figures):.0f}–{max(figures):.0f}", f"{median / native:.2f}")
    Console().print(table)
