"""`indelible doctor` finds what would keep a server from running well, says what to do, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.databases import execute
from tests.support.commands import INDELIBLE, run_indelible
from tests.support.pooler import Pooler
from tests.support.waiting import DEADLINE_S, poll_until

from indelible.cli import doctor_checks
from indelible.cli.doctor_checks import Finding, examine
from indelible.cli.options import list_unknown_variables
from indelible.prove.redis import RedisServer
from indelible.settings import load_settings
from indelible.store.database.migrate import migrate

CANARY = "canary-4711"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("INDELIBLE_", "OTEL_"))]:
        monkeypatch.delenv(name)
    return tmp_path


def find(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


async def test_a_healthy_set_up_has_nothing_but_ok_and_a_missing_database_is_not_created() -> None:
    settings = load_settings(database="chats.db", port=0)

    before = await examine(settings)
    assert find(before, "database").status == "warning"
    assert os.listdir() == []  # noqa: PTH208
    await migrate("chats.db")
    after = await examine(settings)

    assert [finding for finding in after if finding.status != "ok"] == []
    assert {"settings", "model", "port", "disk", "file mode", "database", "schema", "durability"} == {
        finding.check for finding in after
    }


async def test_users_of_before_who_look_the_same_are_named() -> None:
    await migrate("chats.db", target="0015")
    with closing(sqlite3.connect("chats.db")) as file, file:
        for number, name in enumerate(["ada", "Ada", "\u0430da", "grace"]):
            row = (f"user_{number}", name, f"2026-11-15T09:00:0{number}.000000Z")
            file.execute("INSERT INTO users (id, name, created_at) VALUES (?, ?, ?)", row)
    settings = load_settings(database="chats.db", port=0)
    assert [finding for finding in await examine(settings) if finding.check == "users"] == []
    await migrate("chats.db")
    found = [(finding.status, finding.message) for finding in await examine(settings) if finding.check == "users"]
    assert found == [
        ("warning", "'Ada' and 'ada' look the same. Disable one of these users."),
        ("warning", "'\\u0430da' and 'ada' look the same. Disable one of these users."),
    ]
    for disabled, left in (("ada", [("'\\u0430da'", "'Ada'")]), ("Ada", [])):
        with closing(sqlite3.connect("chats.db")) as file, file:
            file.execute("UPDATE users SET disabled_at = created_at WHERE name = ?", (disabled,))
        found = [(finding.status, finding.message) for finding in await examine(settings) if finding.check == "users"]
        assert found == [
            ("warning", f"{one} and {other} look the same. Disable one of these users.") for one, other in left
        ]


async def test_postgresql_is_asked_for_its_durability_and_its_clock(own_postgres: str) -> None:

    findings = await examine(load_settings(database=own_postgres, port=0))

    assert {finding.check: finding.status for finding in findings} == dict.fromkeys(
        ("settings", "model", "port", "database", "schema", "durability", "clock", "session locks"), "ok"
    )


async def test_a_postgresql_on_which_a_killed_worker_is_replaced_only_when_its_lease_has_run_out_is_found(
    own_postgres: str,
) -> None:
    """A pooler that keeps the connection of a client that is gone keeps its lock."""
    async with Pooler(own_postgres, session=True).listening() as address:
        found = find(await examine(load_settings(database=address, port=0)), "session locks")
    assert (found.status, "lease_timeout_s" in found.message) == ("warning", True)


async def test_a_postgresql_whose_commits_may_be_lost_in_a_power_cut_is_found(own_server: Any) -> None:
    address = f"postgresql://postgres@/postgres?host={own_server.pgdata}"
    settings = load_settings(database=address, port=0)
    assert find(await examine(settings), "durability").status == "ok"
    await execute(address, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")

    async def is_found() -> bool:
        return find(await examine(settings), "durability").status != "ok"

    await poll_until(is_found)  # the server reads its settings again when it gets to it
    found = find(await examine(settings), "durability")
    assert found == Finding("failed", "durability", "Commits may be lost in a power cut: fsync = off. Change it.")


async def test_a_settings_file_that_others_may_read_is_found_whatever_the_database() -> None:
    os.close(os.open("indelible.toml", os.O_CREAT, 0o600))
    os.chmod("indelible.toml", 0o644)  # noqa: PTH101
    for database in ("chats.db", "postgresql://ada@127.0.0.1:1/none"):
        found = find(await examine(load_settings(database=database, port=0)), "file mode")
        assert (found.status, "chmod 600 indelible.toml" in found.message) == ("warning", True), database


@pytest.mark.parametrize(
    ("schema", "status", "part"),
    [("0009", "failed", "Check out commit"), ("0015", "warning", "The next start upgrades it")],
)
async def test_an_older_schema_is_found_with_what_to_do(schema: str, status: str, part: str) -> None:
    await migrate("chats.db", target="0015")
    with closing(sqlite3.connect("chats.db")) as connection, connection:
        connection.execute("UPDATE indelible_schema SET version_num = ?", (schema,))
    found = find(await examine(load_settings(database="chats.db", port=0)), "schema")
    assert (found.status, part in found.message) == (status, True)


async def test_a_database_with_a_second_name_is_found() -> None:
    await migrate("chats.db")
    os.link("chats.db", "other.db")
    found = find(await examine(load_settings(database="chats.db", port=0)), "database")
    assert found.status == "failed"
    assert "hard links" in found.message


async def test_every_fault_is_found_and_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    await migrate("chats.db")
    os.chmod("chats.db", 0o644)  # noqa: PTH101
    with closing(sqlite3.connect("chats.db")) as connection, connection:
        connection.execute("UPDATE indelible_schema SET version_num = '9999'")
    monkeypatch.setenv("INDELIBLE_MAX_STEP", CANARY)
    monkeypatch.setattr(doctor_checks, "LOW_DISK_BYTES", 2**63)
    for name in ("OPENAI_API_KEY", "INDELIBLE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        findings = await examine(load_settings(database="chats.db", port=port, model="openai:gpt-5.1"))
    exposed = await examine(load_settings(database="none.db", host="0.0.0.0", port=0, anthropic_api_key=CANARY))  # noqa: S104

    shown = {finding.check: (finding.status, finding.message) for finding in findings}
    assert shown["settings"][0] == "warning"
    assert "Did you mean INDELIBLE_MAX_STEPS?" in shown["settings"][1]
    assert shown["model"][0] == "failed"
    assert shown["port"][0] == shown["disk"][0] == shown["file mode"][0] == "warning"
    assert shown["schema"] == ("failed", shown["schema"][1])
    assert find(exposed, "login").status == "failed"
    short = await examine(load_settings(database="chats.db", port=0, token="x" * 19))
    assert find(short, "login").status == "warning"
    given = {"host": "0.0.0.0", "oidc_issuer": "https://idp.example", "oidc_client_id": "x"}  # noqa: S104
    nameless = await examine(load_settings(database="chats.db", port=0, **given))
    assert find(nameless, "login") == Finding(
        "failed", "login", "oidc_issuer is set, and hosts is not. List the names by which browsers reach this server."
    )
    named = await examine(load_settings(database="chats.db", port=0, hosts=["chats.example"], token="x" * 20, **given))
    assert [finding for finding in named if finding.check == "login"] == []
    assert CANARY not in repr([findings, exposed])


async def test_a_database_that_can_not_be_created_is_no_database_that_a_start_creates() -> None:
    os.mkdir("folder")  # noqa: PTH102

    folder = await examine(load_settings(database="folder", port=0))
    nowhere = await examine(load_settings(database="nowhere/chats.db", port=0))

    assert find(folder, "database") == Finding("failed", "database", "folder is a directory. Choose a file in it.")
    assert find(nowhere, "disk").status == "failed"
    assert "database" not in {finding.check for finding in nowhere}


async def test_the_settings_file_is_named_only_if_there_is_one() -> None:
    without = await examine(load_settings(database="chats.db", port=0))
    os.close(os.open("indelible.toml", os.O_CREAT, 0o600))
    with_file = await examine(load_settings(database="chats.db", port=0))

    assert find(without, "settings").message == "Read from the environment; there is no indelible.toml here."
    assert find(with_file, "settings").message == "Read from the environment and indelible.toml."


async def test_a_server_that_is_away_is_reported_without_its_password() -> None:
    settings = load_settings(database=f"postgresql://ada:{CANARY}@127.0.0.1:1/none", port=0)

    found = find(await examine(settings), "database")

    assert found.status == "failed"
    assert CANARY not in found.message


async def test_redis_is_tried_and_no_password_is_shown(own_postgres: str) -> None:
    redis = RedisServer("--requirepass", CANARY)

    async def check(url: str, database: str = own_postgres) -> Finding:
        found = find(await examine(load_settings(database=database, redis_url=url, port=0)), "redis")
        assert CANARY not in found.message
        return found

    async with redis.running():
        right = await check(f"redis://:{CANARY}@127.0.0.1:{redis.port}/0")
        assert (right.status, right.message) == ("ok", "It can be used.")
        wrong = await check(f"redis://:{CANARY}-wrong@127.0.0.1:{redis.port}/0")
        assert (wrong.status, "AuthenticationError" in wrong.message) == ("warning", True)
        alone = await check(redis.url, "chats.db")
        assert (alone.status, alone.message) == ("warning", "redis_url has no effect: a SQLite file has one process.")
    away = await check(f"redis://:{CANARY}@127.0.0.1:{redis.port}/0")
    assert (away.status, "ConnectionError" in away.message) == ("warning", True)
    unreadable = await check(f"{CANARY}://127.0.0.1")
    assert (unreadable.status, "redis_url can't be read" in unreadable.message) == ("failed", True)


def test_the_command_prints_findings_and_its_status_says_whether_one_failed() -> None:
    asyncio.run(migrate("chats.db"))

    healthy = run_indelible("doctor", "--database", "chats.db", "--json")
    sick = run_indelible("doctor", "--database", "/nowhere/chats.db")

    assert healthy.returncode == 0, healthy.stdout
    assert {finding["status"] for finding in json.loads(healthy.stdout)} <= {"ok", "warning"}
    assert sick.returncode == 1
    assert "FAILED  disk" in sick.stdout


def test_variables_of_our_own_and_of_others_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDELIBLE_URL", "http://127.0.0.1:8000")
    monkeypatch.setenv("indelible_port", "8001")
    monkeypatch.setenv("MAX_STEP", "1")

    assert list_unknown_variables() == []


async def test_a_limit_in_dollars_that_cannot_be_enforced_is_named() -> None:
    prices = {"ollama:gemma": [0.0, 0.0]}
    limited = {"user_max_usd_per_day": 1.0, "models": ["ollama:llama3", "ollama:gemma"], "prices": prices}
    found = find(await examine(load_settings(database="chats.db", port=0, **limited)), "prices")
    assert found.status == "warning"
    assert found.message.startswith("user_max_usd_per_day does not limit ollama:llama3: their prices are not known.")
    unlimited = await examine(load_settings(database="chats.db", port=0, **limited | {"user_max_usd_per_day": 0}))
    assert [finding for finding in unlimited if finding.check == "prices"] == []


def test_a_limit_of_open_files_that_is_too_low_is_named() -> None:
    command = ["/bin/sh", "-c", f"ulimit -n 512; exec {shlex.join([*INDELIBLE, 'doctor', '--json'])}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    found = {finding["check"]: finding["status"] for finding in json.loads(done.stdout)}
    assert (done.returncode, found["open files"]) == (0, "warning")


async def test_traces_need_their_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(database="chats.db", port=0)
    assert [finding for finding in await examine(settings) if finding.check == "traces"] == []
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert find(await examine(settings), "traces").status == "ok"
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)  # as if it were not installed
    found = find(await examine(settings), "traces")
    assert (found.status, "Install indelible[tracing]." in found.message) == ("failed", True)
