"""Where a database is: a path or a URL is understood or refused, and no password is ever told."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from indelible.store.database.address import Address, describe, parse_address
from indelible.store.database.errors import DatabaseUnusable

SECRET = "correct-horse"  # noqa: S105  (what must not be told)


def on_server(host: str | None = "db", **more: object) -> Address:
    known: dict[str, object] = {"dialect": "postgresql", "host": host, "database": "chats"}
    return Address(**{**known, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("chats.db", Address(dialect="sqlite", database="chats.db")),
        (Path("/var/chats.db"), Address(dialect="sqlite", database="/var/chats.db")),
        ("100% ours?.db", Address(dialect="sqlite", database="100% ours?.db")),
        ("sqlite:///chats.db", Address(dialect="sqlite", database="chats.db")),
        ("sqlite:////var/my%20chats.db", Address(dialect="sqlite", database="/var/my chats.db")),
        ("sqlite:///chats.db?mode=ro", Address(dialect="sqlite", database="chats.db", mode="ro")),
        ("postgres://ada@db/chats", on_server(user="ada")),
        ("postgresql+asyncpg://db/chats", on_server()),
        ("postgresql://db:5433/chats", on_server(port=5433)),
        ("postgresql://[::1]:5433/chats", on_server("::1", port=5433)),
        ("postgresql://ada%40home:a%2Fb%3Ac@db/chats", on_server(user="ada@home", password="a/b:c")),  # noqa: S106
        ("postgresql:///chats?host=/run/postgresql&port=5433", on_server("/run/postgresql", port=5433)),
        (
            "postgresql://db/chats?sslmode=require&connect_timeout=3",
            on_server(options={"ssl": "require", "timeout": "3"}),
        ),
    ],
)
def test_an_address_is_a_file_or_a_url(written: str | Path, meant: Address) -> None:
    assert parse_address(written) == meant


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (":memory:", "not in memory"),
        ("", "not in memory"),
        ("sqlite://", "not in memory"),
        ("sqlite:///:memory:", "not in memory"),
        ("sqlite:///chats.db?mode=memory", "not in memory"),
        ("file:chats?mode=memory", "not in memory"),
        ("sqlite:///chats.db?cache=shared", "A SQLite URL supports one option, mode"),
        ("sqlite:///chats.db?mode=r", "A SQLite URL supports one option, mode"),
        ("sqlite://var/chats.db", "cannot be read"),
        (f"mysql://ada:{SECRET}@db/chats", "does not support 'mysql'"),
        (f"postgresql://ada:{SECRET}@db:port/chats", "cannot be read"),
        (f"postgresql://ada:pass@{SECRET}@db/chats", "cannot be read"),
        (f"postgresql://ada:{SECRET}@db/chats?port=five", "cannot be read"),
        (
            f"postgresql://ada:{SECRET}@db/chats?synchronous_commit=off",
            "Unknown option in the database URL: synchronous_commit",
        ),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(written: str, expected: str) -> None:
    with pytest.raises(DatabaseUnusable, match=expected) as caught:
        parse_address(written)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_database_is_described_without_its_password() -> None:
    described = describe(parse_address(f"postgres://ada:{SECRET}@db/chats?sslmode=require"))

    assert described == "postgresql://ada:***@db/chats"
    assert describe(parse_address("postgresql://[::1]:5433/chats")) == "postgresql://[::1]:5433/chats"
    assert describe(parse_address("postgresql://ada@/chats?host=/run/pg")) == "postgresql://ada@/chats?host=/run/pg"
    assert describe(parse_address("sqlite:////var/my%20chats.db?mode=ro")) == "/var/my chats.db"


def test_a_file_is_named_as_sqlite_takes_it() -> None:
    assert parse_address("100% ours?.db").make_sqlite_name() == "100% ours?.db"
    assert parse_address("sqlite:////var/my%20chats.db?mode=ro").make_sqlite_name() == "file:/var/my%20chats.db?mode=ro"


def test_a_server_is_named_as_the_driver_takes_it() -> None:
    meant = parse_address(f"postgresql://ada:{SECRET}@db:5433/chats?sslmode=require&connect_timeout=3")

    assert meant.make_postgres_options() == {
        "host": "db",
        "port": 5433,
        "user": "ada",
        "password": SECRET,
        "database": "chats",
        "ssl": "require",
        "timeout": 3.0,
    }
    assert parse_address("postgresql://db").make_postgres_options() == {"host": "db"}
