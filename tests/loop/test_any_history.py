"""UncancellableFuture P8 for arbitrary histories: whatever happened, the next request is legal.

Two kinds. *Hostile* histories are made of anything: ids that repeat, results before their calls,
calls in the user's mouth, other providers' private blocks, halves of characters. *Honest* ones are
what assemble.py makes of a stream that was cut anywhere, for any reason. legality.py judges both.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples

from indelible.content import (
    Block,
    File,
    Finish,
    Message,
    Part,
    PartialReason,
    Reasoning,
    ReasoningDelta,
    ReasoningEnd,
    Source,
    Text,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
)
from indelible.content.assemble import assemble, finalize, to_messages
from indelible.loop.prompt.build import build_prompt, find_stale, from_newest_compaction, mark_cache
from indelible.models.protocol import PromptMessage
from indelible.testing.legality import check_legality

EXAMPLES = settings(max_examples=count_examples(30))

# --- hostile histories -------------------------------------------------------------------

PROVIDERS = st.sampled_from(["anthropic", "openai"])
MODELS = st.sampled_from([None, "m1", "m2"])

_characters = st.sampled_from([*"ab ._:-\n\t\x00\x1f\xa0\u200b", "\u00fc", "\U0001f600", "\ud800", "\udc00"])
texts = st.text(_characters, max_size=6)
call_ids = st.sampled_from(["c1", "c2", "c1_2", "", "call", "a.b", "a:b", "a b", "\x00", "\ud800", "x" * 39, "x" * 80])
tool_names = st.sampled_from(["weather", "web_search", "", "a.b", "ü", "\ud800", "x" * 130])
arguments = st.sampled_from(
    ["{}", '{"a": 1}', "", "{", '{"a": "b', "[1]", '"x"', "null", '{"a": NaN}', r'{"a":"\ud800"}', "\ud800"]
)
metadata = st.sampled_from(
    [None, None, {}, {"item": "i1"}, {"item": "\ud800"}, {"compaction": {"keep_last": 9}}, {"compaction": "?"}]
)
outputs = st.one_of(texts, st.sampled_from([None, 1, {"a": [1]}, ["\ud800"], b"x"]))
optional_texts = st.one_of(st.none(), texts)

blocks: st.SearchStrategy[Block] = st.one_of(
    st.builds(Text, texts, metadata),
    st.builds(Reasoning, texts, signature=optional_texts, metadata=metadata),
    st.builds(ToolCall, call_ids, tool_names, arguments, st.booleans(), st.booleans(), metadata),
    st.builds(ToolResult, call_ids, tool_names, outputs, st.booleans(), st.booleans(), metadata),
    st.builds(Source, url=optional_texts, quote=optional_texts, metadata=metadata),
    st.builds(File, st.just("a/b"), name=optional_texts, url=optional_texts, data=st.sampled_from([None, b"", b"x"])),
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "assistant", "assistant", "tool", "tool", "notice"]),
    blocks=st.lists(blocks, max_size=5),
    partial=st.booleans(),
    visibility=st.sampled_from(["both", "both", "both", "people", "model"]),
    provider=st.sampled_from([None, "anthropic", "openai"]),
    model=MODELS,
)
histories = st.lists(messages, max_size=7)


def read_again(prompt: list[PromptMessage]) -> list[Message]:
    return [Message(role=message.role, blocks=message.blocks) for message in prompt]


@EXAMPLES
@given(histories, PROVIDERS, MODELS)
def test_every_history_gives_a_legal_prompt(history: list[Message], provider: str, model: str | None) -> None:
    prompt = build_prompt(history, provider=provider, model=model)
    assert check_legality(prompt, provider=provider) == []
    assert check_legality(mark_cache(prompt, provider=provider), provider=provider) == []


@EXAMPLES
@given(histories, PROVIDERS, MODELS)
def test_building_again_changes_nothing(history: list[Message], provider: str, model: str | None) -> None:
    prompt = build_prompt(history, provider=provider, model=model)
    assert build_prompt(read_again(prompt), provider=provider, model=model) == prompt


@EXAMPLES
@given(histories, PROVIDERS, MODELS)
def test_no_text_that_the_model_may_see_is_lost(history: list[Message], provider: str, model: str | None) -> None:
    stale = find_stale(history)
    recent = [message for message in from_newest_compaction(history) if id(message) not in stale]
    seen = [message for message in recent if message.role != "notice" and message.visibility != "people"]
    said = [block.text for message in seen for block in message.blocks if isinstance(block, Text)]
    prompt = build_prompt(history, provider=provider, model=model)
    remaining = iter([block.text for message in prompt for block in message.blocks if isinstance(block, Text)])
    for text in filter(str.strip, said):
        assert text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") in remaining


@EXAMPLES
@given(histories, PROVIDERS)
def test_a_growing_history_keeps_the_beginning_of_its_prompt(history: list[Message], provider: str) -> None:
    """Else the provider's cache would be of no use. Held for what a chat does: it appends finished steps."""
    begun = read_again(build_prompt(history, provider=provider))
    step = [
        Message(role="assistant", blocks=[Text("sure"), ToolCall(id="c1", name="weather")]),
        Message(role="tool", blocks=[ToolResult(call_id="c1", name="weather", output="dry")]),
    ]
    grown = read_again(build_prompt([*begun, *step], provider=provider))
    assert grown[: len(begun)] == begun
    assert [message.role for message in grown[len(begun) :]] == ["assistant", "tool"]


# --- honest histories --------------------------------------------------------------------

AT = datetime(2025, 1, 1, tzinfo=UTC)
REASONS: list[PartialReason] = list(get_args(PartialReason))


def stream_call(id: str, *, provider_executed: bool, answered: bool) -> list[Part]:
    parts: list[Part] = [
        ToolInputStart(id=id, name="tool", provider_executed=provider_executed),
        ToolInputDelta(id=id, delta='{"a":'),
        ToolInputDelta(id=id, delta=" 1}"),
        ToolInputEnd(id=id),
        ToolCall(id=id, name="tool", arguments='{"a": 1}', provider_executed=provider_executed),
    ]
    if answered:
        parts.append(ToolResult(call_id=id, name="tool", output="dry", provider_executed=provider_executed))
    return parts


pieces: st.SearchStrategy[list[Part]] = st.one_of(
    st.builds(lambda text: [TextDelta("t", text), TextEnd("t")], st.sampled_from(["", " ", "It is", "\n"])),
    st.builds(
        lambda signature: [ReasoningDelta("r", "hm"), ReasoningEnd("r", signature=signature)],
        st.sampled_from([None, "signed"]),
    ),
    st.builds(
        lambda call_id, own, answered: stream_call(call_id, provider_executed=own, answered=answered),
        st.sampled_from(["c1", "c2", "c3"]),
        st.booleans(),
        st.booleans(),
    ),
)
streams = st.lists(pieces, max_size=6).map(lambda chosen: [part for piece in chosen for part in piece])


@st.composite
def attempts(draw: st.DrawFn) -> list[Message]:
    """The messages of one attempt, cut at any point for any reason, or complete."""
    parts = [*draw(streams), Finish()]
    cut_at = draw(st.integers(0, len(parts)))
    reason = None if cut_at == len(parts) else draw(st.sampled_from(REASONS))
    provider, model = draw(PROVIDERS), draw(st.sampled_from(["m1", "m2"]))
    finalized = finalize(assemble(parts[:cut_at]), reason, AT)
    partial = reason is not None
    return to_messages(finalized, partial=partial, reason=reason, provider=provider, model=model)


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    chat = [Message(role="system", blocks=[Text("Be brief.")])]
    for _ in range(draw(st.integers(1, 3))):
        chat.append(Message(role="user", blocks=[Text("Rain?")]))
        for _ in range(draw(st.integers(0, 2))):
            chat += draw(attempts())
        if draw(st.booleans()):
            chat.append(Message(role="notice", blocks=[Text("Stopped by you.")]))
    return chat


@EXAMPLES
@given(chats(), PROVIDERS)
def test_every_outcome_of_the_loop_gives_a_legal_prompt(chat: list[Message], provider: str) -> None:
    prompt = build_prompt(chat, provider=provider, model="m1")
    assert check_legality(prompt, provider=provider) == []
    assert "Stopped by you." not in [
        block.text for entry in prompt for block in entry.blocks if isinstance(block, Text)
    ]
