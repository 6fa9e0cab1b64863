"""One working process per SQLite file (R12), with real processes and `kill -9`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.commands import run_indelible

from indelible.store.database.errors import DatabaseUnusable
from indelible.store.database.migrate import migrate, open_database
from indelible.store.database.sqlite_file import DatabaseInUse, announce_server, exclusive_file_lock, find_holder

HOLD = """
import sys
from indelible.store.database.migrate import migrate, open_database
from indelible.store.database.sqlite_file import exclusive_file_lock
with exclusive_file_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(database: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_learns_who_has_the_file_and_gets_it_after_kill_9(tmp_path: Path) -> None:
    database = tmp_path / "chats.db"
    with start_holder(database) as holder:
        told = rf"in use by another server or worker \(process {holder.pid}\).* worker=False"
        with pytest.raises(DatabaseUnusable, match=told), exclusive_file_lock(database):
            pytest.fail("two processes held one file")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with exclusive_file_lock(database):
        pass


def test_who_serves_the_file_is_found_as_long_as_it_is_held(tmp_path: Path) -> None:
    database = tmp_path / "chats.db"
    announce_server(database, "http://127.0.0.1:1")
    assert find_holder(database) is None
    assert list(tmp_path.iterdir()) == []
    with exclusive_file_lock(database):
        assert find_holder(database).server_url is None  # type: ignore[union-attr]
        announce_server(database, "http://127.0.0.1:8000")
        with pytest.raises(DatabaseInUse, match="in use by this program") as refused, exclusive_file_lock(database):
            pytest.fail("one file was held twice")
        assert refused.value.server_url == "http://127.0.0.1:8000"
    assert find_holder(database) is None
    with exclusive_file_lock(database):
        assert find_holder(database).server_url is None  # type: ignore[union-attr]


def test_only_the_holder_says_where_it_serves(tmp_path: Path) -> None:
    database = tmp_path / "chats.db"
    with start_holder(database) as holder:
        announce_server(database, "http://127.0.0.1:8000")
        found = find_holder(database)
        holder.kill()
    assert found is not None
    assert found.server_url is None


def test_who_leaves_in_order_leaves_it_free(tmp_path: Path) -> None:
    database = tmp_path / "chats.db"
    for _ in range(2):
        with exclusive_file_lock(database):
            pass


@pytest.mark.parametrize("linked", ["file", "directory"])
def test_a_file_is_the_same_by_whatever_name_it_is_called(tmp_path: Path, linked: str) -> None:
    database = tmp_path / "real" / "chats.db"
    database.parent.mkdir()
    other = tmp_path / "other"
    other.symlink_to(database if linked == "file" else database.parent)
    name = other if linked == "file" else other / "chats.db"
    for first, second in ((database, name), (name, database)):
        with exclusive_file_lock(first), pytest.raises(DatabaseUnusable, match="in use"), exclusive_file_lock(second):
            pytest.fail("one file was held twice")


async def test_a_file_with_a_second_name_is_refused_by_either(tmp_path: Path) -> None:
    """SQLite's log is beside the name by which a file was opened, so a process with the other name would not see it."""
    database, link = tmp_path / "chats.db", tmp_path / "elsewhere" / "other.db"
    link.parent.mkdir()
    await migrate(database)
    with start_holder(database) as holder:
        link.hardlink_to(database)
        for name in (link, database):
            with pytest.raises(DatabaseUnusable, match=r"2 names \(hard links\)"), exclusive_file_lock(name):
                pytest.fail("one file was held twice")
            with pytest.raises(DatabaseUnusable, match=f"find / -xdev -samefile {name}"):
                await open_database(name)
        served = await asyncio.to_thread(run_indelible, "serve", "--database", str(link), "--port", "0")
        assert (served.returncode, len(served.stderr.splitlines())) == (1, 1)
        holder.kill()
    assert [path.name for path in link.parent.iterdir()] == ["other.db"]
    link.unlink()
    with exclusive_file_lock(database):
        await (await open_database(database)).close()


def test_a_file_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    database = tmp_path / "missing" / "chats.db"
    with pytest.raises(DatabaseUnusable) as caught, exclusive_file_lock(database):
        pytest.fail("there is nothing to hold")
    assert str(caught.value) == (f"Can't create {database}: the directory does not exist.")


def test_postgresql_carries_several() -> None:
    with exclusive_file_lock("postgresql://host/chats"), exclusive_file_lock("postgresql://host/chats"):
        pass


def test_a_name_that_no_file_can_have_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusable, match="File name too long"), exclusive_file_lock(tmp_path / ("x" * 300)):
        pytest.fail("there is such a file")
