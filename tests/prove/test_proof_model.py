"""The model of a proof, asked over HTTP on every wire: it reads from its prompt what to say, and nothing else knows.

A wire merges what neighbours say and splits it otherwise. A model that then took up an older wish, or began anew, would
make a proof fail that should hold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from indelible.content import Block, Finish, Message, Part, Text, ToolCall, ToolResult
from indelible.content.assemble import assemble
from indelible.errors import ModelFailed
from indelible.loop.prompt.build import build_prompt
from indelible.models.catalog import Catalog
from indelible.models.protocol import Call, Model
from indelible.prove.provider import WIRES, ProofProvider
from indelible.prove.script import Wish
from indelible.prove.servers import Orders
from indelible.prove.tools import AGAIN, ONCE
from indelible.settings import load_settings
from indelible.store.commands.change import CONTINUE

EARLIER = Wish(number=1, words=3, pace_ms=0)
WISH = Wish(number=2, words=6, pace_ms=0)
WISH_WITH_TOOLS = Wish(number=3, words=6, pace_ms=0, tools=2, thoughts=2)
TO_GO_ON = Message(role="user", blocks=[Text(CONTINUE)], visibility="model")


@pytest.fixture(params=WIRES)
async def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def model(wire: str, provider: ProofProvider, orders: Orders) -> AsyncIterator[Model]:
    """As a server finds it."""
    catalog = Catalog(load_settings(**orders.settings))
    [name] = [name for name in provider.models if name.startswith(f"{wire}:")]
    yield catalog.find(name)
    await catalog.aclose()


def ask(wish: Wish) -> Message:
    return Message(role="user", blocks=[Text(wish.to_text())])


def say(words: Sequence[str], *more: Block, partial: bool = False) -> Message:
    return Message(role="assistant", blocks=[Text("".join(words)), *more], partial=partial)


async def listen(model: Model, *history: Message) -> list[Part]:
    messages = build_prompt(history, provider=model.provider, model=model.name)
    return [part async for part in model.stream(Call(messages=messages))]


def read_text(parts: Sequence[Part]) -> str:
    return "".join(block.text for block in assemble(parts) if isinstance(block, Text))


async def test_the_newest_wish_is_fulfilled_whatever_stands_before_it(model: Model) -> None:
    said = await listen(model, ask(EARLIER), say(EARLIER.list_words()), ask(EARLIER), ask(WISH))

    assert read_text(said) == "".join(WISH.list_words())


async def test_a_reply_that_was_cut_goes_on_behind_its_last_word(model: Model) -> None:
    words = WISH.list_words()
    said = await listen(
        model, ask(WISH), say(words[:2], partial=True), TO_GO_ON, say(words[2:3], partial=True), TO_GO_ON
    )

    assert read_text(said) == "".join(words[3:])


async def test_a_reply_of_which_nothing_was_written_begins_at_its_beginning(model: Model) -> None:
    said = await listen(model, ask(WISH), TO_GO_ON)

    assert read_text(said) == "".join(WISH.list_words())


async def test_tools_are_called_once_in_the_middle_of_a_reply(model: Model) -> None:
    words = WISH_WITH_TOOLS.list_words()

    first = await listen(model, ask(WISH_WITH_TOOLS))
    calls = [block for block in assemble(first) if isinstance(block, ToolCall)]
    assert read_text(first) == "".join(words[:3])
    assert [call.name for call in calls] == [ONCE, AGAIN]

    results = Message(role="tool", blocks=[ToolResult(call.id, call.name, "noted") for call in calls])
    second = await listen(model, ask(WISH_WITH_TOOLS), say(words[:3], *calls), results)
    assert read_text(second) == "".join(words[3:])
    assert isinstance(second[-1], Finish)


async def test_a_model_that_gets_back_wrong_words_of_its_own_fails_for_good(model: Model) -> None:
    wrong = say(EARLIER.list_words()[:2], partial=True)

    with pytest.raises(ModelFailed) as failure:
        await listen(model, ask(WISH), wrong, TO_GO_ON)
    assert "claims that the model wrote" in (failure.value.detail or "")
    assert not failure.value.retryable


async def test_calls_are_counted_by_their_wire(model: Model, wire: str, provider: ProofProvider) -> None:
    for count in (1, 2):
        await listen(model, ask(WISH))
        assert provider.calls == {wire: count}
