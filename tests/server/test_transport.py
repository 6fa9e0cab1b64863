"""The head of a response leaves with its body in one write, and never stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.waiting import deadline

from indelible.server.connections import GatheringTransport

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class Connection(asyncio.Protocol):
    """The server's end of a connection: every write that reaches the socket's transport."""

    def __init__(self, opened: asyncio.Future[Connection]) -> None:
        self._opened = opened
        self.writes: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.gathering = GatheringTransport(self, asyncio.get_running_loop())  # type: ignore[arg-type]
        self._opened.set_result(self)

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def connect() -> tuple[Connection, asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Connection] = loop.create_future()
    server = await loop.create_server(lambda: Connection(opened), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    connection = await opened
    server.close()
    return connection, reader, writer


async def test_the_head_leaves_with_the_first_of_the_body_and_the_rest_by_itself() -> None:
    connection, reader, writer = await connect()
    connection.gathering.write(HEAD)
    assert connection.writes == []
    connection.gathering.write(b"bo")
    connection.gathering.write(b"dy")
    assert connection.writes == [HEAD + b"bo", b"dy"]
    async with deadline():
        assert await reader.readexactly(len(HEAD) + 4) == HEAD + b"body"
    connection.gathering.close()
    writer.close()


async def test_a_head_without_a_body_leaves_at_the_next_opportunity() -> None:
    connection, reader, writer = await connect()
    connection.gathering.write(HEAD)
    async with deadline():
        assert await reader.readexactly(len(HEAD)) == HEAD
    assert connection.writes == [HEAD]
    connection.gathering.close()
    writer.close()


@pytest.mark.parametrize("body", [b"", b"body"])
async def test_a_connection_that_is_closed_has_sent_everything(body: bytes) -> None:
    connection, reader, writer = await connect()
    connection.gathering.write(HEAD)
    if body:
        connection.gathering.write(body)
    connection.gathering.close()
    async with deadline():
        assert await reader.read() == HEAD + body
    assert connection.gathering.is_closing()
    writer.close()
