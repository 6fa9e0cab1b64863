"""What stands beside the words of a reply, broken on purpose: the verdict has a sentence for each of them.

One chat lives through what matters: a reply is stopped, continued and stopped again before its first word; a call of
the client is left by a stop and its results come late; another one is answered; a reply is written anew. Nothing is
killed and nothing depends on time: the model pauses where the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace
from tests.prove.quiet_sabotage import SABOTAGES, Sabotage
from tests.support.app_harness import serve_app
from tests.support.waiting import deadline

from indelible.api.inputs import CreateChat, Interruption, NewMessage, declare_tools
from indelible.client.client import RemoteService
from indelible.content import Part
from indelible.content.blocks import text_of
from indelible.models.protocol import Call
from indelible.prove import population
from indelible.prove.checks import check_chat
from indelible.prove.model import ProofModel
from indelible.prove.population import ToolClient, collect_evidence, visit_branches
from indelible.prove.provider import PromptInspector, check_outputs
from indelible.prove.reader import SimulatedReader
from indelible.prove.script import Wish, find_reply
from indelible.prove.tools import CLIENT_TOOLS
from indelible.prove.user import SimulatedUser

LONG = Wish(number=1, words=6, pace_ms=0)
FIRST_ASK = Wish(number=2, words=4, pace_ms=0, asks=1)
SECOND_ASK = Wish(number=3, words=4, pace_ms=0, asks=1)
SHORT = Wish(number=4, words=3, pace_ms=0)
PARTS_BEFORE_PAUSE: Final = 4
"""Of the first reply: three words. Its continuation pauses at once."""


class PausingModel:
    """The model of a proof, which can be made to wait for ever in the middle of a call."""

    provider: Final = "proof"
    name: Final = "proof"
    context_limit: Final = None

    def __init__(self, inspector: PromptInspector) -> None:
        self._model = ProofModel(on_call=inspector.inspect)

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        texts = [text_of(message.blocks) for message in call.messages]
        pauses = not any(FIRST_ASK.to_text() in text for text in texts)
        left = PARTS_BEFORE_PAUSE if len(texts) == 1 else 0
        async for part in self._model.stream(call):
            if pauses and left == 0:
                await asyncio.Event().wait()
            yield part
            left -= 1


class Life:
    """A chat, its user and its reader."""

    def __init__(self, client: RemoteService, patch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.user = SimulatedUser(client, number=1, seed=1, models=(), phrases=None)
        self._patch = patch

    async def begin(self) -> None:
        created = await self.client.create_chat(CreateChat(message=LONG.to_text(), tools=declare_tools(CLIENT_TOOLS)))
        self.user.chat_id = created.id
        self.user.log.sent.append(LONG.to_text())
        self.reader = SimulatedReader(self.client, created.id)
        self.tool_client = ToolClient(self.client, self.user, self.reader, seed=1)

    async def send(self, wish: Wish) -> None:
        await self.client.send(self.user.chat_id, NewMessage(text=wish.to_text()))
        self.user.log.sent.append(wish.to_text())

    async def stop(self, turn_id: str | None = None) -> None:
        self.user.log.stops += 1
        assert (await self.client.interrupt(self.user.chat_id, Interruption(wait_s=60, turn=turn_id))).stopped

    async def answer(self, *, late: bool) -> None:
        await self.reader.wait_until(lambda seen: seen.action is not None)
        self._patch.setattr(population, "_LATE", float(late))
        self._patch.setattr(population, "_TWICE", 0.0)
        await self.tool_client.answer(self.reader.transcript.action or {})

    async def wait_for_rest(self, turns: int) -> None:
        await self.reader.wait_until(lambda seen: seen.ended == turns and seen.status == "idle")

    async def live(self) -> None:
        await self.reader.wait_until(lambda seen: bool(seen.text))
        await self.stop()
        resumed = await self.client.continue_(self.user.chat_id)
        self.user.log.again += 1
        await self.stop(resumed.turn)
        await self.send(FIRST_ASK)
        await self.answer(late=True)
        await self.wait_for_rest(3)
        await self.send(SECOND_ASK)
        await self.answer(late=False)
        await self.wait_for_rest(4)
        await self.send(SHORT)
        await self.wait_for_rest(5)
        assert self.reader.transcript.head is not None
        await self.client.regenerate(self.user.chat_id, self.reader.transcript.head)
        self.user.log.again += 1
        await self.wait_for_rest(6)


async def find_faults(database: Path, patch: pytest.MonkeyPatch) -> list[str]:
    prompts = PromptInspector()
    async with deadline(), serve_app(str(database), PausingModel(prompts), auto_titles=False) as running:
        life = Life(running.service, patch)
        await life.begin()
        reading = asyncio.create_task(life.reader.read())
        try:
            await life.live()
            evidence = await collect_evidence(
                running.service, life.user.chat_id, life.user.log, [life.reader], at_most_s=60
            )
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        evidence = replace(evidence, branches=await visit_branches(running.service, evidence))
    answered = {note for notes in life.user.log.submitted.values() for note in notes}
    found = [*check_chat(evidence, find_reply), *check_outputs(prompts.outputs, {}, answered)]
    return [*life.user.faults, *prompts.faults, *(fault.sentence for fault in found)]


async def test_a_build_that_keeps_everything_has_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await find_faults(tmp_path / "chats.db", monkeypatch) == []


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
async def test_a_build_with_a_quiet_defect_is_caught_by_name(
    sabotage: Sabotage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)

    faults = await find_faults(tmp_path / "chats.db", monkeypatch)

    assert any(SABOTAGES[sabotage] in fault for fault in faults), faults
