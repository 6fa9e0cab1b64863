"""Token buckets: who waits, and for how long. Wrong credentials are in test_guesses.py."""

from __future__ import annotations

import pytest
from tests.server.asking import read_problem
from tests.server.logging_in import bearer
from tests.support.app_harness import AppHarness

from indelible.server.limits import MAX_BUCKETS, TokenBuckets

TOKEN = "the-first-admins-token"  # noqa: S105  (nobody's)


def test_a_bucket_has_a_burst_and_then_the_rate() -> None:
    now = [0.0]
    buckets = TokenBuckets(2, 4, monotonic=lambda: now[0])
    assert [buckets.acquire("ada") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    assert buckets.acquire("grace") == 0
    now[0] = 0.5
    assert [buckets.acquire("ada") for _ in range(2)] == [0, 0.5]
    now[0] = 1000
    assert [buckets.acquire("ada") for _ in range(5)] == [0, 0, 0, 0, 0.5]


def test_buckets_of_those_who_were_not_busy_lately_are_forgotten() -> None:
    now = [0.0]
    buckets = TokenBuckets(1, 2, monotonic=lambda: now[0])
    for number in range(MAX_BUCKETS + 1):
        buckets.acquire(str(number))
        now[0] += 1
    assert len(buckets._buckets) < 10


@pytest.mark.parametrize("migrated", ["sqlite"], indirect=True)
async def test_a_user_who_sends_too_much_learns_when_to_come_back_and_others_are_let_in(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False, token=TOKEN, user_max_requests_per_s=1)
    ada = await server.app.accounts.add_user("ada")
    _, hers = await server.app.accounts.create_token(ada.id, label="", scopes=["read"])
    statuses: list[int] = []
    while 429 not in statuses:
        async with server.request("GET", "/models", headers=bearer(hers)) as response:
            statuses.append(response.status)
            if response.status == 429:
                assert (await read_problem(response))["kind"] == "rate_limited"
                assert response.headers["Retry-After"] == "1"
    assert len(statuses) > 10
    async with server.request("GET", "/models", headers=bearer(TOKEN)) as response:
        assert response.status == 200
