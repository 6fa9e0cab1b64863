"""The files in prompts: what is missing, changed, doubled or of somebody else is found, on every wire."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from indelible.content import Block, File, Message, Text, ToolCall, ToolResult
from indelible.loop.prompt.build import build_prompt
from indelible.models.catalog import Catalog
from indelible.models.protocol import Call, PromptMessage
from indelible.prove.provider import WIRES, ProofProvider, find_file_faults
from indelible.prove.script import ProofFile, Wish, list_files, make_file
from indelible.prove.servers import Orders
from indelible.prove.tools import DRAW
from indelible.settings import load_settings

WISH = Wish(number=34, words=3, pace_ms=0, files=3)
OTHER_WISH = Wish(number=4, words=3, pace_ms=0, files=1)
TEXT, PICTURE, BYTES = FILES = list_files(WISH)
CALL = ToolCall("call_2", DRAW, '{"note": "34-1"}')
NOTED = '["noted 34-1","[file: proof-34-1.png, 99 bytes]"]'


def show(file: ProofFile) -> Block:
    """As the worker gives it to a model."""
    if file.kind == "other":
        return Text(file.to_prompt_text() or "")
    return File(file.media_type, name=file.name, data=file.data)


def ask(wish: Wish, files: Sequence[Block]) -> list[Block]:
    return [Text(wish.to_text()), *files]


def draw(*shown: Block) -> list[Message]:
    result = ToolResult(CALL.id, DRAW, NOTED, files=[file for file in shown if isinstance(file, File)])
    return [Message(role="assistant", blocks=[Text(WISH.list_words()[0]), CALL]), Message(role="tool", blocks=[result])]


WHOLE = [Message(role="user", blocks=ask(WISH, [show(file) for file in FILES])), *draw(show(make_file("34-1")))]


def find(*messages: Message) -> list[str]:
    prompt = [PromptMessage(role=message.role, blocks=message.blocks) for message in messages]
    return list(find_file_faults(Call(messages=prompt)))


def test_a_wish_has_a_file_of_each_kind_here() -> None:
    assert [file.kind for file in FILES] == ["text", "picture", "other"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_prompt_with_all_its_files_has_no_fault_on_any_wire(
    wire: str, provider: ProofProvider, orders: Orders
) -> None:
    catalog = Catalog(load_settings(**orders.settings))
    model = catalog.find(next(name for name in provider.models if name.startswith(f"{wire}:")))
    prompt = build_prompt(WHOLE, provider=model.provider, model=model.name)

    try:
        assert [part async for part in model.stream(Call(messages=prompt))]
    finally:
        await catalog.aclose()

    assert provider.calls == {wire: 1}
    assert provider.prompts.faults == []


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        ([show(TEXT), show(PICTURE)], "the question 34 without its file 34.3"),
        ([show(PICTURE), show(BYTES)], "the question 34 without its file 34.1"),
        ([show(TEXT), show(TEXT), show(PICTURE), show(BYTES)], "the file 34.1 behind the question 34"),
        ([show(PICTURE), show(TEXT), show(BYTES)], "in another order"),
        (
            [*map(show, FILES), show(make_file("4.1"))],
            "the file 4.1 behind the question 34, to which it",
        ),
        ([*map(show, FILES), show(make_file("34-2"))], "the picture 34-2, and no result"),
        ([show(TEXT), File("image/png", data=PICTURE.data[:-1]), show(BYTES)], "the file 34.2, and its content"),
        ([Text(TEXT.data.decode()[:-1]), show(PICTURE), show(BYTES)], "the file 34.1, and its content"),
        (
            [show(TEXT), show(PICTURE), Text("[The attached file proof-34.3.bin: it was deleted.]")],
            "the file 34.3, and",
        ),
        ([*map(show, FILES), File("image/png", data=b"\x89PNG")], "the file None, and its content"),
    ],
)
def test_a_question_with_other_files_than_its_own_is_found(shown: list[Block], fault: str) -> None:
    assert any(fault in found for found in find(Message(role="user", blocks=ask(WISH, shown))))


def test_a_drawing_is_with_its_result_and_once() -> None:
    question = Message(role="user", blocks=ask(OTHER_WISH, [show(file) for file in list_files(OTHER_WISH)]))

    assert find(question, *draw(show(make_file("34-1")))) == []
    assert find(question, *draw()) == [f"a prompt has the result of {DRAW} 34-1 without its picture"]
    twice = find(question, *draw(show(make_file("34-1")), show(make_file("34-1"))))
    assert twice == [f"a prompt has the picture 34-1, and no result of {DRAW} that it belongs to"]


def test_files_in_a_merged_text_belong_to_the_question_before_them() -> None:
    first, second = Wish(number=1, words=1, pace_ms=0, files=1), Wish(number=2, words=1, pace_ms=0, files=1)
    texts = [ProofFile(f"{wish.number}.1", make_file(f"{wish.number}.1").kind) for wish in (first, second)]
    merged = [first.to_text(), texts[0].to_prompt_text(), second.to_text(), texts[1].to_prompt_text()]
    exchanged = [first.to_text(), texts[1].to_prompt_text(), second.to_text(), texts[0].to_prompt_text()]

    assert find(Message(role="user", blocks=[Text("\n\n".join(map(str, merged)))])) == []
    assert len(find(Message(role="user", blocks=[Text("\n\n".join(map(str, exchanged)))]))) == 4
