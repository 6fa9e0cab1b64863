"""An answer that quotes our key, however broken it is: the key is in no error (S109)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from indelible.content import Message, Text
from indelible.errors import ModelFailed
from indelible.loop import RetryPolicy, TurnFailed, TurnHost, TurnOptions, run
from indelible.models.catalog import Catalog
from indelible.settings import load_settings

KEY = "a-key/of-no-known+shape-0123456789"
ANSWERS = {
    "status line": b"HTTP/1.1 4%b OK\r\n\r\n",
    "reason": b"HTTP/1.1 401 Wrong key %b\r\nContent-Length: 0\r\n\r\n",
    "version": b"HTTP/%b 200 OK\r\n\r\n",
    "header name": b"HTTP/1.1 200 OK\r\n%b (: x\r\n\r\n",
    "header value": b"HTTP/1.1 200 OK\r\nX-Key: \x01%b\r\n\r\n",
    "header without a colon": b"HTTP/1.1 200 OK\r\n%b\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: %b\r\n\r\n",
    "encoding": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n%b",
    "chunk": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\n",
    "media type": b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: 2\r\n\r\n{}",
    "redirect": b"HTTP/1.1 302 Found\r\nLocation: http://%b/\r\nContent-Length: 0\r\n\r\n",
    "event": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: error\ndata: %b\n\n",
    "error": b'HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\n\r\n{"error": {"message": "%b"}}',
    "escaped error": b'HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\n\r\n{"error": {"message": "%e"}}',
    "nothing like it": b"%b\r\n\r\n",
}


@asynccontextmanager
async def answering(answer: bytes, key: str = KEY) -> AsyncIterator[str]:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.replace(b"%b", key.encode()).replace(b"%e", key.replace("/", "\\/").encode()))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def fail(provider: str, answer: bytes, key: str) -> ModelFailed:
    async with answering(answer, key) as url:
        keys = {"anthropic_api_key": key, "openai_api_key": key}
        settings = load_settings(model=f"{provider}:m", anthropic_base_url=url, openai_base_url=url, **keys)
        catalog = Catalog(settings, environment={})
        model = catalog.find(settings.model)
        hi = [Message(role="user", blocks=[Text("Hi")])]
        end = await run(model, hi, TurnHost(), options=TurnOptions(retry=RetryPolicy(max_attempts=1)))
        await catalog.aclose()
    assert isinstance(end, TurnFailed)
    assert isinstance(end.error, ModelFailed)
    return end.error


@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-chat"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_s109_a_key_is_in_no_error_though_the_answer_is_malformed(provider: str, name: str) -> None:
    error = await fail(provider, ANSWERS[name], KEY)
    assert KEY not in f"{error} {error.message} {error.detail} {error!r}"


@pytest.mark.parametrize("key", ["supersecretkey", "Correcthorse", "9876543210123"])
async def test_a_key_that_looks_like_a_word_or_a_number_is_hidden_too(key: str) -> None:
    answer = (
        b'HTTP/1.1 400 No\r\nContent-Type: application/json\r\n\r\n{"error": {"message": "The key %b is not valid."}}'
    )
    error = await fail("openai", answer, key)
    assert error.detail == "The key [removed] is not valid."
