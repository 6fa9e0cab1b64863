"""A Redis that loses, doubles, delays and reorders rows, dies, freezes or refuses: later, and never a word less."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.feed.fanned_harness import FannedHarness, run_two
from tests.feed.feed_harness import SeenEvents, StreamedChat
from tests.support.waiting import poll_until

from indelible.content import Finish, TextDelta, encode
from indelible.errors import Invalid
from indelible.feed.events import START
from indelible.feed.fanout import MAX_UNSENT_BYTES, RENEW_INTERVAL_S, describe_failure, find_password, make_connection
from indelible.machine.commands import FinishTurn, Send, UpdateChat
from indelible.prove.redis import RedisServer
from indelible.store.journal.append import JournalRow
from indelible.store.payloads import ChatPatch
from indelible.testing import ManualClock

Change = Callable[[Sequence[JournalRow]], Sequence[JournalRow]]
AWAY: Final = pytest.mark.may_log("WARNING indelible.feed.fanout: Redis can't be used")
ROWS: Final = 40
PAGE: Final = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
NO_TEXT: Final = b"\x92\xa2\xff\xfe\x90"
DEEP: Final = b"\x91\x96\xa1a\xa1b\x01\x01\xc4\x01x" + b"\x91" * 100_000
RIGHTS: Final = PAGE.partition("With ACLs, a user needs `")[2].partition("`")[0].split()


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with RedisServer().running() as running:
        yield running


def count_to(end: int) -> str:
    return "".join(f"{number}," for number in range(end))


class Mischief:
    """Loses, doubles, delays and reorders rows, by chance. `late` come with a later row, or never."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  (a test that fails, fails again)
        self.late: list[JournalRow] = []
        self.done: set[str] = set()

    def __call__(self, rows: Sequence[JournalRow]) -> Sequence[JournalRow]:
        passed: list[JournalRow] = []
        for row in rows:
            what = self._random.choice(("pass", "pass", "lose", "double", "delay", "bring back", "swap"))
            self.done.add(what)
            if what in ("delay", "swap"):
                self.late.append(row)
            if what not in ("lose", "delay", "swap"):
                passed.append(row)
            if what == "double":
                passed.append(row)
            if what in ("bring back", "swap") and self.late:
                passed.append(self.late.pop(self._random.randrange(len(self.late))))
        self._random.shuffle(passed)
        return passed


@pytest.mark.parametrize("seed", range(6))
async def test_rows_that_are_lost_doubled_delayed_and_reordered_reach_readers_once_and_in_order(
    own_postgres: str, redis: RedisServer, seed: int
) -> None:
    """Two turns, so that late rows of the first come in the second. Hints, polls and events fall in between."""
    mischief, chance = Mischief(seed), random.Random(seed)  # noqa: S311  (as above)
    async with run_two(own_postgres, redis.url) as (writing, reading):
        reading.change = mischief
        chat = await (await writing.create_chat()).acquire()
        async with reading.read(chat, START) as seen, reading.read(chat) as beside:
            await writing.wait_for_interest(chat)
            for turn in range(2):
                if turn:
                    await chat.do(Send(), "Once more")
                    await chat.acquire()
                await chat.start()
                for number in range(ROWS):
                    await chat.write(f"{number},")
                    if chance.random() < 0.1:
                        await reading.poll()
                    if chance.random() < 0.1:
                        await chat.do(UpdateChat(), payload=ChatPatch(title=f"Title {number}"))
                await chat.close(FinishTurn, Finish("stop"))
                await reading.poll()
                await seen.wait_until(lambda: seen.kinds.count("message") == 2 * (turn + 1))  # noqa: B023
            await seen.catch_up()
            await beside.catch_up()
        assert seen.text == 2 * count_to(ROWS)
        assert beside.text.endswith(count_to(ROWS))
        check_rows(seen)
        check_rows(beside)
    assert {"lose", "double", "delay", "swap"} <= mischief.done
    assert reading.metrics.gaps == reading.metrics.resyncs == 0


def check_rows(seen: SeenEvents) -> None:
    """Every row of each attempt once, in order, and before its end."""
    rows: dict[str, list[int]] = {}
    for event in seen.events:
        if event.kind == "part":
            rows.setdefault(event.data["attempt"], []).append(event.data["n"])
        elif event.data.get("last_n") is not None and event.data["attempt"] in rows:
            assert rows[event.data["attempt"]][-1] == event.data["last_n"]
    for numbers in rows.values():
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


async def test_a_gap_is_read_from_the_database_and_counted(own_postgres: str, redis: RedisServer) -> None:
    async with run_two(own_postgres, redis.url) as (writing, reading):
        chat = await writing.create_streaming()
        async with reading.read(chat) as seen:
            await seen.catch_up()
            await writing.wait_for_interest(chat)
            assert writing.fanout is not None
            await chat.write("0,")
            await seen.wait_for_text("0,")
            inboxes, writing.fanout._inboxes = writing.fanout._inboxes, {}
            writing.notifier.is_mute = True
            await chat.write("1,")
            writing.fanout._inboxes = inboxes
            await chat.write("2,")
            await seen.wait_for_text("0,1,2,")
    assert (reading.counted.received, reading.counted.missed) == (2, 1)


@AWAY
async def test_redis_that_is_killed_and_started_again_costs_no_word(own_postgres: str, redis: RedisServer) -> None:
    async with run_two(own_postgres, redis.url) as (writing, reading):
        chat = await writing.create_streaming()
        received = 0
        async with reading.read(chat) as seen:
            await seen.catch_up()
            await writing.wait_for_interest(chat)
            for number in range(60):
                if number == 20:
                    await redis.kill()
                if number == 40:
                    await seen.wait_for_text(count_to(40))  # by hints
                    assert not writing.fanout.is_connected  # type: ignore[union-attr]
                    await redis.start()
                    for harness in (writing, reading):
                        await harness.wait_for_redis()
                    received = reading.counted.received
                await chat.write(f"{number},")
            await seen.wait_for_text(count_to(60))
            assert reading.counted.received > received
    assert writing.counted.connected == [True, False, True, False]


@AWAY
async def test_redis_that_freezes_neither_holds_up_the_journal_nor_fills_the_memory(
    own_postgres: str, redis: RedisServer
) -> None:
    clock = ManualClock()
    async with run_two(own_postgres, redis.url, clock=clock) as (writing, reading):
        fanout = writing.fanout
        assert fanout is not None
        chat = await writing.create_streaming()
        async with reading.read(chat) as seen:
            await seen.catch_up()
            await writing.wait_for_interest(chat)
            redis.send(signal.SIGSTOP)
            large, wanted = "x" * 50_000, ""
            for number in range(50):  # more than the buffer holds, and what the kernel takes
                await chat.write(f"{number}{large}")
                wanted += f"{number}{large}"
                assert fanout._unsent_bytes <= MAX_UNSENT_BYTES
            while fanout.is_connected:
                await clock.advance(RENEW_INTERVAL_S)
            await seen.wait_for_text(wanted)
            assert (fanout._unsent, fanout._in_flight) == ({}, {})
            redis.send(signal.SIGCONT)
            await poll_until(lambda: advance_until_connected(clock, writing, reading), what="Redis")
            await chat.write("thawed")
            await seen.wait_for_text(f"{wanted}thawed")
    assert writing.counted.unpublished > 0


@pytest.mark.may_log("WARNING indelible.feed.fanout: .*AuthenticationError")
async def test_a_wrong_password_is_reported_without_it_and_readers_use_the_database(
    own_postgres: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with RedisServer("--requirepass", "the-right-one").running() as redis:
        wrong = f"redis://:the-wrong-one@127.0.0.1:{redis.port}/0"
        async with run_two(own_postgres, wrong, is_connected=False) as (writing, reading):
            chat = await writing.create_streaming()
            async with reading.read(chat) as seen:
                await chat.write("Rain")
                await seen.wait_for_text("Rain")
    assert "the-wrong-one" not in caplog.text


@pytest.mark.parametrize(
    ("options", "login"),
    [
        pytest.param(("--requirepass", "the-right-one"), ":the-right-one", id="password"),
        pytest.param(("--user", "ada", "on", ">secret", "-@all", *RIGHTS), "ada:secret", id="acl"),
    ],
)
async def test_the_login_in_the_url_is_enough_with_the_rights_that_the_docs_name(
    own_postgres: str, options: tuple[str, ...], login: str
) -> None:
    redis = RedisServer(*options)
    url = f"redis://{login}@127.0.0.1:{redis.port}/0"
    async with redis.running(), run_two(own_postgres, url) as (writing, reading):
        await check_that_rows_come(writing, reading)


async def test_rows_go_through_tls(own_postgres: str, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=redis", "-days", "2"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate))
    async with RedisServer(*files, "--tls-auth-clients", "no", has_tls=True).running() as redis:
        url = f"rediss://127.0.0.1:{redis.port}/0?ssl_ca_certs={certificate}"
        async with run_two(own_postgres, url) as (writing, reading):
            await check_that_rows_come(writing, reading)


async def test_messages_that_nobody_can_read_are_ignored(own_postgres: str, redis: RedisServer) -> None:
    async with run_two(own_postgres, redis.url) as (writing, reading):
        assert reading.fanout is not None
        stranger = Redis.from_url(redis.url)
        for garbage in (b"", b"\xc1", b'[{"chat_id": 7}]', encode([TextDelta("1", "Rain")]), NO_TEXT, DEEP):
            for channel in (reading.fanout.inbox, reading.fanout.announcements):
                assert await stranger.publish(channel, garbage)
        await stranger.aclose()
        await check_that_rows_come(writing, reading)
    assert reading.counted.connected == [True, False]


async def test_options_in_the_url_that_would_keep_rows_from_coming_have_no_effect(
    own_postgres: str, redis: RedisServer
) -> None:
    url = f"{redis.url}?protocol=3&decode_responses=true&socket_timeout=0.001"
    async with run_two(own_postgres, url) as (writing, reading):
        await check_that_rows_come(writing, reading)
    assert reading.counted.connected == [True, False]


async def advance_until_connected(clock: ManualClock, *harnesses: FannedHarness) -> bool:
    """Reconnecting waits for the clock."""
    await clock.advance(0.1)
    return all(harness.fanout is not None and harness.fanout.is_connected for harness in harnesses)


async def check_that_rows_come(writing: FannedHarness, reading: FannedHarness) -> None:
    chat: StreamedChat = await writing.create_streaming()
    async with reading.read(chat) as seen:
        await seen.catch_up()
        await writing.wait_for_interest(chat)
        await chat.write("It is ")
        await chat.write("raining")
        await seen.wait_for_text("It is raining")
    assert reading.counted.received == 2


@pytest.mark.parametrize(
    "url", ["127.0.0.1:6379", "http://127.0.0.1", "redis://host:port", "redis://host/0?db=x", "redis://host?colour=red"]
)
def test_a_url_that_cannot_be_one_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(Invalid, match="redis_url can't be read") as refused:
        make_connection(url)
    assert url not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("redis://host:6379/0", None),
        ("redis://:s%40cret@host:6379/0", "s@cret"),
        ("rediss://ada:secret@host", "secret"),
        ("unix:///run/redis.sock", None),
        ("redis://host?password=s%40cret", "s@cret"),
        ("unix:///run/redis.sock?db=1&password=secret", "secret"),
    ],
)
def test_the_password_in_a_url_is_found(url: str, password: str | None) -> None:
    assert find_password(url) == password


def test_a_failure_is_told_without_what_was_sent() -> None:
    """Redis quotes a command that it does not know; ours hold what was said."""
    quoting = ResponseError("unknown command 'PUBLISH', with args beginning with: 'inbox' 'It is raining'")
    told = describe_failure(BaseExceptionGroup("tasks", [quoting]))
    assert told == "ResponseError: unknown command 'PUBLISH'"
