"""The least that a server does that uses an HTTP library: aiohttp on both sides passes the provider's bytes on."""

from __future__ import annotations

import socket
import sys

import aiohttp
import uvloop
from aiohttp import web


async def serve(provider_port: int) -> web.Application:
    application = web.Application()
    url = f"http://127.0.0.1:{provider_port}/v1/chat/completions"

    async def answer(request: web.Request) -> web.StreamResponse:
        given = await request.json()
        asked = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": given["message"]}]}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with session.post(url, json=asked) as reply:
            await response.prepare(request)
            async for piece in reply.content.iter_any():
                await response.write(piece)
        await response.write_eof()
        return response

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
    application.router.add_post("/chat", answer)
    return application


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)  # whoever started it reads this
    loop = uvloop.new_event_loop()
    web.run_app(serve(int(sys.argv[1])), sock=listening, loop=loop, print=None)
