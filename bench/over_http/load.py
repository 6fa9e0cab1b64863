"""Users, in a process of their own: each sends a message, reads the reply to its end, and sends the next.

They speak HTTP over raw sockets, so that they cost little beside what they measure. A word of the reply is counted
where its bytes arrive. What comes out is one line of JSON (`Load`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import uvloop

WORD: Final = b"word"
_READ_BYTES: Final = 65_536
_PATIENCE_S: Final = 120.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What users saw. Times are in seconds; `first_s` has one for each reply, `gaps_s` one between two pieces of it."""

    turns: int
    words: int
    wall_s: float
    sent_s: list[float]
    first_s: list[float]
    gaps_s: list[float]
    out_of_order: int


class User:
    def __init__(self, url: str, *, is_indelible: bool) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._host, self._port = host, int(port)
        self._is_indelible = is_indelible
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.sent_s: list[float] = []
        self.first_s: list[float] = []
        self.gaps_s: list[float] = []
        self.words = 0
        self.out_of_order = 0

    async def take_turn(self) -> None:
        started = time.perf_counter()
        if self._is_indelible:
            created = json.loads(await self._post("/api/v1/chats", {"message": "Hello"}))
            chat_id = created["id"]
            self.sent_s.append(time.perf_counter() - started)
            async with self._connect() as (reader, writer):
                head = f"GET /api/v1/chats/{chat_id}/events HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
                writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
                await self._read(reader, started, end=b'"status":"idle"')
        else:
            async with self._connect() as (reader, writer):
                body = b'{"message": "Hello"}'
                writer.write(b"POST /chat HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                await self._read(reader, started, end=b"[DONE]")

    async def _post(self, path: str, body: dict[str, str]) -> bytes:
        """On a connection that is kept, until the server closes it because it was idle."""
        if self._connection is None or self._connection[0].at_eof():
            self._connection = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._connection
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(content), content))
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(answer.decode())
        length = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return await reader.readexactly(length)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, started: float, *, end: bytes) -> None:
        """Read events until the one with `end` in it. Indelible has the words of a reply in parts and snapshots."""
        last: float | None = None
        rest = b""
        words = 0
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                piece = await reader.read(_READ_BYTES)
                now = time.perf_counter()
                if not piece:
                    raise RuntimeError("The stream ended before the reply did.")
                *events, rest = (rest + piece).split(b"\n\n")
                found = 0
                has_ended = False
                for event in events:
                    if not self._is_indelible or b"event: part" in event or b"event: snapshot" in event:
                        found += self._count(event, words + found)
                    has_ended = has_ended or end in event
                if found:
                    words += found
                    if last is None:
                        self.first_s.append(now - started)
                    else:
                        self.gaps_s.append(now - last)
                    last = now
                if has_ended:
                    self.words += words
                    return

    def _count(self, event: bytes, expected: int) -> int:
        """The words of an event, each of which says which one it is."""
        found = event.count(WORD)
        if found and int(event[(place := event.index(WORD) + len(WORD)) : place + 4]) != expected:
            self.out_of_order += 1
        return found


async def run(url: str, *, is_indelible: bool, users: int, rounds: int, arrivals: float) -> Load:
    """So many users with so many turns each, all at once, or one user more every 1/`arrivals` seconds."""
    crowd = [User(url, is_indelible=is_indelible) for _ in range(users)]
    started = time.perf_counter()

    async def live(number: int, user: User) -> None:
        if arrivals:
            await asyncio.sleep(number / arrivals)
        for _ in range(rounds):
            await user.take_turn()

    await asyncio.gather(*(live(number, user) for number, user in enumerate(crowd)))
    return Load(
        turns=users * rounds,
        words=sum(user.words for user in crowd),
        wall_s=time.perf_counter() - started,
        sent_s=[each for user in crowd for each in user.sent_s],
        first_s=[each for user in crowd for each in user.first_s],
        gaps_s=[each for user in crowd for each in user.gaps_s],
        out_of_order=sum(user.out_of_order for user in crowd),
    )


if __name__ == "__main__":
    _, address, kind, users_, rounds_, arrivals_ = sys.argv
    loaded = uvloop.run(
        run(
            address, is_indelible=kind == "indelible", users=int(users_), rounds=int(rounds_), arrivals=float(arrivals_)
        )
    )
    sys.stdout.buffer.write(msgspec.json.encode(loaded))
