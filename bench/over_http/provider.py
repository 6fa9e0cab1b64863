"""A provider in a process of its own that costs next to nothing: the OpenAI chat wire over raw sockets.

It answers every request with a stream of `tokens` pieces, `rate` per second (0: as fast as the socket takes them). A
request to /reply/TOKENS/RATE changes that for all later ones. The time of each reply's first piece is not told: a
reader compares with the moment of its request.
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


async def _read_request(reader: asyncio.StreamReader) -> str | None:
    """The path of the next request; None: there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    await reader.readexactly(length)
    return head.split(b" ", 2)[1].decode()


class Reply:
    """What is said, in pieces that are ready to be sent."""

    def __init__(self, tokens: int, rate: float) -> None:
        self.rate = rate
        self.pieces = [_piece({"content": f"word{number:04d} "}) for number in range(tokens)]
        self.first = _piece({"role": "assistant", "content": ""})
        usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": tokens + 10}
        self.last = _piece({}, "stop") + _piece({}, usage=usage) + _frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def serve(tokens: int, rate: float) -> None:
    reply = Reply(tokens, rate)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal reply
        with contextlib.suppress(ConnectionError):
            while path := await _read_request(reader):
                if path.startswith("/reply/"):
                    _, _, tokens_, rate_ = path.split("/")
                    reply = Reply(int(tokens_), float(rate_))
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
                else:
                    await _stream_reply(reply, writer)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # the one who started it reads this
    async with server:
        await server.serve_forever()


async def _stream_reply(reply: Reply, writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + reply.first)
    if not reply.rate:
        writer.write(b"".join(reply.pieces) + reply.last)
        await writer.drain()
        return
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number, piece in enumerate(reply.pieces):
        delay = started + number / reply.rate - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        if writer.is_closing():
            raise ConnectionResetError  # the reader has left
        writer.write(piece)
    writer.write(reply.last)
    await writer.drain()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
