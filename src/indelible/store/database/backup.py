"""Online backup of a SQLite database, while other processes write to it.

SQLite's backup API copies pages, a chunk at a time, inside one read transaction that lasts from the first page to the
last. So the copy is a snapshot: it holds everything that was committed before that moment and nothing that was
committed later. Without the transaction, the API restarts from the first page after every commit, and during a running
reply it would never finish. With the write-ahead log a reader blocks no writer; only the log grows meanwhile.
`VACUUM INTO` copies the same snapshot, but it rebuilds every table and index, and reports no progress.

The copy gets its name when it is complete, verified and on disk; until then it is a hidden file beside the target. A
log file beside the target belongs to another database and would be replayed into the copy, so it is refused.

Must stay true (tests/store/test_backup.py): a copy holds every row committed before it began, whatever is written
meanwhile; a failed backup leaves no file, and an existing target stays unchanged.

PostgreSQL has pg_dump, which does all this better than we could.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from indelible.store.database.address import describe, parse_address
from indelible.store.database.errors import DatabaseUnusable, read_failure
from indelible.store.database.migrate import VERSION_TABLE
from indelible.store.database.sqlite import BUSY_TIMEOUT_MS

CHUNK_PAGES: Final = 256
_COMPANIONS: Final = ("-wal", "-shm", "-journal")


def back_up(
    database: str | Path,
    target: Path,
    *,
    overwrite: bool = False,
    on_progress: Callable[[int, int], None] = lambda _copied, _total: None,
    chunk_pages: int = CHUNK_PAGES,
) -> int:
    """Copy the database to the file `target`; returns the size in bytes. It blocks: call it outside an event loop.

    `on_progress(copied, total)` receives the number of pages after every chunk.
    """
    try:
        source = _find_source(database)
        _refuse_target(target, source, overwrite=overwrite)
        with _open_snapshot(source) as snapshot, _make_draft(target) as draft:
            _copy(snapshot, draft, on_progress, chunk_pages)
            _refuse_damaged(draft, source)
            _flush_to_disk(draft)
            _refuse_target(target, source, overwrite=overwrite)
            draft.replace(target)
            _flush_to_disk(target.parent)
        return target.stat().st_size
    except OSError as error:
        raise DatabaseUnusable(f"{error.filename or target} cannot be used: {error.strerror}.") from error


def _find_source(database: str | Path) -> Path:
    address = parse_address(database)
    if not address.is_sqlite:
        raise DatabaseUnusable(f"{describe(address)} is on PostgreSQL. Back it up with pg_dump --format=custom.")
    source = address.path
    if not source.is_file():
        raise DatabaseUnusable(f"Can't find the database {source}. Choose another file.")
    return source


def _refuse_target(target: Path, source: Path, *, overwrite: bool) -> None:
    if not target.absolute().parent.is_dir():
        raise DatabaseUnusable(
            f"Can't write the backup: the directory {target.absolute().parent} does not exist. Create it first."
        )
    if target.is_dir():
        raise DatabaseUnusable(f"{target} is a directory. Choose a file in it.")
    if target.exists():
        if target.samefile(source):
            raise DatabaseUnusable(f"{target} is the database itself. Choose another file for the backup.")
        if not overwrite:
            raise DatabaseUnusable(f"{target} already exists. Choose another file, or replace it with --force.")
    for companion in _COMPANIONS:
        log = target.with_name(target.name + companion)
        if log.exists():
            raise DatabaseUnusable(f"{log} exists, so a database of that name is in use. Choose another file.")


@contextmanager
def _open_snapshot(source: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees the database as it is now, for as long as the connection is open."""
    try:
        # Not `mode=ro`: the first connection to read the log has to create its shared memory.
        opened = sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise read_failure(error, str(source)) from error
    with closing(opened) as connection:
        try:
            connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            connection.execute("BEGIN")
            ours = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).fetchone()
        except sqlite3.Error as error:
            raise read_failure(error, str(source)) from error
        if ours is None:
            raise DatabaseUnusable(f"{source} is not an Indelible database. Choose another file.")
        yield connection


@contextmanager
def _make_draft(target: Path) -> Iterator[Path]:
    """An empty file beside the target, readable only by its owner. It is always removed afterwards."""
    opened, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=".backup-", suffix=".part")
    os.close(opened)
    draft = Path(name)
    try:
        yield draft
    finally:
        for suffix in ("", *_COMPANIONS):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _copy(snapshot: sqlite3.Connection, draft: Path, on_progress: Callable[[int, int], None], chunk_pages: int) -> None:
    def report(_status: int, remaining: int, total: int) -> None:
        on_progress(total - remaining, total)

    try:
        with closing(sqlite3.connect(draft)) as copy:
            snapshot.backup(copy, pages=chunk_pages, progress=report)
    except sqlite3.Error as error:
        raise read_failure(error, f"The backup in {draft.parent}") from error


def _refuse_damaged(draft: Path, source: Path) -> None:
    """Check the copy. Pages are copied as they are, so damage in it is damage in the source."""
    try:
        with closing(sqlite3.connect(draft)) as copy:
            findings = [row[0] for row in copy.execute("PRAGMA integrity_check(1)")]
    except sqlite3.DatabaseError as error:
        findings = [str(error)]
    if findings != ["ok"]:
        raise DatabaseUnusable(
            f"{source} is damaged ({findings[0].splitlines()[-1]}). No backup was made. Restore an earlier one."
        )


def _flush_to_disk(path: Path) -> None:
    """Make a file's content, or a directory's names, survive a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
