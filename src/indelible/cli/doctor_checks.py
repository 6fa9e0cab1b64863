"""What `indelible doctor` checks: each check is a function that returns findings, and changes nothing.

A finding is a status, a name and a sentence that says what to do. `failed` means that a server would not start here, or
would break a promise: the database cannot be used, commits are not durable, a key is missing. `warning` means that it
would run and somebody should know. A database that does not exist yet is not created.

Must stay true (tests/test_doctor.py): a healthy set-up has no finding but `ok`; each fault is found and named; no
finding shows a key, a token or a password; nothing is created.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from indelible.cli.options import list_unknown_variables
from indelible.clock import SystemClock
from indelible.errors import Invalid, ModelFailed, StoreFailed
from indelible.feed.fanout import connect, describe_failure
from indelible.files.images import can_decode
from indelible.loopback import is_loopback
from indelible.models.catalog import PRICES_UNKNOWN, Catalog
from indelible.server.authentication import LONG_TOKEN, has_login
from indelible.server.oidc import check_oidc
from indelible.settings import FILE, Settings
from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import DatabaseUnusable, read_failure
from indelible.store.database.migrate import HEAD, load_revision, open_database, refuse_unknown
from indelible.store.database.session_lock import LockSession
from indelible.store.database.transaction import Database, Transaction
from indelible.store.queries.listing import find_likeness
from indelible.tracing import ENDPOINTS

_ACTIVE: Final = "SELECT name FROM users WHERE disabled_at IS NULL"
LOW_DISK_BYTES: Final = 1024**3
FULL_DISK_BYTES: Final = 64 * 1024**2
MAX_SKEW_S: Final = 2.0
FEW_OPEN_FILES: Final = 1024
_COMPANIONS: Final = ("", "-wal", "-shm", ".lock")
Status = Literal["ok", "warning", "failed"]


class Finding(msgspec.Struct, frozen=True):
    status: Status
    check: str
    message: str


async def examine(settings: Settings) -> list[Finding]:
    """Everything that can be checked from here, in the order in which it would be mended."""
    findings = [*check_variables(), *check_models(settings), *check_login(settings), *check_listening(settings)]
    findings += [*check_open_files(), *check_tracing(), *check_images()]
    try:
        address = parse_address(settings.database)
    except StoreFailed as error:
        return [*findings, Finding("failed", "database", str(error))]
    if address.is_sqlite:
        findings += check_disk(address.path)
    findings += check_modes(address.path if address.is_sqlite else None)
    return [*findings, *await check_redis(settings, address), *await check_database(address)]


def check_variables() -> Iterator[Finding]:
    unknown = list_unknown_variables()
    for sentence in unknown:
        yield Finding("warning", "settings", sentence)
    if not unknown:
        file = f" and {FILE}" if Path(FILE).is_file() else f"; there is no {FILE} here"
        yield Finding("ok", "settings", f"Read from the environment{file}.")


def check_models(settings: Settings) -> Iterator[Finding]:
    catalog = Catalog(settings)
    for name in dict.fromkeys([settings.model, *settings.models]):
        try:
            catalog.find(name)
        except ModelFailed as failure:
            yield Finding("failed", "model", f"{name}: {failure.message}")
        else:
            yield Finding("ok", "model", f"{name} can be used." if name == "demo" else f"{name} has its key.")
    unpriced = catalog.list_unpriced() if settings.user_max_usd_per_day else []
    if unpriced:
        names = ", ".join(unpriced)
        yield Finding("warning", "prices", f"user_max_usd_per_day does not limit {names}: {PRICES_UNKNOWN}")


def check_login(settings: Settings) -> Iterator[Finding]:
    if not has_login(settings) and not is_loopback(settings.host):
        yield Finding("failed", "login", f"{settings.host} is reachable from other machines. Set INDELIBLE_TOKEN.")
    try:
        check_oidc(settings)
    except Invalid as error:
        yield Finding("failed", "login", str(error))
    if 0 < len(settings.token) < LONG_TOKEN:
        message = (
            f"INDELIBLE_TOKEN has fewer than {LONG_TOKEN} characters and can be guessed. Try: openssl rand -hex 32"
        )
        yield Finding("warning", "login", message)


def check_listening(settings: Settings) -> Iterator[Finding]:
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        yield Finding("warning", "port", f"{where}: {error.strerror or error}. A server may be running there already.")
    else:
        yield Finding("ok", "port", f"{where} is free.")


def check_open_files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # pragma: no cover
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < FEW_OPEN_FILES:
        yield Finding("warning", "open files", f"At most {most}: each reader needs one. Raise it (ulimit -Hn).")


def check_tracing() -> Iterator[Finding]:
    named = next((name for name in ENDPOINTS if os.environ.get(name)), None)
    if named is None:
        return
    if importlib.util.find_spec("opentelemetry.exporter") is None:
        yield Finding("failed", "traces", f"{named} is set, but the exporter is missing. Install indelible[tracing].")
    else:
        yield Finding("ok", "traces", f"Sent to the collector in {named}.")


def check_images() -> Iterator[Finding]:
    if not can_decode():
        message = "Uploaded images get no preview, and large ones are not shown to models. Install indelible[images]."
        yield Finding("warning", "images", message)


def check_disk(path: Path) -> Iterator[Finding]:
    directory = path.absolute().parent
    if not directory.is_dir():
        yield Finding("failed", "disk", f"The directory {directory} does not exist. Create it.")
        return
    free = shutil.disk_usage(directory).free
    sentence = f"{free / 1024**3:,.1f} GiB free in {directory}."
    status: Status = "failed" if free < FULL_DISK_BYTES else "warning" if free < LOW_DISK_BYTES else "ok"
    yield Finding(status, "disk", sentence if status == "ok" else f"Only {sentence} Make room.")


def check_modes(path: Path | None) -> Iterator[Finding]:
    """Messages in the file of SQLite, and keys in the settings, are for the owner's eyes."""
    files = [] if path is None else [path.with_name(path.name + suffix) for suffix in _COMPANIONS]
    exposed = [
        file for file in (*files, Path(FILE)) if file.is_file() and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]
    for file in exposed:
        yield Finding("warning", "file mode", f"Other users may read {file}. Run: chmod 600 {file}")
    if not exposed and path is not None and path.is_file():
        yield Finding("ok", "file mode", f"Only its owner may read {path}.")


async def check_redis(settings: Settings, address: Address) -> list[Finding]:
    """Without Redis a server runs, and reads rows of other processes from the database."""
    if not settings.redis_url:
        return []
    if address.is_sqlite:
        return [Finding("warning", "redis", "redis_url has no effect: a SQLite file has one process.")]
    try:
        async with connect(settings.redis_url) as connection:
            await connection.send_command("PUBLISH", "indelible:doctor", "")
            await connection.read_response()
    except Invalid as error:
        return [Finding("failed", "redis", str(error))]
    except Exception as error:
        message = f"It can't be used, so servers read the database instead: {describe_failure(error)}"
        return [Finding("warning", "redis", message)]
    if connection.password is None and not is_loopback(getattr(connection, "host", "127.0.0.1")):
        return [Finding("warning", "redis", "It asks for no password, and replies go through it. Set one.")]
    return [Finding("ok", "redis", "It can be used.")]


async def check_database(address: Address) -> list[Finding]:
    where = describe(address)
    if address.is_sqlite:
        if not address.path.absolute().parent.is_dir():
            return []  # check_disk has found it
        if address.path.is_dir():
            return [Finding("failed", "database", f"{where} is a directory. Choose a file in it.")]
        if not address.path.exists():
            return [Finding("warning", "database", f"{where} does not exist yet. “indelible serve” creates it.")]
        address = msgspec.structs.replace(address, mode="rw")  # never create it
    try:
        database = await open_database(address)
    except StoreFailed as error:
        return [Finding("failed", "database", str(error))]
    try:
        findings = [Finding("ok", "database", f"{where} can be used.")]
        revision = await load_revision(database)
        findings.append(_judge_schema(revision, where))
        if revision == HEAD:
            findings += await _check_names(database)
        findings += await _check_durability(database)
        if not address.is_sqlite:
            findings += [await _check_clock(database), await _check_locks(address)]
    except StoreFailed as error:
        return [Finding("failed", "database", str(error))]
    else:
        return findings
    finally:
        await database.close()


def _judge_schema(revision: str | None, where: str) -> Finding:
    if revision == HEAD:
        return Finding("ok", "schema", f"{HEAD}, the newest.")
    if revision is None:
        return Finding("warning", "schema", f"{where} has no tables yet. “indelible migrate” creates them.")
    try:
        refuse_unknown(revision, where)
    except DatabaseUnusable as error:
        return Finding("failed", "schema", str(error))
    message = f"{revision} is older than {HEAD}. The next start upgrades it; back up first."
    return Finding("warning", "schema", message)


async def _check_names(database: Database) -> list[Finding]:
    """Users from before look-alikes were refused, whom people may take for another."""

    async def load(transaction: Transaction) -> list[tuple[str, str]]:
        alike: dict[str, list[str]] = {}
        for row in await transaction.all(f"{_ACTIVE} AND likeness IS NULL ORDER BY name"):
            alike.setdefault(find_likeness(row["name"]), []).append(row["name"])
        found = []
        for likeness, names in alike.items():
            known = await transaction.one(f"{_ACTIVE} AND likeness = $1", likeness)
            both = names if known is None else [str(known["name"]), *names]
            found += [(other, both[0]) for other in both[1:]]
        return found

    return [
        Finding("warning", "users", f"{name!a} and {other!a} look the same. Disable one of these users.")
        for name, other in await database.read(load)
    ]


async def _check_durability(database: Database) -> list[Finding]:
    """P1: what was committed survives a power cut. Our own connections ask for it; the server must not refuse."""
    if database.dialect == "sqlite":
        found = {name: await _ask(database, f"PRAGMA {name}") for name in ("journal_mode", "synchronous")}
        wanted: dict[str, Any] = {"journal_mode": "wal", "synchronous": 2}
    else:
        found = {name: await _ask(database, f"SHOW {name}") for name in ("fsync", "full_page_writes")}
        found["synchronous_commit"] = await _ask(database, "SHOW synchronous_commit")
        wanted = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    wrong = [name for name, value in wanted.items() if found[name] != value]
    if wrong:
        listed = ", ".join(f"{name} = {found[name]}" for name in wrong)
        return [Finding("failed", "durability", f"Commits may be lost in a power cut: {listed}. Change it.")]
    listed = ", ".join(f"{name} = {value}" for name, value in found.items())
    return [Finding("ok", "durability", f"{listed}.")]


async def _ask(database: Database, sql: str) -> Any:
    async def ask(transaction: Transaction) -> Any:
        return (await transaction.one(sql))[0]

    return await database.read(ask)


async def _check_clock(database: Database) -> Finding:
    """Leases use the database's clock; times of messages use this machine's."""

    async def ask(transaction: Transaction) -> datetime:
        return await transaction.now()

    before = datetime.now(UTC)
    theirs = await database.read(ask)
    half: timedelta = (datetime.now(UTC) - before) / 2
    skew_s = (theirs - (before + half)).total_seconds()
    allowed_s = MAX_SKEW_S + half.total_seconds()
    if abs(skew_s) > allowed_s:
        return Finding("warning", "clock", f"The database's clock differs by {skew_s:+.1f} s. Synchronise both (NTP).")
    return Finding("ok", "clock", f"Within {allowed_s:.1f} s of the database's.")


async def _check_locks(address: Address) -> Finding:
    """Whether a process that was killed is known to be gone at once (worker/presence.py)."""
    try:
        session = await LockSession.open(address.make_postgres_options())
        try:
            are_held = await session.prove(SystemClock())
        finally:
            session.terminate()
    except Exception as error:
        raise read_failure(error, describe(address)) from error
    if are_held:
        return Finding("ok", "session locks", "They end with their process: a killed worker is replaced at once.")
    message = "They do not hold here, perhaps because of a pooler: a killed worker is replaced after lease_timeout_s."
    return Finding("warning", "session locks", message)
