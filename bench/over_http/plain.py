"""What people write: FastAPI, the official SDK, and the whole reply into SQLite when it has ended.

A reply that is cut off is lost, which is the point of Indelible; here it is only the price that counts.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from openai import AsyncOpenAI
from starlette.responses import StreamingResponse


def make_app(provider_port: int, path: str) -> FastAPI:
    app = FastAPI()
    model = AsyncOpenAI(base_url=f"http://127.0.0.1:{provider_port}/v1", api_key="bench")
    database = sqlite3.connect(path, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("CREATE TABLE IF NOT EXISTS messages (question TEXT, reply TEXT)")

    @app.post("/chat")
    async def chat(request: Request) -> StreamingResponse:
        question = (await request.json())["message"]

        async def reply() -> AsyncIterator[str]:
            pieces: list[str] = []
            stream = await model.chat.completions.create(
                model="bench", messages=[{"role": "user", "content": question}], stream=True
            )
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    pieces.append(chunk.choices[0].delta.content)
                    yield f"data: {json.dumps({'text': pieces[-1]})}\n\n"
            with database:
                database.execute("INSERT INTO messages VALUES (?, ?)", (question, "".join(pieces)))
            yield "data: [DONE]\n\n"

        return StreamingResponse(reply(), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    server = uvicorn.Server(uvicorn.Config(make_app(int(sys.argv[1]), sys.argv[2]), log_level="warning"))
    server.run(sockets=[listening])
