"""A response chain that breaks, while the database does not answer at once: the turn waits, and its chat heals."""

from __future__ import annotations

from typing import Any

import pytest
from tests.log_records import DATABASE_AWAY
from tests.support.app_harness import AppHarness, WatchedStore
from tests.support.messages import read_text

from indelible.errors import ModelFailed
from indelible.models.protocol import ModelTraits
from indelible.store.database.errors import DatabaseUnreachable
from indelible.testing import ScriptedModel, parts
from indelible.testing.model import Script

BROKEN = ModelFailed("Response with id resp_1 not found.", kind="chain_broken")


class ShakyStore(WatchedStore):
    """Its first two calls of each kind, since `shake`, find no connection."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.left = {"forget_responses": 0, "work": 0}

    def shake(self) -> None:
        self.left = dict.fromkeys(self.left, 2)

    async def forget_responses(self, *given: Any, **more: Any) -> None:
        self._answer("forget_responses")
        await self._store.forget_responses(*given, **more)

    async def work(self, *given: Any) -> Any:
        self._answer("work")
        return await self._store.work(*given)

    def _answer(self, name: str) -> None:
        self.left[name] -= 1
        if self.left[name] >= 0:
            raise DatabaseUnreachable("The connection was lost. Try again.")


@pytest.mark.both_databases
@pytest.mark.may_log(*DATABASE_AWAY)
async def test_a_broken_chain_is_left_and_forgotten_although_the_connection_is_lost(harness: AppHarness) -> None:
    store = ShakyStore(harness.store)

    def break_chain(call: Any) -> Any:
        store.shake()
        raise BROKEN

    first: Script = [parts.text_delta("1", "One"), parts.finish(response_id="resp_1")]
    model = ScriptedModel([first, break_chain, [parts.text_delta("1", "Two"), parts.finish()]])
    model.traits = ModelTraits(makes_titles=False, chains=True)
    await harness.start_worker(model, store=store)
    chat = await harness.app.create_chat()
    await chat.send("1")
    assert (await chat.send("2")).text == "Two"
    assert [read_text(message.blocks) for message in model.calls[1].messages] == ["2"]
    assert [read_text(message.blocks) for message in model.calls[2].messages] == ["1", "One", "2"]
    assert [row.response_id for row in (await harness.load(chat)).messages if row.role == "assistant"] == [None, None]
    assert max(store.left.values()) < 0
