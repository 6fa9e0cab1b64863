"""`indelible prove` as a user meets it: what it prints, how it exits, and what it says about a mistake."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.support.commands import run_indelible
from tests.support.waiting import DEADLINE_S

from indelible.prove.evidence import Fault
from indelible.prove.report import Report, describe_verdict, print_report


def run_prove(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "indelible", "prove", *arguments]
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def make_report(*faults: Fault) -> Report:
    return Report(
        seed=7,
        kills={"sigkill": 2, "before_flush": 1},
        chats=2,
        readers=4,
        reconnects=9,
        replies={"complete": 5, "interrupted": 1},
        words=1234,
        model_calls={"openai": 4, "anthropic": 5},
        interrupted_calls=2,
        tool_runs=3,
        knew_replies=True,
        seconds=9.0,
        faults=faults,
        database="chats.db",
        kept_directory=Path("proof"),
    )


def test_a_proof_of_a_new_sqlite_file_prints_a_table_and_a_verdict(tmp_path: Path) -> None:
    done = run_prove("--kills", "2", "--chats", "2", "--seed", "1", "--short-leases", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d chats, 4 readers", " ".join(done.stdout.split()))  # a user may fork a chat
    assert "PASSED: 2 kills, nothing lost." in done.stdout
    assert "total, seed 1" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_neither_a_proxy_nor_a_setting_of_the_surroundings_comes_between(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    surroundings = {"http_proxy": nobody, "HTTP_PROXY": nobody, "no_proxy": "", "INDELIBLE_MAX_STEPS": "no number"}

    done = run_prove("--kills", "0", "--chats", "1", "--seed", "1", cwd=tmp_path, **surroundings)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected", "status"),
    [
        (("--kills", "-1"), "Invalid value for '--kills'", 2),
        (("--chats", "0"), "Invalid value for '--chats'", 2),
        (("--server", "http://127.0.0.1:9", "--kills", "3"), "--server kills nothing", 2),
        (("--server", "http://127.0.0.1:9", "--database", "chats.db"), "--server kills nothing", 2),
        (("--server", "http://127.0.0.1:9"), "can't connect to 127.0.0.1:9 (connection refused)", 1),
        (("--server", "nonsense"), "must begin with http:// or https://", 1),
        (("--database", "mysql://ada@host/chats"), "does not support 'mysql'", 1),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_wrong(
    arguments: tuple[str, ...], expected: str, status: int, tmp_path: Path
) -> None:
    done = run_indelible("prove", *arguments, directory=tmp_path)

    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (done.stdout, done.returncode) == ("", status)


def test_the_table_says_how_often_a_server_went_away_in_which_way() -> None:
    console = Console(width=100)
    with console.capture() as printed:
        print_report(make_report(), console)

    lines = [" ".join(line.split()) for line in printed.get().splitlines()]
    assert lines[:2] == ["2× kill -9 at a random instant", "1× kill -9 before a journal commit"]
    assert "6 replies (5 complete, 1 interrupted), 1,234 words" in lines
    assert "9 model calls (5 anthropic, 4 openai), 2 interrupted" in lines
    assert lines[-1].startswith("PASSED: 3 kills, nothing lost. Every word")


def test_a_failure_names_seed_chat_and_what_is_wrong() -> None:
    verdict = describe_verdict(make_report(Fault("seen is not stored", "chat_1"), Fault("ended with 1")))

    assert verdict.splitlines() == [
        "FAILED: 2 promises broken. Seed 7.",
        "  chat_1: seen is not stored",
        "  a server: ended with 1",
        "Kept for inspection: the database chats.db and the server log in proof",
    ]


def test_of_many_faults_the_first_are_shown_and_the_others_counted() -> None:
    verdict = describe_verdict(make_report(*(Fault(f"fault {number}", "chat_1") for number in range(12))))

    assert "fault 9" in verdict
    assert "fault 10" not in verdict
    assert "… and 2 more" in verdict


def test_redis_needs_two_servers(tmp_path: Path) -> None:
    for options in (("--redis",), ("--redis", "--database", "chats.db")):
        refused = run_indelible("prove", *options, directory=tmp_path)
        assert refused.returncode == 2
        assert "--redis needs two servers; give --database postgresql://…" in refused.stderr
