"""Logs: a real server and a real worker, driven and stopped, and every line that they print.

Must hold: with `--log-format json` each line of both streams is JSON, and a line about a chat has its ids; as text a
line is readable and cannot be forged; no secret is in any line; the library installs no handler.
"""

from __future__ import annotations

import asyncio
import io
import json
import linecache
import logging
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.commands import CommandProcess, run_indelible, start_indelible
from tests.support.waiting import DEADLINE_S

import indelible
from indelible.logs import JsonFormatter, Redactor, TextFormatter, get_logger, log_context, set_log_attempt

pytestmark = pytest.mark.may_log("indelible.worker.chat_runner: ")

TOKEN = "hush-this-is-the-token"  # noqa: S105
KEY = "sk-hush-this-is-a-key"


@contextmanager
def start(directory: Path, *arguments: str, **variables: str) -> Iterator[CommandProcess]:
    with start_indelible(*arguments, directory=directory, OPENAI_API_KEY=KEY, **variables) as command:
        yield command


def stop(command: CommandProcess) -> tuple[list[str], list[str]]:
    """Its lines on standard output and standard error, when it has ended well."""
    command.send_signal(signal.SIGTERM)
    status, out, err = command.wait()
    assert status == 0, err
    return out.splitlines(), err.splitlines()


def post(url: str, body: object, *, token: str = TOKEN) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  (our own server)
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:  # noqa: S310
        return json.load(response)


def wait_for_end_of_turn(url: str, chat_id: str) -> None:
    """Read the feed until the chat is idle."""
    address, headers = f"{url}/api/v1/chats/{chat_id}/events", {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:  # noqa: S310
        for line in response:
            if line.startswith(b"data: ") and json.loads(line[6:]).get("status") == "idle":
                return
    pytest.fail("the feed ended before the turn did")


def test_every_line_of_a_server_is_json_and_a_line_about_a_chat_has_its_ids(tmp_path: Path) -> None:
    options = ("--port", "0", "--log-format", "json", "--log-level", "info", "--access-log")
    with start(tmp_path, "serve", *options, INDELIBLE_TOKEN=TOKEN) as server:
        ready = json.loads(server.read_line())
        assert ready["message"] == f"Indelible is ready at {ready['url']}"
        chat_id = post(f"{ready['url']}/api/v1/chats", {"message": "hello"})["id"]
        wait_for_end_of_turn(ready["url"], chat_id)
        with pytest.raises(urllib.error.HTTPError):
            post(f"{ready['url']}/api/v1/chats?token={TOKEN}", {"message": "hello"}, token=TOKEN[:4])
        out, err = stop(server)
    lines = [json.loads(line) for line in [*out, *err]]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    started = next(line for line in lines if line["message"] == "turn started")
    ended = next(line for line in lines if line["message"] == "turn ended")
    assert started["chat"] == ended["chat"] == chat_id
    assert started["turn"] == ended["turn"]
    assert started["turn"].startswith("turn_")
    assert ended["attempt"].startswith("att")
    assert started["epoch"] == ended["epoch"] == 1
    requests = [line for line in lines if line["logger"] == "uvicorn.access"]
    assert any(line["message"].startswith("POST /api/v1/chats 401 ") for line in requests)
    assert all(line["chat"] == chat_id for line in requests if "/events" in line["message"])
    assert TOKEN not in "".join([*out, *err])


def test_a_server_that_cannot_start_says_so_in_json_too(tmp_path: Path) -> None:
    done = run_indelible("serve", "--host", "0.0.0.0", "--log-format", "json", directory=tmp_path)  # noqa: S104
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, done.stdout, line["level"]) == (1, "", "critical")
    assert line["message"].startswith("0.0.0.0 is reachable from other machines.")


def test_a_server_whose_database_is_unusable_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("These are notes, and no database at all." * 100)
    sentence = "notes.db is not a SQLite database. Choose another file."
    text = run_indelible("serve", "--port", "0", "--database", "notes.db", directory=tmp_path)
    assert (text.returncode, text.stderr) == (1, f"indelible: {sentence}\n")
    options = ("--port", "0", "--database", "notes.db", "--log-format", "json")
    (line,) = run_indelible("serve", *options, directory=tmp_path).stderr.splitlines()
    assert json.loads(line)["message"] == sentence


def test_a_server_is_silent_by_default_and_readable_when_asked(tmp_path: Path) -> None:
    with start(tmp_path, "serve", "--port", "0", INDELIBLE_TOKEN=TOKEN) as server:
        url = server.read_url()
        chat_id = post(f"{url}/api/v1/chats", {"message": "hello"})["id"]
        wait_for_end_of_turn(url, chat_id)
        (ready, described), err = stop(server)
        assert (ready, err) == (f"Indelible is ready at {url}", [])
        assert described.endswith("model demo, tools 2, login needed")
    with start(tmp_path, "serve", "--port", "0", "--log-level", "info", INDELIBLE_TOKEN=TOKEN) as server:
        url = server.read_url()
        chat_id = post(f"{url}/api/v1/chats", {"message": "hello"})["id"]
        wait_for_end_of_turn(url, chat_id)
        _, err = stop(server)
    assert any(f" INFO    worker.chat_runner: turn started  chat={chat_id} turn=turn_" in line for line in err)


def test_a_worker_logs_as_a_server_does(tmp_path: Path) -> None:
    with start(tmp_path, "worker", "--log-format", "json") as worker:
        worker.read_line()
        out, err = stop(worker)
    assert [json.loads(line)["message"] for line in out] == ["Indelible's worker is ready"]
    assert err == []


@pytest.mark.parametrize(("option", "value"), [("--log-format", "xml"), ("--log-level", "loud")])
def test_an_unknown_format_or_level_is_one_line(tmp_path: Path, option: str, value: str) -> None:
    done = run_indelible("serve", option, value, directory=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"indelible: {option[2:].replace('-', '_')} = '{value}'")


# --- lines ---


def write(formatter: logging.Formatter, message: str, *arguments: object, **more: Any) -> str:
    """A line as a logger of ours would print it."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger = get_logger("indelible.worker.chat_runner")
    logger.addHandler(handler)
    try:
        logger.warning(message, *arguments, **more)
    finally:
        logger.removeHandler(handler)
    return out.getvalue()


async def test_tasks_of_a_turn_share_its_ids_and_those_of_another_do_not() -> None:
    formatter = JsonFormatter(Redactor(()))

    async def run_turn(chat: str) -> dict[str, Any]:
        with log_context(chat=chat, epoch=2), log_context(turn=f"turn of {chat}"):
            started, begun = asyncio.Event(), asyncio.Event()

            async def work() -> dict[str, Any]:
                started.set()
                await begun.wait()
                written: dict[str, Any] = json.loads(write(formatter, "it happened"))
                return written

            task = asyncio.create_task(work())
            await started.wait()
            set_log_attempt(f"attempt of {chat}")
            begun.set()
            return await task

    for line, chat in zip(await asyncio.gather(run_turn("a"), run_turn("b")), "ab", strict=True):
        assert (line["chat"], line["turn"], line["attempt"], line["epoch"]) == (
            chat,
            f"turn of {chat}",
            f"attempt of {chat}",
            2,
        )
    assert "chat" not in json.loads(write(formatter, "outside"))


def test_what_a_line_is_given_wins_over_the_context() -> None:
    with log_context(chat="around"):
        assert json.loads(write(JsonFormatter(Redactor(())), "x", extra={"chat": "given"}))["chat"] == "given"


@pytest.mark.parametrize("formatter", [JsonFormatter, lambda redact: TextFormatter(redact, colours=False)])
def test_secrets_and_passwords_in_urls_are_replaced_also_in_a_traceback(formatter: Any) -> None:
    error = ValueError(f"postgresql://ada:hush@host/chats and {KEY}")
    line = write(formatter(Redactor([KEY, ""])), "failed with %s", KEY, exc_info=error)
    assert "hush" not in line
    assert "postgresql://ada:***@host/chats and ***" in line


def test_text_from_outside_cannot_forge_a_line() -> None:
    formatter = TextFormatter(Redactor(()), colours=False)
    line = write(formatter, "a provider said: %s", "well\n2026-11-16 INFO forged\x1b[2J")
    assert line.splitlines()[1:] == ["    2026-11-16 INFO forged\ufffd[2J"]


def test_the_library_installs_no_handler() -> None:
    script = "import logging, indelible, indelible.app.compose, indelible.logs; print(logging.root.handlers)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_message_is_one_line_of_json_and_no_forged_line_of_text(message: str, chat: str) -> None:
    record = logging.LogRecord("indelible.worker", logging.WARNING, __file__, 1, message.replace("%", ""), (), None)
    record.chat = chat
    line = JsonFormatter(Redactor([])).format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == message.replace("%", "")
    text = TextFormatter(Redactor([]), colours=False).format(record)
    assert all(rest.startswith("    ") for rest in text.split("\n")[1:])


def raise_first() -> None:
    raise LookupError("the first")


def raise_second() -> None:
    try:
        raise_first()
    except LookupError as first:
        raise RuntimeError("the second") from first


def catch_several() -> Exception:
    """A group, with members that have a cause or none."""
    try:
        raise_second()
    except RuntimeError as second:
        return ExceptionGroup("several", [second, ValueError("another")])
    raise AssertionError


@pytest.mark.parametrize(
    "formatter",
    [JsonFormatter(Redactor(())), TextFormatter(Redactor(()), colours=False), logging.Formatter()],
    ids=["json", "text", "anybody's"],
)
def test_an_error_is_logged_with_where_it_was_raised_and_no_file_is_read_for_it(formatter: logging.Formatter) -> None:
    linecache.clearcache()
    line = write(formatter, "it failed", exc_info=catch_several())
    assert [file for file, entry in linecache.cache.items() if len(entry) > 1] == []  # the others are not read yet
    assert all(said in line for said in ("it failed", "LookupError: the first", "RuntimeError: the second"))
    assert all(said in line for said in ("ExceptionGroup: several", "ValueError: another", "direct cause"))
    assert "in raise_second" in line
    assert Path(__file__).name in line


WARNS = """
import io, linecache, warnings
from indelible.logs import set_up_logging

out = io.StringIO()
set_up_logging(stream=out)
linecache.clearcache()
warnings.warn("something odd")
print(*linecache.cache)
print(out.getvalue())
"""


def test_a_warning_is_a_line_of_the_log_and_no_file_is_read_for_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WARNS)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    files_read, line, *_ = done.stdout.splitlines()
    assert files_read == ""
    assert line.endswith(f"WARNING py.warnings: {tmp_path}/program.py:8: UserWarning: something odd")


def test_every_module_that_logs_a_traceback_has_a_logger_that_reads_no_file() -> None:
    sources = {path: path.read_text() for path in Path(indelible.__file__).parent.rglob("*.py")}
    logging_errors = {path for path, text in sources.items() if re.search(r"_log\.exception\(|exc_info=", text)}
    assert logging_errors
    assert [path.name for path in logging_errors if "_log: Final = get_logger(__name__)" not in sources[path]] == [
        "logs.py"
    ]
