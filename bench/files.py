"""Uploads beside a running chat: memory of the server, and the gaps in another chat's reply.

A real server process on one SQLite file, the demo model as the probe. First the probe alone, then the probe while 50
clients upload 20 MB each at once. Shown are the time of all uploads, the memory of the server before and at most,
and the gaps between the parts of the probe's reply in both phases.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from rich.console import Console

import indelible
from bench.findings import Finding, quantile, tabulate
from bench.options import write_json

_UPLOADS: Final = 50
_SIZE: Final = 20 * 1024 * 1024
_CHUNK: Final = bytes(64 * 1024)
_ALONE_S: Final = 8.0


async def measure() -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        async with _start_server(Path(place)) as (url, pid):
            alone = await _probe(url, asyncio.sleep(_ALONE_S))
            before = _read_memory(pid, "VmRSS")
            started = time.perf_counter()
            beside = await _probe(url, _upload_all(url))
            elapsed_s = time.perf_counter() - started
            highest = _read_memory(pid, "VmHWM")
    found = [
        Finding(what="all uploads", value=elapsed_s, unit="s"),
        Finding(what="uploaded", value=_UPLOADS * _SIZE / 1e6 / elapsed_s, unit="MB/s"),
        Finding(what="memory before", value=before, unit="MB"),
        Finding(what="memory at its highest", value=highest, unit="MB"),
        Finding(what="the probe alone, gap p50", value=quantile(alone, 0.5) * 1e3, unit="ms"),
        Finding(what="the probe alone, gap p99", value=quantile(alone, 0.99) * 1e3, unit="ms"),
        Finding(what="beside the uploads, gap p50", value=quantile(beside, 0.5) * 1e3, unit="ms"),
        Finding(what="beside the uploads, gap p99", value=quantile(beside, 0.99) * 1e3, unit="ms"),
        Finding(what="beside the uploads, longest gap", value=max(beside, default=0.0) * 1e3, unit="ms"),
    ]
    Console().print(tabulate(f"Files: {_UPLOADS} uploads of {_SIZE / 1e6:.0f} MB at once, SQLite", found))
    write_json("files", found)


@asynccontextmanager
async def _start_server(place: Path) -> AsyncIterator[tuple[str, int]]:
    command = [sys.executable, "-m", "indelible", "serve", "--port", "0", "--database", str(place / "bench.db")]
    process = await asyncio.create_subprocess_exec(*command, "--model", "demo", stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout is not None
        line = ""
        while "http://" not in line:
            line = (await process.stdout.readline()).decode()
            if not line:
                sys.exit("The server did not start.")
        yield "http://" + line.split("http://")[1].split()[0].rstrip("/."), process.pid
    finally:
        process.terminate()
        await process.wait()


async def _probe(url: str, work: object) -> list[float]:
    """The gaps between the parts of replies, for as long as the work takes."""
    gaps: list[float] = []

    async def talk() -> None:
        async with indelible.Client(url) as client:
            chat = await client.create_chat()
            while True:
                last_s: float | None = None
                async for _ in chat.send("Tell me the story of the lighthouse."):
                    now_s = time.perf_counter()
                    if last_s is not None:
                        gaps.append(now_s - last_s)
                    last_s = now_s

    talking = asyncio.create_task(talk())
    await asyncio.ensure_future(work)  # type: ignore[call-overload]
    talking.cancel()
    await asyncio.wait([talking])
    return gaps


async def _upload_all(url: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(_upload(session, url, n) for n in range(_UPLOADS)))


async def _upload(session: aiohttp.ClientSession, url: str, n: int) -> None:
    async def send() -> AsyncIterator[bytes]:
        for _ in range(_SIZE // len(_CHUNK)):
            yield _CHUNK

    headers = {"Content-Length": str(_SIZE)}
    async with session.post(f"{url}/api/v1/files?name={n}.bin", data=send(), headers=headers) as response:
        if response.status != 201:
            sys.exit(f"An upload was refused: {await response.text()}")


def _read_memory(pid: int, name: str) -> float:
    """In megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024
