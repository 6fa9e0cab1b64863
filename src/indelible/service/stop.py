"""Stopping a reply, and waiting until it has stopped.

A stop is one command, and its outcome has everything that a response needs: the chat's status and turn come from the
locked row, or from the event that ends the turn. So a stop reads neither the history nor the running reply, however
long they are. A repeated stop with the same idempotency key finds the result of the first one, and waits from there.

The worker that holds the chat carries the stop out. One that is frozen or dead does not, and there may be no other. So
every process with an open app looks for stops whose worker has lost its lease (`StopSweeper`), and ends those turns
from the journal. What such a worker still publishes when it wakes is refused, because its attempt has ended.

Must stay true (tests/server/test_stop_over_http.py, tests/service/test_local.py, tests/worker/test_frozen.py):
a late stop does not stop the next turn; a wait ends with the turn, with its time, with the chat, or with the process; a
stop takes effect without any worker; nothing is added to a chat that was idle in the answer to a stop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from indelible.api.events import FeedEvent
from indelible.api.shapes import InterruptResult
from indelible.clock import Clock
from indelible.errors import ChatNotFound, NotFound, Refused, StoreFailed
from indelible.feed import Feed
from indelible.logs import get_logger
from indelible.machine.commands import Interrupt
from indelible.machine.states import Status
from indelible.service.answers import write_cursor
from indelible.store.outcome import Outcome
from indelible.store.store import Store

_log: Final = get_logger(__name__)
_ENDED_AT_A_TIME: Final = 100


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a stop so far. `is_ending`: the turn to stop has not ended yet."""

    result: InterruptResult
    is_ending: bool
    cursor: str


def describe_stop(outcome: Outcome, *, turn: str | None) -> Stop:
    replies = [message.id for message in outcome.messages if message.role == "assistant"]
    is_meant = turn is None or outcome.turn_id == turn
    return Stop(
        result=InterruptResult(
            stopped=outcome.effective,
            message_id=replies[-1] if replies else None,
            status=str(outcome.status),
            turn=outcome.turn_id,
        ),
        is_ending=is_meant and outcome.status is Status.INTERRUPTING,
        cursor=write_cursor(outcome),
    )


async def wait_for_end(feed: Feed, chat_id: str, stop: Stop, *, wait_s: float | None) -> Stop:
    """Wait until the turn has ended, or up to `wait_s`. A process that is shutting down does not wait."""
    try:
        async with asyncio.timeout(wait_s):
            while stop.is_ending:
                stop = await _follow(feed, chat_id, stop)
    except TimeoutError:
        pass
    return stop


async def _follow(feed: Feed, chat_id: str, stop: Stop) -> Stop:
    """Read until the turn ends, or until the reader has to reconnect."""
    async with feed.open(chat_id, stop.cursor) as events:
        async for event in events:
            if event.kind == "resync":
                break
            stop = replace(_note(stop, event), cursor=event.cursor or stop.cursor)
            if not stop.is_ending:
                break
    return stop


def _note(stop: Stop, event: FeedEvent) -> Stop:
    data: dict[str, Any] = event.data if event.kind in ("snapshot", "message", "status", "end") else {}
    match event.kind:
        case "message" if data["message"]["role"] == "assistant":
            return replace(stop, result=replace(stop.result, message_id=data["message"]["id"]))
        case "status" if data.get("ended") is not None:
            return _finish(stop, data)
        case "snapshot" if data["turn"] != stop.result.turn:
            return _finish(stop, data)
        case "end" if data["reason"] == "deleted":
            raise ChatNotFound
        case "end" if data["reason"] == "shutdown":
            return replace(stop, is_ending=False)
        case _:
            return stop


def _finish(stop: Stop, data: dict[str, Any]) -> Stop:
    result = replace(stop.result, status=data["status"], turn=data["turn"])
    return replace(stop, result=result, is_ending=False)


class StopSweeper:
    """Ends stopped turns that no live worker holds. Run it as a task; several of them do each other no harm."""

    def __init__(self, store: Store, *, clock: Clock, interval_s: float) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = interval_s

    async def run(self) -> None:
        while True:
            try:
                for found in await self._store.unheld_stops(limit=_ENDED_AT_A_TIME):
                    await self._end(found.chat_id, found.turn_id)
            except StoreFailed as error:
                _log.warning("looking for stops that no worker carries out failed and will be retried: %s", error)
            except Exception:
                _log.exception("looking for stops that no worker carries out failed and will be retried")
            await self._clock.sleep(self._interval_s)

    async def _end(self, chat_id: str, turn_id: str) -> None:
        """Repeat the stop: without a live holder, it ends the turn. A chat that cannot be stopped delays no other."""
        try:
            with suppress(NotFound):  # it was deleted meanwhile
                await self._store.execute(chat_id, Interrupt(turn_id=turn_id))
        except (StoreFailed, Refused) as error:
            _log.warning("the stop of %s failed and will be retried: %s", chat_id, error)
        except Exception:
            _log.exception("the stop of %s failed and will be retried", chat_id)
