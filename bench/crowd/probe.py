"""The probe, a process of its own: it reads one streaming chat and prints when each of its words arrived.

Its reader checks, as every reader of the crowd does, that no word is missing and none comes twice.
"""

from __future__ import annotations

import sys
import time

import uvloop

from bench.crowd.words import WordCheck
from bench.over_http.wire import Client


async def probe(url: str) -> None:
    client = Client(url)
    chat_id = (await client.post("/api/v1/chats", {"message": "Speak."}))["id"]
    check = WordCheck()
    async with client.open_feed(chat_id) as events:
        async for came in events:
            if check.read(came):
                print(f"{time.monotonic():.6f} {check.errors}", flush=True)
    print("The feed of the probe ended.", file=sys.stderr)


if __name__ == "__main__":
    uvloop.run(probe(sys.argv[1]))
