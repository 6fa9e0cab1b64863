"""Names of users: compared without case, look-alikes refused, and old pairs left alone. On both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_read, begin_write, close_databases, get_database, open_engine

from indelible.errors import Invalid
from indelible.store.accounts import AccountStore
from indelible.store.database.migrate import HEAD, Migrated, migrate
from indelible.store.queries.listing import find_likeness, remove_disguise
from indelible.store.store import Store
from indelible.testing import ManualClock


async def close(engine: AsyncEngine) -> None:
    await close_databases()
    await engine.dispose()


ALIKE = [
    ("ada", "Ada"),
    ("ada", "ADA"),
    ("ada", "\u0430d\u0430"),  # Cyrillic
    ("Ada", "\u0391da"),  # a Greek capital
    ("ada", "\uff41\uff44\uff41"),  # full width
    ("ada", "a\ufe0fda"),  # with what cannot be seen
    ("straße", "STRASSE"),
    ("ada-l", "ada\u2011l"),
    ("ada l", "ada  l"),
    ("\u043f\u0451\u0442\u0440", "\u041f\u0401\u0422\u0420"),  # all Cyrillic
    ("local", "Iocal"),
    ("bob", "B0b"),
    ("local", "1ocal"),
]
DIFFERENT = [
    "ada",
    "adam",
    "ad a",
    "a.da",
    "ida",
    "ian",
    "lan",
    "\u00e1da",
    "ada@example.com",
    "ada@example.org",
    "\u674e",
]


def make_accounts(engine: AsyncEngine) -> AccountStore:
    return AccountStore(get_database(engine), clock=ManualClock())


@pytest.mark.parametrize(("name", "other"), ALIKE, ids=ascii)
async def test_a_new_name_that_looks_like_anothers_is_refused_wherever_it_is_made(
    engine: AsyncEngine, name: str, other: str
) -> None:
    accounts, store = make_accounts(engine), Store(get_database(engine))
    ada = await accounts.add_user(name)
    for make in (accounts.add_user, accounts.ensure_account, store.ensure_user):
        with pytest.raises(Invalid, match=f"looks like that of the user {name}. Choose another"):
            await make(other)
    assert await accounts.list_users() == [ada]
    assert (await accounts.ensure_account(name), await store.ensure_user(name)) == (ada, ada.id)


async def test_names_that_differ_are_all_taken(engine: AsyncEngine) -> None:
    accounts = make_accounts(engine)
    for name in DIFFERENT:
        await accounts.add_user(name)
    assert {user.name for user in await accounts.list_users()} == set(DIFFERENT)
    assert len({find_likeness(name) for name in DIFFERENT} | {remove_disguise(name) for name in DIFFERENT}) == len(
        DIFFERENT
    )


async def test_of_those_who_come_at_once_and_look_the_same_one_is_made(engine: AsyncEngine) -> None:
    accounts = make_accounts(engine)
    names = ["ada", "Ada", "aDa", "adA", "ADA"]
    made = await asyncio.gather(*(accounts.ensure_account(name) for name in names), return_exceptions=True)
    assert len(await accounts.list_users()) == 1
    assert sum(isinstance(one, Invalid) for one in made) == len(names) - 1


async def test_the_upgrade_to_0017_leaves_old_pairs_alone_and_refuses_new_ones(new_database: str) -> None:
    await migrate(new_database, target="0015")
    engine = await open_engine(new_database)
    rows = [("user_3", "ADA", 1), ("user_1", "Ada", 2), ("user_2", "ada", 3), ("user_4", "bob", 4)]
    async with begin_write(engine) as connection:
        for user_id, name, second in rows:
            at = f"2026-11-15T09:00:0{second}.000000Z"
            sql = f"INSERT INTO users (id, name, created_at) VALUES ('{user_id}', '{name}', '{at}')"  # noqa: S608
            await connection.execute(text(sql))
    await close(engine)

    assert await migrate(new_database) == Migrated("0015", HEAD)

    engine = await open_engine(new_database)
    async with begin_read(engine) as connection:
        found = (await connection.execute(text("SELECT id, likeness FROM users ORDER BY id"))).all()
    assert [tuple(row) for row in found] == [
        ("user_1", None),
        ("user_2", None),
        ("user_3", "ada"),
        ("user_4", "bob"),
    ]
    accounts = make_accounts(engine)
    assert [(await accounts.ensure_account(name)).id for _, name, _ in rows] == [user_id for user_id, _, _ in rows]
    for name in ("aDA", "BOB"):
        with pytest.raises(Invalid, match="looks like"):
            await accounts.ensure_account(name)
    await close(engine)
