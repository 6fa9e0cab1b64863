"""Continuing a reply where it stands: for models that take it, the cut reply is the last thing in the prompt."""

from __future__ import annotations

import pytest
from tests.support.loop_harness import run_turn

from indelible.content import Block, Message, Text, ToolCall
from indelible.loop.prompt.build import CUT_REMARK, build_prompt
from indelible.loop.prompt.clean import COMPACTION
from indelible.models.protocol import CallOptions, ModelTraits
from indelible.testing import ScriptedModel, parts

QUESTION = Message(role="user", blocks=[Text("Count.")])
INSTRUCTION = Message(role="user", blocks=[Text("Go on where you were cut.")], visibility="model")


def cut(*blocks: Block) -> Message:
    return Message(role="assistant", blocks=list(blocks), partial=True, reason="crashed")


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_cut_reply_stands_last_and_without_the_instruction(provider: str) -> None:
    prompt = build_prompt([QUESTION, cut(Text("One, two,")), INSTRUCTION], provider=provider, prefix=True)
    assert [(message.role, message.blocks) for message in prompt] == [
        ("user", [Text("Count.")]),
        ("assistant", [Text("One, two,")]),
    ]


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([QUESTION, cut(Text("One, two, ")), INSTRUCTION], id="it ends with a space"),
        pytest.param([QUESTION, cut(Text("One"), ToolCall("c1", "count", "{")), INSTRUCTION], id="it ends with a call"),
        pytest.param(
            [QUESTION, Message(role="assistant", blocks=[Text("One.")]), INSTRUCTION], id="the reply is complete"
        ),
        pytest.param([QUESTION, cut(Text("One,")), QUESTION], id="the user said something since"),
        pytest.param([QUESTION, cut(Text("One,"))], id="nobody asks for it"),
        pytest.param([INSTRUCTION], id="there is no reply"),
        pytest.param(
            [
                QUESTION,
                cut(Text("One,")),
                Message(role="user", visibility="model", blocks=[Text("Counted.", {COMPACTION: {"keep_last": 1}})]),
            ],
            id="it is a summary",
        ),
    ],
)
def test_otherwise_the_prompt_is_the_ordinary_one(history: list[Message]) -> None:
    prefixed = build_prompt(history, provider="anthropic", prefix=True)
    assert prefixed == build_prompt(history, provider="anthropic")
    assert prefixed[-1].role in ("user", "tool")


class PrefixModel(ScriptedModel):
    traits = ModelTraits(continues_prefix=True)


@pytest.mark.parametrize(
    ("parameters", "last_said"), [({}, "One, two,"), ({"effort": "high"}, "Go on where you were cut.")]
)
async def test_a_run_asks_so_if_the_model_takes_it_and_does_not_have_to_think(
    parameters: dict[str, str], last_said: str
) -> None:
    model = PrefixModel([[parts.text_delta("t", " three."), parts.finish("stop")]])
    await run_turn(
        model=model,
        messages=[QUESTION, cut(Text("One, two,")), INSTRUCTION],
        call=CallOptions(parameters=parameters),
    )
    [call] = model.calls
    assert call.messages[-1].blocks == [Text(last_said)]


async def test_other_models_are_asked_to_go_on() -> None:
    model = ScriptedModel([[parts.text_delta("t", " three."), parts.finish("stop")]])
    await run_turn(model=model, messages=[QUESTION, cut(Text("One, two,")), INSTRUCTION])
    [call] = model.calls
    assert call.messages[-1].blocks == [Text("Go on where you were cut.")]
    assert CUT_REMARK not in str(call.messages)
