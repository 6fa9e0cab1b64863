"""Users, in a process of their own: each sends a message, reads the reply to its end, and sends the next.

They speak HTTP over raw sockets, so that they cost little beside what they measure. A word of the reply is counted
where its bytes arrive. What comes out is a file of JSON (`Load`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from bench.over_http.wire import READ_BYTES, Client

WORD: Final = b"word"
_TIMEOUT_S: Final = 120.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What users saw. Times are in seconds; `first_s` has one for each reply, `gaps_s` one between two pieces of it."""

    turns: int
    words: int
    wall_s: float
    first_s: list[float]
    gaps_s: list[float]
    out_of_order: int


class User:
    def __init__(self, url: str, *, is_indelible: bool) -> None:
        self._client = Client(url)
        self._is_indelible = is_indelible
        self.first_s: list[float] = []
        self.gaps_s: list[float] = []
        self.words = 0
        self.out_of_order = 0

    async def run_turn(self) -> None:
        started = time.perf_counter()
        path, end = ("/api/v1/chats", b'"status":"idle"') if self._is_indelible else ("/chat", b"[DONE]")
        async with self._client.connect() as (reader, writer):
            body = b'{"message": "Hello"}'
            head = f"POST {path} HTTP/1.1\r\nHost: {self._client.host}:{self._client.port}\r\nAccept: text/event-stream"
            kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
            writer.write(f"{head}\r\n{kind}\r\n\r\n".encode() + body)
            await self._read(reader, started, end=end)

    async def _read(self, reader: asyncio.StreamReader, started: float, *, end: bytes) -> None:
        """Read events until the one with `end` in it. Indelible has the words of a reply in parts and snapshots."""
        last: float | None = None
        rest = b""
        words = 0
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                piece = await reader.read(READ_BYTES)
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
            await user.run_turn()

    await asyncio.gather(*(live(number, user) for number, user in enumerate(crowd)))
    return Load(
        turns=users * rounds,
        words=sum(user.words for user in crowd),
        wall_s=time.perf_counter() - started,
        first_s=[each for user in crowd for each in user.first_s],
        gaps_s=[each for user in crowd for each in user.gaps_s],
        out_of_order=sum(user.out_of_order for user in crowd),
    )


if __name__ == "__main__":
    _, address, kind, users_, rounds_, arrivals_, path_ = sys.argv
    loaded = uvloop.run(
        run(
            address, is_indelible=kind == "indelible", users=int(users_), rounds=int(rounds_), arrivals=float(arrivals_)
        )
    )
    Path(path_).write_bytes(msgspec.json.encode(loaded))
