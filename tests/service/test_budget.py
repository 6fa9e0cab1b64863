"""The daily budget: per user, until midnight UTC, and only for what starts a reply."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

import indelible
from indelible.api.inputs import NewMessage
from indelible.api.shapes import UsageDay
from indelible.clock import SystemClock
from indelible.errors import RateLimited
from indelible.machine import commands
from indelible.machine.states import State
from indelible.machine.transitions import TABLE, CommandName
from indelible.models.catalog import PRICES_UNKNOWN
from indelible.models.protocol import ModelTraits
from indelible.service.access import STARTS_A_REPLY, Budget
from indelible.settings import load_settings
from indelible.testing import ManualClock, ScriptedModel, parts


async def test_what_starts_a_reply_is_refused_until_midnight() -> None:
    clock = ManualClock()
    asked: list[tuple[str, date, date]] = []

    async def load(user_id: str, *, since: date, until: date) -> list[UsageDay]:
        asked.append((user_id, since, until))
        used: dict[str, Any] = {"day": str(since), "input_tokens": 400, "output_tokens": 100, "cost": 1.0, "turns": 1}
        return [UsageDay(model=model, **used) for model in ("demo-1", "demo-2")]

    for limits, is_refused in (
        ({"max_tokens": 1000}, True),
        ({"max_usd": 2.0}, True),
        ({"max_tokens": 1001, "max_usd": 2.01}, False),
        ({}, False),
    ):
        budget = Budget(load, clock=clock, **limits)
        for command in (commands.Send(), commands.Create(with_message=True), commands.Retry()):
            if not is_refused:
                await budget.check("user_1", command)
                continue
            with pytest.raises(RateLimited, match="renewed at midnight UTC") as caught:
                await budget.check("user_1", command)
            now = clock.now()
            assert (now + timedelta(seconds=caught.value.retry_after_s)).time() == datetime.min.time()
            assert asked[-1] == ("user_1", now.date(), now.date())
        asked.clear()
        for free in (commands.Interrupt(), commands.Create(with_message=False), commands.Delete()):
            await budget.check("user_1", free)
        assert asked == []


class DayClock(SystemClock):
    """Real time, on a day that the test chooses: the database's day may end while the test runs."""

    def __init__(self) -> None:
        self.day: date | None = None

    def now(self) -> datetime:
        return super().now() if self.day is None else datetime.combine(self.day, time(12), tzinfo=UTC)


async def test_a_user_over_the_limit_starts_no_reply_and_another_does(database: str) -> None:
    clock = DayClock()
    settings = load_settings(user_max_tokens_per_day=100, auto_titles=False)
    usage = indelible.content.Usage(input_tokens=90, output_tokens=10)
    reply = [parts.text_delta("1", "Yes."), parts.finish(usage=usage)]
    model = ScriptedModel([reply, reply])
    async with indelible.open(database, model=model, settings=settings, clock=clock) as app:
        chat = await app.create_chat()
        service = app.service_of(app.owner_id)
        repeatable = await service.once("key", route="POST /messages", body_hash=b"1")
        first = await repeatable.send(chat.id, NewMessage(text="Is it raining?"))
        async with service.open_events(chat.id, after=first.cursor) as events:
            async for event in events:
                if event.kind == "status" and event.data["status"] == "idle":
                    break
        (used,) = (await app.usage(since=date.min, until=date.max)).days
        clock.day = date.fromisoformat(used.day)
        assert (
            await repeatable.send(chat.id, NewMessage(text="Is it raining?")) == first
        )  # it was accepted before the limit
        with pytest.raises(RateLimited, match="100 tokens is used up"):
            await chat.send("And now?")
        other = await app.user("grace").create_chat()
        assert (await other.send("Is it raining?")).text == "Yes."
        assert len(await chat.messages()) == 2
        await chat.delete()  # the tokens were used all the same
        with pytest.raises(RateLimited, match="100 tokens is used up"):
            await app.create_chat("And now?")
        assert (await app.usage(by_user=True, since=date.min, until=date.max)).total.input_tokens == 180


SAID = "user_max_usd_per_day does not limit ollama:llama3, own: " + PRICES_UNKNOWN


async def test_a_limit_in_dollars_may_be_set_beside_a_model_of_ones_own_with_a_name_of_its_own(database: str) -> None:
    model = ScriptedModel()
    model.traits = ModelTraits(makes_titles=False, price=lambda usage: 1)
    settings = load_settings(user_max_usd_per_day=1)
    async with indelible.open(database, model="own", models={"own": model}, settings=settings) as app:
        assert [model.id for model in await app.list_models()] == ["own", "demo"]


@pytest.mark.may_log("user_max_usd_per_day does not limit")
async def test_the_start_names_models_that_a_limit_in_dollars_does_not_hold_for(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    free = ScriptedModel(name="own")
    known = ScriptedModel(name="known")
    known.traits = ModelTraits(makes_titles=False, price=lambda usage: 1)
    limited = {"user_max_usd_per_day": 1, "models": ["ollama:llama3", "ollama:gemma"], "prices": {"*gemma": [1, 1]}}
    for settings, expected in (
        (
            limited,
            [SAID],
        ),
        ({**limited, "user_max_usd_per_day": 0}, []),
    ):
        caplog.clear()
        chosen = load_settings(**settings)
        async with indelible.open(database, model=free, models={"known": known}, settings=chosen):
            pass
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == expected


def test_every_command_with_which_a_user_can_start_a_reply_is_limited() -> None:
    """By the table of transitions: a chat that rests or waits for its client begins to run."""
    names = [name for name in CommandName if name not in _OF_WORKERS]
    starting = {name for name in names for before, after in TABLE[name].items() if _is_start(before, after)}
    # Creating a chat does so only with a message, which the first test has; a stop only lets the queue continue.
    assert starting - {CommandName.CREATE, CommandName.INTERRUPT} == {command.name for command in STARTS_A_REPLY}


_OF_WORKERS = {command.name for command in commands.WorkerCommand.__subclasses__()} | {
    CommandName.ACQUIRE,
    CommandName.ACTION_EXPIRED,
}

_BUSY = {State.RUNNING, State.RUNNING_QUEUED, State.INTERRUPTING, State.INTERRUPTING_QUEUED}


def _is_start(before: State, after: frozenset[State]) -> bool:
    return before not in _BUSY and not after.isdisjoint(_BUSY)
