"""Users, tokens, sessions and shares: what protocol.py of store/accounts promises, on both databases."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.store.driver import Driver
from tests.support.engine import get_database

from indelible.api.inputs import LONGEST_USER_NAME
from indelible.api.shapes import ALL_SCOPES
from indelible.errors import Invalid, NotFound
from indelible.files.bytes import DatabaseBytes
from indelible.files.store import FileStore
from indelible.machine.commands import Send
from indelible.store.accounts import AccountStore, CredentialKey
from indelible.store.payloads import UserInput
from indelible.store.shares import PREFIX_LENGTH, ShareStore, hash_secret
from indelible.store.store import Store
from indelible.testing import ManualClock

HOUR = timedelta(hours=1)


class Accounts:
    """Both stores with a clock that the test moves, and what they told of changes."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.clock = ManualClock()
        self.changed: list[str] = []
        database = get_database(engine)
        self.store: AccountStore = AccountStore(database, clock=self.clock, on_changed=self.note)
        self.shares: ShareStore = ShareStore(database, clock=self.clock, lease_timeout_s=8, on_changed=self.note)

    def note(self, user_ids: Iterable[str]) -> None:
        self.changed += user_ids

    @property
    def soon(self) -> Any:
        return self.clock.now() + HOUR


async def _stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.fixture
async def accounts(engine: AsyncEngine) -> Accounts:
    return Accounts(engine)


@pytest.mark.parametrize(
    ("protocol", "implementation"), [(AccountStore, AccountStore), (ShareStore, ShareStore)], ids=["accounts", "shares"]
)
def test_every_promise_is_written_down_kept_and_tried(migrated: str, protocol: type, implementation: type) -> None:
    tests = Path(__file__).read_text()
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            assert (inspect.getdoc(method) or "").strip(), name
            assert inspect.signature(getattr(implementation, name)) == inspect.signature(method), name
            assert f".{name}(" in tests, name


# --- users ---


async def test_users_are_added_once_listed_by_name_and_changed(accounts: Accounts) -> None:
    store = accounts.store
    grace = await store.add_user("grace", role="admin")
    ada = await store.ensure_account("ada")
    assert (ada.role, ada.disabled, grace.role) == ("user", False, "admin")
    assert await store.list_users() == [ada, grace]
    assert await store.ensure_account("grace") == grace
    assert [await store.find_user(name) for name in ("ada", "nobody", "a\0da")] == [ada, None, None]
    with pytest.raises(Invalid, match="already a user named ada"):
        await store.add_user("ada")
    with pytest.raises(NotFound, match="no user named nobody"):
        await store.update_user("nobody", role="admin")

    changed = await store.update_user("ada", role="admin", disabled=True)
    assert (changed.role, changed.disabled) == ("admin", True)
    assert (await store.update_user("ada", disabled=False)).role == "admin"
    assert accounts.changed == [ada.id, ada.id]


async def test_a_user_that_many_ask_for_at_once_is_one(accounts: Accounts) -> None:
    made = await asyncio.gather(*(accounts.store.ensure_account("ada") for _ in range(8)))
    assert len({account.id for account in made}) == 1


@pytest.mark.parametrize("name", ["", " ada", "ada\n", "a\0", "x" * (LONGEST_USER_NAME + 1), "\x1b[31m"])
async def test_a_name_that_could_forge_a_line_is_refused(accounts: Accounts, name: str) -> None:
    for make in (accounts.store.add_user, accounts.store.ensure_account):
        with pytest.raises(Invalid, match="printable"):
            await make(name)


# --- tokens ---


async def test_a_token_is_shown_once_found_by_its_secret_and_listed_without_it(accounts: Accounts) -> None:
    store = accounts.store
    ada = await store.add_user("ada")
    made, secret = await store.create_token(ada.id, label="laptop", scopes=["read", "write"])
    other, _ = await store.create_token(ada.id, label="phone", scopes=["read"], expires_at=accounts.soon)
    assert await store.list_tokens(ada.id) == [other, made]
    assert secret.startswith(made.prefix)
    assert len(made.prefix) == PREFIX_LENGTH
    assert secret not in repr(await store.list_tokens(ada.id))

    found = await store.find_token(secret)
    assert found is not None
    assert (found.user_id, found.user, found.role, found.scopes) == (ada.id, "ada", "user", ("read", "write"))
    assert [await store.find_token(wrong) for wrong in ("", secret[:-1], secret + "x", "\ud800", "\0")] == [None] * 5


async def test_a_token_is_valid_until_it_is_revoked_expires_or_its_user_is_disabled(accounts: Accounts) -> None:
    store = accounts.store
    ada, grace = await store.add_user("ada"), await store.add_user("grace")
    made, secret = await store.create_token(ada.id, label="", scopes=["read"], expires_at=accounts.soon)
    key = CredentialKey("token", made.id)
    assert await store.find_valid([key, CredentialKey("token", "nothing")]) == {key}

    await store.update_user("ada", disabled=True)
    assert (await store.find_token(secret), await store.find_valid([key])) == (None, set())
    await store.update_user("ada", disabled=False)
    assert await store.find_token(secret) is not None

    for token_id, user_id in ((made.id, grace.id), ("nothing", None), ("\0", ada.id)):
        with pytest.raises(NotFound):
            await store.revoke_token(token_id, user_id=user_id)
    accounts.changed.clear()
    await store.revoke_token(made.id, user_id=ada.id)
    assert accounts.changed == [ada.id]
    assert (await store.find_token(secret), await store.list_tokens(ada.id)) == (None, [])
    with pytest.raises(NotFound):
        await store.revoke_token(made.id)

    _, brief = await store.create_token(ada.id, label="", scopes=["read"], expires_at=accounts.soon)
    accounts.clock.advance(HOUR.total_seconds() + 1)
    assert (await store.find_token(brief), await store.list_tokens(ada.id)) == (None, [])


# --- sessions ---


async def test_a_session_has_the_rights_of_its_token_and_ends_with_it(accounts: Accounts) -> None:
    store = accounts.store
    ada = await store.add_user("ada", role="admin")
    made, token = await store.create_token(ada.id, label="", scopes=["read"])
    assert await store.open_session("wrong", expires_at=accounts.soon) is None
    opened = await store.open_session(token, expires_at=accounts.soon)
    assert opened is not None
    session, secret = opened
    assert await store.find_session(secret) == session
    assert (session.scopes, session.role, session.expires_at) == (("read",), "admin", accounts.soon)
    assert await store.find_token(secret) is None
    assert await store.find_session(token) is None
    assert session.token_expires_at is None

    await store.revoke_token(made.id)
    assert (await store.find_session(secret), await store.find_valid([session.key])) == (None, set())


async def test_a_session_does_not_outlive_its_token(accounts: Accounts) -> None:
    store = accounts.store
    ada = await store.add_user("ada")
    _, token = await store.create_token(ada.id, label="", scopes=["read"], expires_at=accounts.soon)
    opened = await store.open_session(token, expires_at=accounts.soon + HOUR)
    assert opened is not None
    found = [opened[0], await store.find_session(opened[1]), await store.find_token(token)]
    assert [one.token_expires_at for one in found if one is not None] == [accounts.soon] * 3
    accounts.clock.advance(HOUR.total_seconds() + 1)
    assert await store.find_session(opened[1]) is None


async def test_a_token_for_a_single_use_opens_one_session_whoever_comes_first(accounts: Accounts) -> None:
    store = accounts.store
    ada = await store.add_user("ada")
    _, token = await store.create_token(ada.id, label="", scopes=ALL_SCOPES, expires_at=accounts.soon, single_use=True)
    assert (await store.find_token(token), await store.list_tokens(ada.id)) == (None, [])
    opened = await asyncio.gather(*(store.open_session(token, expires_at=accounts.soon + HOUR) for _ in range(5)))
    (one,) = [found for found in opened if found is not None]
    session = await store.find_session(one[1])
    assert session is not None
    assert one[0].token_expires_at is session.token_expires_at is None
    accounts.clock.advance(HOUR.total_seconds() + 1)
    assert await store.find_session(one[1]) is not None


async def test_a_session_slides_while_it_is_used_and_ends_when_it_is_not(accounts: Accounts) -> None:
    store = accounts.store
    ada = await store.add_user("ada")
    made, token = await store.create_token(ada.id, label="", scopes=["read"])
    secret = await store.add_session(ada.id, method="oidc", scopes=["read", "write"], expires_at=accounts.soon)
    session = await store.find_session(secret)
    assert session is not None
    accounts.clock.advance(HOUR.total_seconds() / 2)
    used = [session.key, CredentialKey("token", made.id), CredentialKey("user", ada.id)]
    await store.note_used(used, session_expires_at=accounts.soon)
    assert (await store.list_tokens(ada.id))[0].last_used_at == accounts.clock.now()
    accounts.clock.advance(HOUR.total_seconds() * 0.9)
    assert await store.find_session(secret) is not None
    accounts.clock.advance(HOUR.total_seconds())
    await store.note_used([session.key], session_expires_at=accounts.soon)  # too late
    assert await store.find_session(secret) is None

    opened = await store.open_session(token, expires_at=accounts.soon)
    assert opened is not None
    await store.end_session(opened[0].key.id)
    await store.end_session(opened[0].key.id)
    assert await store.find_session(opened[1]) is None


async def test_a_session_that_is_bound_to_something_ends_when_that_changes(accounts: Accounts) -> None:
    store = accounts.store
    ada = await store.add_user("ada")
    secret = await store.add_session(
        ada.id, method="token", scopes=["read"], expires_at=accounts.soon, bound_to="the setting"
    )
    assert await store.find_session(secret, bound_to="the setting") is not None
    assert await store.find_session(secret, bound_to="another") is None
    assert await store.find_session(f"{secret}the setting") is None  # who had both cannot join them
    assert await store.find_session(f"{secret}the ", bound_to="setting") is None
    assert await store.find_session(secret) is None


async def test_what_can_never_be_valid_again_is_forgotten(accounts: Accounts, engine: AsyncEngine) -> None:
    store = accounts.store
    ada = await store.add_user("ada")
    kept, token = await store.create_token(ada.id, label="", scopes=["read"])
    gone, _ = await store.create_token(ada.id, label="", scopes=["read"])
    await store.revoke_token(gone.id)
    await store.add_session(ada.id, method="oidc", scopes=["read"], expires_at=accounts.soon)
    accounts.clock.advance(3 * 86400)
    opened = await store.open_session(token, expires_at=accounts.soon)
    assert opened is not None
    await store.forget_expired()
    assert await count(engine, "tokens") == 1
    assert await count(engine, "sessions") == 1
    assert [found.id for found in await store.list_tokens(ada.id)] == [kept.id]


async def count(engine: AsyncEngine, table: str) -> int:
    row = await get_database(engine).read(lambda given: given.one(f"SELECT count(*) AS n FROM {table}"))  # noqa: S608
    return int(row["n"])


# --- shares ---


async def test_a_chat_is_shared_with_users_and_by_link_and_only_by_its_owner(
    accounts: Accounts, chat: Driver, engine: AsyncEngine
) -> None:
    shares, owner_id = accounts.shares, str(await chat.store.owner(chat.id))
    grace, ida = await accounts.store.add_user("grace"), await accounts.store.add_user("ida")
    assert await shares.find_share(chat.id, grace.id) is None
    hers = await shares.share_with_user(chat.id, "grace", owner_id=owner_id)
    assert await shares.share_with_user(chat.id, "grace", owner_id=owner_id) == hers
    link, key = await shares.share_by_link(chat.id, owner_id=owner_id)
    assert await shares.list_shares(chat.id, owner_id=owner_id) == [hers, link]
    assert (hers.user, link.user) == ("grace", None)
    assert await shares.find_share(chat.id, grace.id) == hers.id
    assert await shares.find_share(chat.id, ida.id) is None
    assert await shares.find_share("\0", grace.id) is None
    (shown,) = await shares.list_shared(grace.id)
    assert shown.id == chat.id
    assert await shares.find_link(key) == (link.id, chat.id, owner_id)
    assert [await shares.find_link(wrong) for wrong in ("", key[:-1], link.id)] == [None] * 3

    files = FileStore(get_database(engine), [DatabaseBytes(get_database(engine))])
    file = await files.upload(owner_id, _stream(b"rain"), name="rain.txt")
    assert await shares.find_file_shares(grace.id, file.id) == []
    await chat.do(Send(), payload=UserInput(blocks=[file.to_block()]))
    assert await shares.find_file_shares(grace.id, file.id) == [(hers.id, chat.id, owner_id)]
    assert [await shares.find_file_shares(*wrong) for wrong in ((ida.id, file.id), (grace.id, "\0"))] == [[], []]

    for stranger in (grace.id, "nobody"):
        for attempt in (
            shares.share_with_user(chat.id, "ida", owner_id=stranger),
            shares.share_by_link(chat.id, owner_id=stranger),
            shares.list_shares(chat.id, owner_id=stranger),
            shares.delete_share(chat.id, link.id, owner_id=stranger),
        ):
            with pytest.raises(NotFound, match="Chat not found"):
                await attempt
    await accounts.store.update_user("ida", disabled=True)
    for nobody in ("nobody", "ida"):  # the two must not differ
        with pytest.raises(NotFound, match=r"^There is no user of this name\.$"):
            await shares.share_with_user(chat.id, nobody, owner_id=owner_id)
    assert await shares.find_share(chat.id, ida.id) is None
    accounts.changed.clear()
    owner = next(account.name for account in await accounts.store.list_users() if account.id == owner_id)
    with pytest.raises(Invalid, match="The chat is yours"):
        await shares.share_with_user(chat.id, owner, owner_id=owner_id)

    keys = [CredentialKey("share", hers.id), CredentialKey("share", link.id)]
    assert await accounts.store.find_valid(keys) == set(keys)
    await shares.delete_share(chat.id, hers.id, owner_id=owner_id)
    await shares.delete_share(chat.id, link.id, owner_id=owner_id)
    assert accounts.changed == [owner_id, owner_id]
    assert await accounts.store.find_valid(keys) == set()
    assert await shares.find_share(chat.id, grace.id) is None
    assert (await shares.find_link(key), await shares.list_shared(grace.id)) == (None, [])
    with pytest.raises(NotFound, match="Share not found"):
        await shares.delete_share(chat.id, link.id, owner_id=owner_id)


async def test_a_deleted_chat_takes_its_shares_along(accounts: Accounts, chat: Driver, engine: AsyncEngine) -> None:
    owner_id = str(await chat.store.owner(chat.id))
    _, key = await accounts.shares.share_by_link(chat.id, owner_id=owner_id)
    await get_database(engine).write(lambda given: given.run("DELETE FROM chats WHERE id = $1", chat.id))
    assert await accounts.shares.find_link(key) is None
    assert await count(engine, "shares") == 0


# --- what is on disk ---


async def test_no_secret_is_in_the_database(accounts: Accounts, chat: Driver, database: str) -> None:
    store: AccountStore = accounts.store
    ada = await store.add_user("ada")
    _, token = await store.create_token(ada.id, label="laptop", scopes=["read"])
    opened = await store.open_session(token, expires_at=accounts.soon)
    assert opened is not None
    _, key = await accounts.shares.share_by_link(chat.id, owner_id=str(await chat.store.owner(chat.id)))
    found = await read_bytes(database)
    for secret in (token, opened[1], key):
        assert hash_secret(secret).hex() in found
        assert secret not in found
        assert secret.encode().hex() not in found


async def read_bytes(database: str) -> str:
    """Everything in the tables of people, as one text; bytes as hex."""
    tables = ("users", "tokens", "sessions", "shares")
    if not database.startswith("postgresql"):
        with closing(sqlite3.connect(database)) as file:
            rows: list[Any] = [row for name in tables for row in file.execute(f"SELECT * FROM {name}")]  # noqa: S608
    else:
        connection = await asyncpg.connect(database)
        rows = [row for name in tables for row in await connection.fetch(f"SELECT * FROM {name}")]  # noqa: S608
        await connection.close()
    return " ".join(value.hex() if isinstance(value, bytes) else str(value) for row in rows for value in tuple(row))


def test_the_store_of_chats_knows_nothing_of_logins(migrated: str) -> None:
    assert not [name for name in dir(Store) if "token" in name or "session" in name]
