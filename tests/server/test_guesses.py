"""Wrong tokens: refused after so many, counted by network, and never at the expense of a valid one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from tests.server.asking import read_problem
from tests.server.logging_in import bearer
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

from indelible.errors import RateLimited, StoreFailed
from indelible.server.authentication import GUESSES, MAX_IN_LINE, Guesses
from indelible.testing import ManualClock

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)
on_sqlite = pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)


async def guess_until_refused(server: RunningServer, *, at_login: bool) -> list[int]:
    """The statuses of wrong tokens, one after the other, up to the first that is refused for its number."""
    statuses: list[int] = []
    while 429 not in statuses:
        assert len(statuses) < 10 * GUESSES, "wrong tokens are not counted"
        path, more = ("/session", {"json": {"token": "idt_wrong"}}) if at_login else ("/models", {})
        method = "POST" if at_login else "GET"
        async with server.request(method, path, headers={} if at_login else bearer("idt_wrong"), **more) as response:
            statuses.append(response.status)
            if response.status == 429:
                assert (await read_problem(response))["kind"] == "rate_limited"
                assert response.headers["Retry-After"] == "60"
    return statuses


@on_sqlite
@pytest.mark.parametrize("at_login", [True, False])
async def test_guessing_is_soon_refused_and_valid_tokens_get_in_all_the_same(
    harness: AppHarness, *, at_login: bool
) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    accounts = server.app.accounts
    ada = await accounts.add_user("ada")
    statuses = await guess_until_refused(server, at_login=at_login)
    assert statuses[:GUESSES] == [401] * GUESSES
    assert set(statuses[GUESSES:-1]) <= {401}  # one more every two seconds
    _, hers = await accounts.create_token(ada.id, label="", scopes=["read"])
    _, link = await accounts.create_token(ada.id, label="", scopes=["read"], single_use=True)
    for token in (hers, TOKEN):
        async with server.request("GET", "/models", headers=bearer(token)) as response:
            assert response.status == 200
    for token in (hers, TOKEN, link):
        async with server.request("POST", "/session", json={"token": token}) as response:
            assert response.status == 200


@on_sqlite
async def test_a_wrong_token_at_the_login_waits_for_nobody_who_writes(harness: AppHarness, database: str) -> None:
    server = await harness.start_server(worker=False, token=TOKEN)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with server.request("POST", "/session", json={"token": "idt_wrong"}) as response:
            assert response.status == 401


async def find_nothing() -> str | None:
    return None


async def find_ada() -> str | None:
    return "ada"


def find_if(is_right: bool) -> Callable[[], Awaitable[str | None]]:
    return find_ada if is_right else find_nothing


async def use_up(guesses: Guesses, address: str) -> None:
    for _ in range(GUESSES):
        assert await guesses.find(address, find_nothing) is None


async def test_guesses_are_counted_by_the_network_of_an_ipv6_address() -> None:
    guesses = Guesses(ManualClock())
    for number in range(GUESSES):
        assert await guesses.find(f"2001:db8:0:1::{number:x}", find_nothing) is None
    with pytest.raises(RateLimited):
        await guesses.find("2001:db8:0:1:ffff::1", find_nothing)
    assert await guesses.find("2001:db8:0:2::1", find_nothing) is None
    assert await guesses.find("2001:db8:0:1:ffff::1", find_ada) == "ada"


async def test_only_what_is_wrong_is_counted_and_it_is_forgotten_in_time() -> None:
    clock = ManualClock()
    guesses = Guesses(clock)

    async def fail() -> str | None:
        raise StoreFailed("away")

    for _ in range(2 * GUESSES):
        assert await guesses.find("192.0.2.1", find_ada) == "ada"
        with pytest.raises(StoreFailed):
            await guesses.find("192.0.2.1", fail)
    await use_up(guesses, "192.0.2.1")
    with pytest.raises(RateLimited):
        await guesses.find("192.0.2.1", find_nothing)
    clock.advance(2)
    assert await guesses.find("192.0.2.1", find_nothing) is None
    with pytest.raises(RateLimited):
        await guesses.find("192.0.2.1", find_nothing)


async def test_lookups_of_an_address_are_bounded_also_before_the_first_has_ended() -> None:
    guesses, release = Guesses(ManualClock()), asyncio.Event()
    looking = 0

    async def load() -> str | None:
        nonlocal looking
        looking += 1
        await release.wait()
        return None

    tasks = [asyncio.create_task(guesses.find("192.0.2.1", load)) for _ in range(10 * GUESSES)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert looking < 2 * GUESSES
    release.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert found.count(None) == GUESSES
    assert sum(isinstance(one, RateLimited) for one in found) == 9 * GUESSES


async def test_a_short_token_of_the_settings_is_tried_no_more_often_than_the_limit_says() -> None:
    """Being right helps nobody who has used up their guesses: everybody waits for their turn."""
    clock = ManualClock()
    guesses = Guesses(clock)
    assert await guesses.find("192.0.2.1", find_nothing, compare=find_ada) == "ada"
    await use_up(guesses, "192.0.2.1")
    rights = [False] * (MAX_IN_LINE - 1) + [True]
    tasks = [
        asyncio.create_task(guesses.find("192.0.2.1", find_nothing, compare=find_if(is_right))) for is_right in rights
    ]
    await clock.advance(0)
    with pytest.raises(RateLimited):  # the line is full
        await guesses.find("192.0.2.1", find_nothing, compare=find_ada)
    assert await guesses.find("192.0.2.1", find_ada, compare=find_nothing) == "ada"  # a stored one waits for nobody
    assert await guesses.find("192.0.2.2", find_nothing, compare=find_ada) == "ada"
    for turn in range(MAX_IN_LINE):
        assert [task.done() for task in tasks] == [number < turn for number in range(MAX_IN_LINE)]
        await clock.advance(2)
    assert tasks[-1].result() == "ada"
    assert all(isinstance(task.exception(), RateLimited) for task in tasks[:-1])
    assert guesses._lines == {}


async def test_a_short_token_is_tried_no_more_often_while_the_database_is_away() -> None:
    guesses = Guesses(ManualClock())

    async def fail() -> str | None:
        raise StoreFailed("away")

    for _ in range(GUESSES):
        with pytest.raises(StoreFailed):
            await guesses.find("192.0.2.1", fail, compare=find_nothing)
    with pytest.raises(RateLimited):
        await guesses.find("192.0.2.1", find_nothing)


@on_sqlite
async def test_a_server_with_a_short_token_lets_it_wait_its_turn(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token="short")  # noqa: S106  (nobody's)
    assert server.server.server_state is not None
    clock = ManualClock(skip_sleeps=True)
    server.server.server_state.authenticator._guesses = Guesses(clock)
    for _ in range(GUESSES):
        async with server.request("GET", "/models", headers=bearer("wrong")) as response:
            assert response.status == 401
    for given, status in (("short", 200), ("wrong", 429)):
        async with server.request("GET", "/models", headers=bearer(given)) as response:
            assert response.status == status
    async with server.request("POST", "/session", json={"token": "short"}) as response:
        assert response.status == 200
    assert clock.slept == [2, 2, 2]
