"""The `indelible` command as people meet it: a real process, on a real pseudo-terminal or in a pipe."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DEADLINE_S = 30.0
INDELIBLE = [sys.executable, "-m", "indelible"]
# Makes the pseudo-terminal the process's own, as a login does, so that Ctrl-C in it is a signal.
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
ESCAPE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
CTRL_C, CTRL_D = "\x03", "\x04"
PROMPT = "you › "
STOPPED = "Stopped by you. What was said is kept."


class Session:
    """A process and the keyboard and screen it talks to."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._screen = b""
        self._read_to = 0

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

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
        return self.process.wait(DEADLINE_S)

    def press_ctrl_c_until_exit(self) -> int:
        """Press Ctrl-C at the prompt. CPython's readline misses one that comes in the instant before it waits."""
        give_up_at = time.monotonic() + DEADLINE_S
        while time.monotonic() < give_up_at:
            self.type(CTRL_C)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(2.0)
        return self.wait_for_exit()

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
def open_session(*arguments: str) -> Iterator[Session]:
    terminal, other_side = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *INDELIBLE, *arguments],
        stdin=other_side,
        stdout=other_side,
        stderr=other_side,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(other_side)
    with process:
        try:
            yield Session(process, terminal)
        finally:
            process.kill()
            os.close(terminal)


def run_indelible(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*INDELIBLE, *arguments], input=typed, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


# --- on a terminal -----------------------------------------------------------------------


def test_ctrl_c_stops_the_reply_keeps_it_and_the_chat_goes_on() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type("tell me a long story\n")
        session.wait_for("older than its lamp")
        session.type(CTRL_C)
        rest = session.wait_for(STOPPED)
        assert "The end." not in rest
        session.wait_for(PROMPT)

        session.type("/history\n")
        history = session.wait_for("3 messages.")
        assert "tell me a long story" in history
        assert "older than its lamp" in history
        assert "cut off" in history
        assert STOPPED not in history

        session.wait_for(PROMPT)
        session.type("hello\n")
        assert "My last reply was cut short" in session.wait_for("I am the demo model")
        session.wait_for(PROMPT)
        session.type(CTRL_D)
        assert session.wait_for_exit() == 0


def test_continue_goes_on_from_the_word_where_the_reply_was_cut() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type("tell me a long story\n")
        session.wait_for("older than its lamp")
        session.type(CTRL_C)
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
        session.type("/continue\n")
        session.wait_for("I go on right there")
        session.wait_for("look for a pen?")
        session.type(CTRL_C)
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
        session.type("/history\n")
        history = session.wait_for("5 messages.")
        assert history.count("older than its lamp") == 1
        assert history.count("look for a pen?") == 1


def test_a_tool_call_is_shown_with_its_result() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("roll a die\n")
        session.wait_for('✓ roll_die {"sides": 6} → ')
        session.wait_for("roll_die answered: ")
        session.wait_for(PROMPT)


def test_a_second_ctrl_c_leaves_and_the_terminal_is_as_before() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type("tell me a long story\n")
        session.wait_for("keeper of")
        assert not session.echoes
        session.type(CTRL_C)
        session.wait_for(STOPPED)
        session.wait_for(PROMPT)
        assert session.press_ctrl_c_until_exit() == 0


def test_what_is_typed_during_a_reply_waits_for_the_prompt() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type("hello\n")
        session.wait_for("A greeting.")
        session.type("/quit\n")
        assert "/quit" not in session.wait_for(PROMPT)
        session.wait_for("/quit")
        assert session.wait_for_exit() == 0


def test_a_terminated_chat_leaves_the_terminal_as_it_was() -> None:
    with open_session("chat", "--pace", "0.01") as session:
        session.wait_for(PROMPT)
        session.type("tell me a long story\n")
        session.wait_for("keeper of")
        session.process.terminate()
        assert session.wait_for_exit() == 143
        assert session.echoes


def test_commands_help_and_an_unknown_one_is_not_sent_to_the_model() -> None:
    with open_session("chat", "--pace", "0") as session:
        session.wait_for(PROMPT)
        session.type("/help\n")
        assert "/history" in session.wait_for("Ctrl-C stops a reply.")
        session.wait_for(PROMPT)
        session.type("/frobnicate\n")
        session.wait_for("There is no command /frobnicate.")
        session.wait_for(PROMPT)
        session.type("/history\n")
        session.wait_for("0 messages.")
        session.wait_for(PROMPT)
        session.type("/quit\n")
        assert session.wait_for_exit() == 0


# --- in a pipe ---------------------------------------------------------------------------


def test_a_line_in_a_pipe_is_answered_in_plain_text() -> None:
    done = run_indelible("chat", "--pace", "0", typed="hello\n")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "I am the **demo model** of Indelible." in done.stdout
    assert "\x1b" not in done.stdout


def test_a_pipe_is_one_conversation() -> None:
    done = run_indelible("chat", "--pace", "0", typed="roll a die\n\nwhat time is it?")
    assert re.search(r"\[roll_die answered: [1-6]\]", done.stdout)
    assert done.stdout.index("roll_die") < done.stdout.index("current_time")
    assert done.returncode == 0


def test_a_reader_that_leaves_early_is_no_error_to_print() -> None:
    with subprocess.Popen(
        [*INDELIBLE, "chat", "--pace", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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


# --- the command line --------------------------------------------------------------------


def test_version_is_one_line() -> None:
    done = run_indelible("--version")
    assert re.fullmatch(r"indelible \S.*\n", done.stdout)
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [("--help",), ("chat", "--help")])
def test_help_names_the_chat(arguments: tuple[str, ...]) -> None:
    done = run_indelible(*arguments)
    assert done.returncode == 0
    assert "chat" in done.stdout


def test_the_help_of_chat_has_examples() -> None:
    assert 'echo "roll a die" | indelible chat' in run_indelible("chat", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("chat", "--model", "oracle"), "There is no model 'oracle'. Available: demo."),
        (("chat", "--pace", "slow"), "--pace"),
        (("chat", "--pace", "-1"), "--pace"),
        (("chat", "--nope"), "--nope"),
        (("frobnicate",), "frobnicate"),
        (("migrate", "--database", ""), "database = '', from an argument: it must be a file or a URL, not empty"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = run_indelible(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("indelible: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# --- migrate -----------------------------------------------------------------------------


def test_migrate_creates_a_database_and_has_nothing_to_do_the_second_time(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    first, second = (run_indelible("migrate", "--database", str(path)) for _ in range(2))

    assert re.fullmatch(rf"{path} is new and has schema \d{{4}} now\.\n", first.stdout)
    assert re.fullmatch(rf"{path} has schema \d{{4}} already\. There was nothing to do\.\n", second.stdout)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr + second.stderr == ""


def test_migrate_takes_the_database_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_DATABASE", str(tmp_path / "set.db"))

    assert run_indelible("migrate").stdout.startswith(f"{tmp_path / 'set.db'} is new")


def test_a_database_that_cannot_be_opened_is_one_line_without_the_password() -> None:
    done = run_indelible("migrate", "--database", "postgresql://ada:hush@127.0.0.1:1/chats")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("indelible: postgresql://ada:***@127.0.0.1:1/chats cannot be reached: ")
    assert done.stderr.count("\n") == 1
    assert "hush" not in done.stderr


def test_the_help_of_migrate_has_examples() -> None:
    assert "indelible migrate --database chats.db" in run_indelible("migrate", "--help").stdout


def test_a_wrong_setting_stops_the_chat_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MAX_STEPS", "banana")
    done = run_indelible("chat", typed="hello\n")
    assert done.returncode == 2
    assert "max_steps = 'banana', from the environment variable INDELIBLE_MAX_STEPS" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_chat_takes_its_model_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_MODEL", "oracle")
    assert "There is no model 'oracle'" in run_indelible("chat", typed="hello\n").stderr
