"""The least that any program can do: raw sockets, no HTTP library. It passes the provider's bytes on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

import uvloop

_BODY: Final = b'{"model":"bench","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
_REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
_READ_BYTES: Final = 65_536
_END: Final = b"0\r\n\r\n"


async def serve(provider_port: int) -> None:
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                await reader.readexactly(length)
                upstream = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", provider_port)
                upstream[1].write(_REQUEST)
                while piece := await upstream[0].read(_READ_BYTES):
                    writer.write(piece)
                    if piece.endswith(_END):
                        break
                idle.append(upstream)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)  # whoever started it reads this
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
