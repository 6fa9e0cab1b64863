"""The `indelible` command as people meet it: a real process, on a real pseudo-terminal or in a pipe, a real database.

Whatever only a new interpreter shows (signals, first of all) is started anew, as a user would; the others are forked
(tests/support/commands.py), on a terminal of their own too.
Every test has a working directory of its own, and chats there in `indelible.db`, as somebody who sets nothing does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from tests.support.commands import INDELIBLE, fork_indelible, run_indelible, start_indelible
from tests.support.waiting import DEADLINE_S

import indelible
from indelible.api.shapes import ChatMessage
from indelible.content import TextDelta
from indelible.models import Call, PromptMessage
from indelible.models.providers.demo import DemoModel
from indelible.settings import load_settings
from indelible.testing import SimulatedProvider, faults, parts

# Makes the pseudo-terminal the process's own, as a login does, so that Ctrl-C in it is a signal.
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
ESCAPE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT = "you › "
STOPPED = "Stopped by you."
STORY = "tell me a long story"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load_messages() -> list[ChatMessage]:
    """What is kept of the last changed chat."""

    async def load() -> list[ChatMessage]:
        async with indelible.open("indelible.db", worker=False) as app:
            (last,) = await app.chats(limit=1)
            return await (await app.chat(last.id)).messages()

    return asyncio.run(load())


def load_replies() -> list[ChatMessage]:
    return [message for message in load_messages() if message.role == "assistant"]


def tell_story() -> str:
    """What the demo model says when nobody interrupts it."""

    async def ask() -> str:
        call = Call(messages=[PromptMessage(role="user", blocks=[indelible.Text(STORY)])])
        return "".join([part.delta async for part in DemoModel(pace_s=0).stream(call) if isinstance(part, TextDelta)])

    return asyncio.run(ask())


class Session:
    """A process and the keyboard and screen it talks to."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkServerProcess, terminal: int) -> None:
        self._process = process
        self._terminal = terminal
        self._screen = b""
        self._read_to = 0

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait_for(self, marker: str) -> str:
        """What appears up to the marker, from where the last wait ended."""
        give_up_at = time.monotonic() + DEADLINE_S
        while True:
            text = ESCAPE.sub("", self._screen.decode(errors="replace"))
            found = text.find(marker, self._read_to)
            if found >= 0:
                seen, self._read_to = text[self._read_to : found], found + len(marker)
                return seen
            assert self._read(give_up_at), f"{marker!r} did not appear in {text[self._read_to :]!r}"

    def wait_for_exit(self) -> int:
        give_up_at = time.monotonic() + DEADLINE_S
        while self._read(give_up_at):
            pass
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait(DEADLINE_S)
        self._process.join(DEADLINE_S)
        assert self._process.exitcode is not None, "the terminal is closed, and the process goes on"
        return self._process.exitcode

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as it should when a program has left it."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def _read(self, give_up_at: float) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, give_up_at - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # how Linux says that nobody has the other side open any more
            return False
        self._screen += data
        return bool(data)


@contextlib.contextmanager
def open_session(*arguments: str, anew: bool = False) -> Iterator[Session]:
    """`anew`: in a new interpreter."""
    terminal, other_side = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    environment = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": os.getcwd()}  # noqa: PTH109
    process: subprocess.Popen[bytes] | ForkServerProcess
    if anew:
        process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *INDELIBLE, *arguments],
            stdin=other_side,
            stdout=other_side,
            stderr=other_side,
            start_new_session=True,
            env=environment,
        )
    else:
        process = fork_indelible(*arguments, terminal=os.ttyname(other_side), environment=environment)
    os.close(other_side)
    session = Session(process, terminal)
    try:
        yield session
    finally:
        process.kill()
        session.wait_for_exit()
        os.close(terminal)


# --- on a terminal -----------------------------------------------------------------------


def test_ctrl_c_stops_the_reply_keeps_it_and_the_chat_goes_on() -> None:
    with open_session("chat", "--pace", "0.01", anew=True) as session:
        session.wait_for(PROMPT)
        session.type(f"{STORY}\n")
        session.wait_for("older than its lamp")
        session.type(CTRL_C)
        rest = session.wait_for(STOPPED)
        assert "The end." not in rest
        session.wait_for(PROMPT)
        session.type("hello\n")
        assert "My last reply was cut short" in session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        session.type(CTRL_D)
        assert session.wait_for_exit() == 0
    _, stopped, notice, *_ = load_messages()
    assert stopped.partial
    assert "older than its lamp" in stopped.text
    assert (notice.role, notice.text) == ("notice", STOPPED)


def test_a_chat_that_was_killed_in_a_reply_is_there_and_the_reply_goes_on() -> None:
    with open_session("chat", "--pace", "0.01", anew=True) as session:
        session.wait_for(PROMPT)
        session.type(f"{STORY}\n")
        session.wait_for("look for a pen?")
        session.send_signal(signal.SIGKILL)
        assert session.wait_for_exit() == -signal.SIGKILL

    with open_session("chat", "--resume", "--pace", "0") as session:
        session.wait_for(f"{PROMPT}{STORY}")
        assert "look for a pen?" in session.wait_for("The end.")
        session.wait_for(PROMPT)
        session.type("hello\n")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        session.type(CTRL_D)
        assert session.wait_for_exit() == 0

    cut, rest, answer = load_replies()
    assert "look for a pen?" in cut.text
    assert cut.text + rest.text == tell_story()
    assert (cut.partial, cut.reason, rest.partial, rest.continues) == (True, "crashed", False, cut.id)
    assert "cut short" not in answer.text


def test_a_chat_that_was_terminated_in_a_reply_leaves_the_terminal_as_it_was_and_goes_on() -> None:
    with open_session("chat", "--pace", "0.01", anew=True) as session:
        session.wait_for(PROMPT)
        session.type(f"{STORY}\n")
        session.wait_for("keeper of")
        session.send_signal(signal.SIGTERM)
        assert session.wait_for_exit() == 143
        assert session.echoes

    done = run_indelible("chat", "--resume", "--pace", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip() == tell_story()
    assert [reply.reason for reply in load_replies()] == ["handed_over", None]


def test_continue_goes_on_from_the_word_where_the_reply_was_stopped() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type(f"{STORY}\n")
        session.wait_for("older than its lamp")
        session.type(CTRL_C)
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
        session.type("/continue\n")
        session.wait_for("I continue right there")
        session.wait_for("look for a pen?")
        session.type(CTRL_C)
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
    first, second = load_replies()
    assert tell_story().startswith(first.text + second.text)
    assert "look for a pen?" in second.text


def test_edit_puts_the_last_message_on_the_line() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("hello\n")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        session.type("/edit\n")
        session.wait_for(f"{PROMPT}hello")
        session.type(" again\n")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
    assert [message.text for message in load_messages() if message.role == "user"] == ["hello again"]


def test_a_tool_call_is_shown_with_its_result() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("roll a die\n")
        session.wait_for('✓ roll_die {"sides": 6} → ')
        session.wait_for("roll_die answered: ")
        session.wait_for(PROMPT)


def test_ctrl_c_stops_a_question_and_leaves_no_mark_in_its_reply() -> None:
    with open_session("ask", STORY, "--pace", "0.01") as session:
        session.wait_for("older than its lamp")
        session.type(CTRL_C)
        assert "^C" not in session.wait_for(STOPPED)
        assert session.wait_for_exit() == 128 + signal.SIGINT
        assert session.echoes


def test_ctrl_c_at_the_prompt_after_a_stop_leaves() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type(f"{STORY}\n")
        session.wait_for("keeper of")
        assert not session.echoes
        session.type(CTRL_C)
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
        session.type(CTRL_C)
        assert session.wait_for_exit() == 0


def test_what_is_typed_during_a_reply_waits_for_the_prompt() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type("hello\n")
        session.wait_for("A greeting.")
        session.type("/quit\n")
        assert "/quit" not in session.wait_for(PROMPT)
        session.wait_for("/quit")
        assert session.wait_for_exit() == 0


def test_what_is_typed_during_a_reply_is_sent_after_ctrl_c_has_stopped_it() -> None:
    with open_session("chat", "--pace", "0.01", anew=True) as session:
        session.wait_for(PROMPT)
        session.type(f"{STORY}\n")
        session.wait_for("keeper of")
        session.type(f"hello\n{CTRL_C}")
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
        session.wait_for("hello")
        session.wait_for("I am the demo model")


def test_a_message_may_have_several_lines() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("hello\x1b\rand once more\r")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        session.type("\x1b[200~hello\nand pasted\x1b[201~\r")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
    messages = [message.text for message in load_messages() if message.role == "user"]
    assert messages == ["hello\nand once more", "hello\nand pasted"]


def test_what_was_typed_in_an_earlier_session_is_an_arrow_away() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("hello\r")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        session.type(CTRL_D)
        assert session.wait_for_exit() == 0
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("\x1b[A")
        session.wait_for("hello")
        session.type(" again\r")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
    assert [message.text for message in load_messages() if message.role == "user"] == ["hello again"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(number: signal.Signals) -> None:
    with open_session("chat", "--pace", "0", anew=True) as session:
        session.wait_for(PROMPT)
        session.send_signal(number)
        assert session.wait_for_exit() == (143 if number is signal.SIGTERM else 0)
        assert session.echoes


# --- on a server ---


def test_a_chat_on_a_server_is_answered_stopped_and_resumed() -> None:
    with start_indelible("serve", "--port", "0") as server:
        url = server.read_url()
        with open_session("chat", "--server", url) as session:
            session.wait_for(url)
            session.wait_for(PROMPT)
            session.type(f"{STORY}\r")
            session.wait_for("older than its lamp")
            session.type(CTRL_C)
            assert "The end." not in session.wait_for(STOPPED)
            session.wait_for(PROMPT)
            session.type("hello\r")
            assert "My last reply was cut short" in session.wait_for("I am the demo model")
            session.wait_for(PROMPT)
            session.type("/title Ashore\r")
            session.wait_for("Renamed to “Ashore”.")
            session.wait_for(PROMPT)
            session.type(CTRL_D)
            assert session.wait_for_exit() == 0
        assert run_indelible("chats", "--server", url).stdout.endswith("  Ashore\n")
        done = run_indelible("chat", "--resume", typed="roll a die\n", INDELIBLE_URL=url)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.search(r"\[roll_die answered: [1-6]\]", done.stdout)
        server.send_signal(signal.SIGTERM)
        assert server.wait()[0] == 0
    assert [message.text for message in load_messages() if message.role == "user"] == [STORY, "hello", "roll a die"]


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("--server", "http://127.0.0.1:9", "--database", "x.db"), 2, "Choose either --server or --database."),
        (("--server", "127.0.0.1:9"), 2, "The server's URL must begin with http:// or https://"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line(arguments: tuple[str, ...], status: int, expected: str) -> None:
    done = run_indelible("chat", *arguments, typed="hello\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert expected in done.stderr


# --- in a pipe ---------------------------------------------------------------------------


def test_a_line_in_a_pipe_is_answered_in_plain_text() -> None:
    command = [*INDELIBLE, "chat", "--pace", "0"]
    done = subprocess.run(command, input="hello\n", capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "I am the **demo model** of Indelible." in done.stdout
    assert "\x1b" not in done.stdout


def test_each_line_of_a_pipe_may_be_a_message() -> None:
    done = run_indelible("chat", "--lines", "--pace", "0", typed="roll a die\n\nwhat time is it?")
    assert re.search(r"\[roll_die answered: [1-6]\]", done.stdout)
    assert done.stdout.index("roll_die") < done.stdout.index("current_time")
    assert done.returncode == 0


def test_a_reader_that_leaves_early_is_no_error_to_print() -> None:
    with subprocess.Popen(
        [*INDELIBLE, "chat", "--lines", "--pace", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"tell me a long story\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(DEADLINE_S) == 1


def test_a_chat_in_a_pipe_is_kept_and_listed_and_can_be_resumed_by_number() -> None:
    run_indelible("chat", "--pace", "0", typed="hello\n")
    run_indelible("chat", "--pace", "0", typed="roll a die\n")
    done = run_indelible("chat", "--resume", "2", "--pace", "0", typed="help\n")
    assert done.returncode == 0
    first, second = run_indelible("chats").stdout.splitlines()
    assert re.fullmatch(r"  1  \d{4}-\d\d-\d\d \d\d:\d\d  idle  chat_\w+  .*", first)
    assert second.startswith("  2  ")
    assert [message.text for message in load_messages() if message.role == "user"] == ["hello", "help"]


# --- what was recorded -------------------------------------------------------------------


def record_chat() -> str:
    """A chat with a provider that refuses once and then answers, all of it recorded; its key."""

    async def talk() -> None:
        said = [parts.text_delta("1", "It is raining."), parts.finish()]
        async with SimulatedProvider([said], [faults.Status(429)]) as provider:
            settings = load_settings(
                model=f"openai:m@{provider.base_url('openai')}", debug="all", auto_titles=False, retry_base_s=0
            )
            async with indelible.open(settings=settings) as app:
                await (await app.create_chat(title="Rain")).send("Is it raining?")

    asyncio.run(talk())
    (run,) = json.loads(run_indelible("debug", "--json").stdout)
    return str(run["id"])


def test_what_was_recorded_is_printed_as_a_tree_and_one_run_of_it_in_full() -> None:
    run = record_chat()
    tree = run_indelible("debug")
    assert (tree.returncode, tree.stderr) == (0, "")
    head, first, step, refused, heard = tree.stdout.splitlines()
    assert re.fullmatch(r"chat_\w+ Rain", head)
    assert first.startswith(f"└── {run} turn · completed · openai:m@http://127.0.0.1:")
    assert step.startswith("    └── step 1 · completed · ")
    assert refused.startswith("        ├── attempt 1.1 · completed · HTTP 429 · POST http://127.0.0.1:")
    assert heard.startswith("        └── attempt 1.2 · completed · HTTP 200 · POST http://127.0.0.1:")
    assert run_indelible("debug", "1").stdout == run_indelible("debug", "show").stdout == tree.stdout
    whole = run_indelible("debug", "--run", run, "--full")
    assert "Is it raining?" in whole.stdout
    assert "event: response.completed" in whole.stdout
    assert json.loads(run_indelible("debug", "--run", run, "--json").stdout)["id"] == run


def test_an_answer_is_replayed_saved_and_replayed_from_the_file() -> None:
    run = record_chat()
    done = run_indelible("debug", "replay", run, "--save", "rain.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        f"replay · completed · {run}, attempt 1.2 · openai",
        "text  It is raining.",
    ]
    assert done.stdout.splitlines()[-1] == "Saved as rain.json."
    again = run_indelible("debug", "replay", "rain.json")
    assert again.stdout.splitlines()[1:] == done.stdout.splitlines()[1:-1]
    refused = run_indelible("debug", "replay", run, "--attempt", "1.1")
    assert refused.returncode == 0
    assert "replay · failed" in refused.stdout
    assert "429" in refused.stdout


def test_records_can_be_looked_at_beside_a_chat_that_is_open() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("hello\n")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        done = run_indelible("debug")
    assert done.returncode == 0
    assert re.fullmatch(r"No runs are recorded for chat_\w+( \S.*)?\. The setting 'debug' is 'errors'\.\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ((), 1, "There are no chats yet."),
        (("7",), 1, "There are no chats yet."),
        (("--run", "run_nope"), 1, "Run 'run_nope' not found."),
        (("replay", "run_nope"), 1, "Run 'run_nope' not found."),
        (("replay",), 2, "Missing argument 'RUN|FILE'"),
        (("replay", "notes.json"), 1, "notes.json is not a recording"),
        (("replay", "notes.json", "--attempt", "1.1"), 1, "A file holds a single exchange"),
        (("--limit", "0"), 2, "--limit"),
        (("show", "1", "2"), 2, "2"),
    ],
)
def test_a_mistake_about_records_is_one_line(
    arguments: tuple[str, ...], status: int, expected: str, working_directory: Path
) -> None:
    (working_directory / "notes.json").write_text("{}")
    run_indelible("migrate")
    done = run_indelible("debug", *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("indelible: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_help_of_debug_has_examples() -> None:
    told = run_indelible("debug", "--help").stdout
    assert "indelible debug --run RUN --json" in told
    assert "indelible debug replay RUN --attempt 1.2 --save strange.json" in told


# --- the database --------------------------------------------------------------------------


def test_a_database_that_another_chat_works_on_is_one_line_and_can_be_listed_beside_it() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("hello\n")
        session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        done = run_indelible("chat", typed="hello\n")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("indelible: ")
        assert "indelible.db is in use by another " in done.stderr
        assert done.stderr.count("\n") == 1
        assert "  idle  chat_" in run_indelible("chats").stdout


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        ("nowhere/chats.db", "nowhere"),
        ("notes.txt", "notes.txt is not a SQLite database."),
        ("postgresql://ada:hush@127.0.0.1:1/chats", "postgresql://ada:***@127.0.0.1:1/chats cannot be reached: "),
        ("mysql://host/chats", "Indelible does not support 'mysql' databases."),
    ],
)
@pytest.mark.parametrize("command", ["chat", "chats"])
def test_a_database_that_cannot_be_opened_is_one_line(
    command: str, database: str, expected: str, working_directory: Path
) -> None:
    (working_directory / "notes.txt").write_text("These are notes, and no database at all." * 100)
    done = run_indelible(command, "--database", database, typed="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("indelible: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert "hush" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--resume",), "There are no chats yet. Start one with: indelible chat"),
        (("--resume", "chat_nope"), "Chat 'chat_nope' not found. List chats with: indelible chats"),
        (("3",), "There are no chats yet. Start one with: indelible chat"),
    ],
)
def test_a_chat_that_is_not_there_cannot_be_resumed(arguments: tuple[str, ...], expected: str) -> None:
    done = run_indelible("chat", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"indelible: {expected}\n")


# --- the command line --------------------------------------------------------------------


def test_version_is_one_line() -> None:
    done = run_indelible("--version")
    assert re.fullmatch(r"indelible \S.*\n", done.stdout)
    assert done.returncode == 0


def test_help_does_not_load_what_it_does_not_need() -> None:
    script = (
        "import sys; sys.argv = ['indelible', '--help']; from indelible.cli.main import main\ntry: main()\nfinally: "
    )
    heavy = ["sqlalchemy", "alembic", "pydantic", "asyncio", "indelible.app.app"]
    script += f"print('loaded:', [name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("arguments", [("--help",), ("chat", "--help")])
def test_help_names_the_chat(arguments: tuple[str, ...]) -> None:
    done = run_indelible(*arguments)
    assert done.returncode == 0
    assert "chat" in done.stdout


def test_the_help_of_chat_has_examples() -> None:
    assert 'echo "roll a die" | indelible chat' in run_indelible("chat", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("chat", "--model", "oracle"), "Unknown model 'oracle'. Use demo, or provider:NAME"),
        (("serve", "--model", "antropic:claude"), "Did you mean anthropic:NAME?"),
        (("worker", "--model", "xai:grok"), "Set the environment variable XAI_API_KEY"),
        (("chat", "--pace", "slow"), "--pace"),
        (("chat", "--pace", "-1"), "--pace"),
        (("chat", "--nope"), "--nope"),
        (("chats", "--limit", "0"), "--limit"),
        (("chats", "export", "--format", "pdf"), "Choose json or md."),
        (("ask",), "There is no question."),
        (("usage", "--since", "yesterday"), "Can't read --since 'yesterday' as a day."),
        (("completion", "tcsh"), "Choose bash, zsh or fish."),
        (("chat", "--tools", "mine:TOOLS", "--server", "http://127.0.0.1:9"), "runs its own tools"),
        (("chat", "--tools", "nosuch:TOOLS"), "there is no module nosuch."),
        (("serve", "--client-tools", "os:nosuch", "--log-format", "text"), "the module os has no nosuch."),
        (("ask", "hello", "--file", "nosuch.png"), "'nosuch.png' does not exist"),
        (
            ("usage", "--since", "2026-11-02", "--until", "2026-11-01"),
            "--since 2026-11-02 is after",
        ),
        (("frobnicate",), "No such command 'frobnicate'. See 'indelible --help'."),
        (("chats", "frobnicate"), "No such command 'frobnicate'. See 'indelible chats --help'."),
        (("chats", "export", "--frobnicate"), "See 'indelible chats export --help'."),
        (("migrate", "--database", ""), "database = '', from an argument: it must be a file or a URL, not empty"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments: tuple[str, ...], expected: str) -> None:
    done = run_indelible(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("indelible: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("user",), ("token",)])
def test_a_command_that_needs_another_prints_its_help_as_it_is(arguments: tuple[str, ...]) -> None:
    done = run_indelible(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == run_indelible(*arguments, "--help").stdout


# --- migrate -----------------------------------------------------------------------------


def test_migrate_creates_a_database_and_has_nothing_to_do_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    first, second = (run_indelible("migrate", "--database", str(path)) for _ in range(2))

    assert re.fullmatch(rf"Created {path} \(schema \d{{4}}\)\.\n", first.stdout)
    assert re.fullmatch(rf"{path} is up to date \(schema \d{{4}}\)\.\n", second.stdout)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr + second.stderr == ""


def test_migrate_takes_the_database_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_DATABASE", str(tmp_path / "set.db"))

    assert run_indelible("migrate").stdout.startswith(f"Created {tmp_path / 'set.db'} ")


def test_a_database_that_cannot_be_opened_is_one_line_without_the_password() -> None:
    done = run_indelible("migrate", "--database", "postgresql://ada:hush@127.0.0.1:1/chats")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("indelible: postgresql://ada:***@127.0.0.1:1/chats cannot be reached: ")
    assert done.stderr.count("\n") == 1
    assert "hush" not in done.stderr


def test_a_server_offers_a_login_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it prints elsewhere is a log; tests/test_logs.py reads all of it."""
    monkeypatch.setenv("INDELIBLE_TOKEN", "hush")
    with open_session("serve", "--port", "0") as session:
        session.wait_for("Log in once, within the hour, at http://127.0.0.1:")
        session.wait_for("/login#token=idt_")
        session.send_signal(signal.SIGTERM)
        assert session.wait_for_exit() == 0


def test_the_help_of_migrate_has_examples() -> None:
    assert "indelible migrate --database chats.db" in run_indelible("migrate", "--help").stdout


def test_wrong_settings_stop_the_chat_at_its_start_with_one_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MAX_STEPS", "banana")
    monkeypatch.setenv("INDELIBLE_PORT", "x")
    done = run_indelible("chat", typed="hello\n")
    assert done.returncode == 2
    port, steps = done.stderr.splitlines()
    assert port.startswith("indelible: port = 'x', from the environment variable INDELIBLE_PORT: ")
    assert steps.startswith("max_steps = 'banana', from the environment variable INDELIBLE_MAX_STEPS: ")


def test_the_chat_takes_its_model_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MODEL", "oracle")
    assert "Unknown model 'oracle'" in run_indelible("chat", typed="hello\n").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("chats",),
        ("chats", "search", "rain"),
        ("usage",),
        ("debug", "show"),
        ("debug", "replay", "run_1"),
        ("backup", "saved.db"),
        ("copy", "indelible.db", "--to", "postgresql://ada@127.0.0.1/none"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_a_command_that_only_reads_creates_no_database(arguments: tuple[str, ...], working_directory: Path) -> None:
    done = run_indelible(*arguments)

    assert done.returncode == (0 if arguments == ("doctor",) else 1), done.stderr
    assert "indelible.db" in done.stdout + done.stderr
    assert list(working_directory.iterdir()) == []
