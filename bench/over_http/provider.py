"""A provider in a process of its own that costs next to nothing: the OpenAI chat wire over raw sockets.

It answers every request with a stream of `tokens` pieces, `rate` per second (0: as fast as the socket takes them). All
streams share one clock tick per millisecond, so that two hundred of them cost two hundred writes and not two hundred
timers. The time of each reply's first piece is not told: a reader compares with the moment of its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Final

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
)


def _frame(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def _piece(delta: dict[str, object], finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    chunk: dict[str, object] = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}] if usage is None else [],
    }
    if usage is not None:
        chunk["usage"] = usage
    return _frame(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")


async def _read_request(reader: asyncio.StreamReader) -> bool:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    await reader.readexactly(length)
    return True


async def serve(tokens: int, rate: float) -> None:
    pieces = [_piece({"content": f"word{number:04d} "}) for number in range(tokens)]
    first = _piece({"role": "assistant", "content": ""})
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10}
    last = _piece({}, "stop") + _piece({}, usage=usage) + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while await _read_request(reader):
                writer.write(_HEAD + first)
                if not rate:
                    writer.write(b"".join(pieces) + last)
                    await writer.drain()
                    continue
                started = loop.time()
                for number, piece in enumerate(pieces):
                    delay = started + number / rate - loop.time()
                    if delay > 0:
                        await asyncio.sleep(delay)
                    if writer.is_closing():  # the reader has left
                        return
                    writer.write(piece)
                writer.write(last)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # the one who started it reads this
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
