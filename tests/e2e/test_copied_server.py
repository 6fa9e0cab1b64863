"""From outside: a server on a file is stopped in the middle of a reply, copied to PostgreSQL, and goes on there.

The provider sends the beginning of a reply and then nothing more, so it is running however slow the machine is.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing
from pathlib import Path

import asyncpg
from tests.support.commands import run_indelible, start_indelible
from tests.support.messages import find_notices, outline
from tests.support.running_server import read_text, say, say_half
from tests.support.waiting import deadline

import indelible
from indelible.api.events import FeedEvent
from indelible.app.chat import Chat
from indelible.testing import SimulatedProvider

QUESTION = "How does a lighthouse work?"
STORY = "Tell me a story"
BEGINNING, CONTINUATION = "Once upon", " a time there"
CUT = "Long ago"
REPLIES = [say("It turns."), say("It shines."), say_half(CUT), say_half(BEGINNING), say_half(CONTINUATION)]
SERVE = ("serve", "--port", "0", "--database")


async def read_until_written(chat: Chat, text: str) -> None:
    read: list[FeedEvent] = []
    async with deadline(text), aclosing(chat.events()) as events:
        async for event in events:
            read.append(event)
            if text in read_text(read):
                return


async def make_chats(url: str) -> list[str]:
    """A chat with branches and a file, one that was stopped, and one whose reply is running."""
    async with indelible.Client(url) as ada:
        notes = await ada.upload(b"It rains in Oslo.\n" * 1000, name="notes.txt")
        whole = await ada.create_chat()
        await whole.send([QUESTION, notes])
        first = (await whole.messages())[0]
        await whole.edit(first.id, QUESTION)
        stopped, running = await ada.create_chat(STORY), await ada.create_chat()
        await read_until_written(stopped, CUT)
        await stopped.interrupt()
        await running.save_draft("And then?")
        await running.post(STORY)
        await read_until_written(running, BEGINNING)
        return [whole.id, stopped.id, running.id]


async def test_a_servers_file_moves_to_postgresql_and_a_reply_continues_there(
    tmp_path: Path, new_postgres: str
) -> None:
    async with SimulatedProvider(REPLIES) as provider:
        await move(tmp_path, new_postgres, model=f"openai:m@{provider.base_url('openai')}")
    connection = await asyncpg.connect(new_postgres)
    try:
        assert await connection.fetchval("SELECT count(*) FROM turns WHERE ended_at IS NULL") == 0
    finally:
        await connection.close()


async def move(tmp_path: Path, new_postgres: str, *, model: str) -> None:
    file = str(tmp_path / "chats.db")
    quick = {"INDELIBLE_AUTO_TITLES": "false", "INDELIBLE_MODEL": model}
    with start_indelible(*SERVE, file, directory=tmp_path, **quick) as server:
        whole_id, stopped_id, running_id = await make_chats(await asyncio.to_thread(server.read_url))
        server.send_signal(signal.SIGTERM)
        assert (await asyncio.to_thread(server.wait))[0] == 0

    copied = await asyncio.to_thread(run_indelible, "copy", file, "--to", new_postgres, directory=tmp_path)
    print(copied.stdout, end="")  # noqa: T201  (the proof, with -s)
    assert (copied.returncode, copied.stderr) == (0, "")

    with start_indelible(*SERVE, new_postgres, directory=tmp_path, **quick) as server:
        async with indelible.Client(await asyncio.to_thread(server.read_url)) as ada:
            running = await ada.chat(running_id)
            await read_until_written(running, CONTINUATION)
            await running.interrupt()
            parts = [text for role, text in outline(await running.messages()) if role == "assistant"]
            written = "".join(parts)
            print(f"Of a reply {len(parts[0]):,} characters on SQLite, then {len(written) - len(parts[0]):,} here.")  # noqa: T201
            assert parts == [BEGINNING, CONTINUATION]
            assert (await running.details()).draft == "And then?"
            assert find_notices(await (await ada.chat(stopped_id)).messages()) == ["Stopped by you."]
            assert len((await (await ada.chat(whole_id)).tree()).items) == 4
            assert await ada.read_file((await ada.files())[0].id) == b"It rains in Oslo.\n" * 1000
        server.send_signal(signal.SIGTERM)
        assert (await asyncio.to_thread(server.wait))[0] == 0
