"""Making a conversation shorter: rule 5.7, and `context_overflow` of rule 2.2, which compacts once.

First the rules by themselves, then a summary that a model writes, then whole turns through `run`. The
property tests let a chat grow turn by turn, as chats do (steers, client tools, stopped replies, notices),
and compact it now and then: a second compaction must know what the first one left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples
from tests.support.loop_harness import raise_failure

from indelible import tool
from indelible.content import File, Message, Part, Reasoning, Text, ToolCall, ToolResult, encode
from indelible.errors import ModelFailed
from indelible.loop import CancelScope, RetryPolicy, TurnInterrupted, TurnOptions, TurnShutDown
from indelible.loop.prompt.build import build_prompt, from_newest_compaction
from indelible.loop.prompt.compact import count_verbatim, make_summary, should_compact, summarise, to_transcript
from indelible.models import Call, CallOptions, PromptMessage
from indelible.models.protocol import ModelTraits
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.testing.legality import assert_legal
from indelible.testing.model import Script, Step

if TYPE_CHECKING:
    from tests.support.loop_harness import LoopHarness

EXAMPLES = settings(max_examples=count_examples(30))

LIMITS = TurnOptions().reply_limits
SUMMARY: list[Step] = [parts.text_delta("1", "They spoke of rain."), parts.finish("stop")]
ANSWER: list[Step] = [parts.text_delta("1", "Dry."), parts.finish("stop")]
ASK: list[Step] = [parts.tool_call("c1", "weather", '{"city": "Oslo"}'), parts.finish("tool_calls")]


@tool
async def weather(city: str) -> str:
    return f"rain in {city}"


def say(role: Any, text: str, **more: Any) -> Message:
    return Message(role=role, blocks=[Text(text)], **more)


def call(id: str) -> Message:
    return Message(role="assistant", blocks=[ToolCall(id=id, name="weather", arguments="{}")])


def result(id: str, output: str = "rain") -> Message:
    return Message(role="tool", blocks=[ToolResult(call_id=id, name="weather", output=output)])


def read(messages: Sequence[Message | PromptMessage]) -> list[tuple[str, str]]:
    shown: list[tuple[str, str]] = []
    for message in messages:
        texts = (getattr(block, "text", "") or getattr(block, "output", "") for block in message.blocks)
        shown.append((message.role, "".join(texts)))
    return shown


def assert_legal_everywhere(messages: Sequence[Message]) -> None:
    for provider in ("anthropic", "openai"):
        assert_legal(build_prompt(messages, provider=provider), provider=provider)


SYSTEM = say("system", "Be brief.")
OLD = [say("user", "Tell me all about rain. " * 100), say("assistant", "It is wet. " * 100)]
RECENT = [
    say("user", "Snow?"),
    say("assistant", "Cold."),
    say("user", "Hail?"),
    say("assistant", "Hard."),
    say("user", "And now?"),
]
LONG = [SYSTEM, *OLD, *RECENT]


# --- when --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "limit", "due"),
    [
        (79_999, 100_000, False),
        (80_000, 100_000, True),
        (100_001, 100_000, True),
        (0, 100_000, False),
        (10, None, False),
    ],
)
def test_a_conversation_is_due_at_eighty_percent_of_the_window(used: int, limit: int | None, *, due: bool) -> None:
    assert should_compact(used, limit, share=0.8) is due


def test_how_full_is_too_full_can_be_chosen() -> None:
    assert should_compact(50, 100, share=0.5)
    assert not should_compact(90, 100, share=0.95)


# --- what stays verbatim -----------------------------------------------------------------


def test_the_last_three_turns_stay_verbatim() -> None:
    assert count_verbatim(LONG) == len(RECENT)


def test_how_many_turns_stay_can_be_chosen() -> None:
    assert count_verbatim(LONG, keep_turns=1) == 1
    assert count_verbatim(LONG, keep_turns=2) == 3


def test_fewer_turns_stay_if_they_are_most_of_it() -> None:
    history = [say("user", "Rain?"), say("assistant", "Yes."), say("user", "Why?"), *OLD[1:], say("user", "Now?")]
    assert count_verbatim(history) == 1


def test_a_single_long_turn_keeps_its_last_steps() -> None:
    history = [say("user", "Go."), call("1"), result("1", "x" * 4000), call("2"), result("2"), call("3"), result("3")]
    assert count_verbatim(history) == 4


def test_a_last_request_that_is_most_of_it_stays_and_what_came_before_it_can_be_summarised() -> None:
    """Somebody pastes a long document into a long chat: the chat can be made shorter, the document can not."""
    history = [*OLD, say("user", "Read this. " * 1000)]
    assert count_verbatim(history) == 1
    assert count_verbatim([SYSTEM, *history]) == 1


@pytest.mark.parametrize("history", [[], [SYSTEM], [SYSTEM, SYSTEM]], ids=["nothing", "system", "two systems"])
def test_without_a_conversation_there_is_nothing_to_summarise(history: list[Message]) -> None:
    assert count_verbatim(history) is None


def test_a_conversation_of_one_message_is_nothing_to_summarise() -> None:
    """The last turn stays verbatim, and a summary beside it would make the prompt longer."""
    assert count_verbatim([SYSTEM, say("user", "Rain?")]) is None
    assert count_verbatim([say("user", "Rain? " * 1000)]) is None


# --- a chat that grows and is compacted --------------------------------------------------

Piece = Callable[[int], list[Message]]
sizes = st.sampled_from([1, 1, 40, 400, 4000])


def fill(name: str, number: int, size: int) -> str:
    return f"{name} {number} " + "." * size


def build_step(number: int, *, size: int, calls: int, client: bool) -> list[Message]:
    """A reply, its calls, the results in one row or (those of the client) in a second."""
    asked = [ToolCall(id=f"c{at}", name="weather", arguments="{}") for at in range(calls)]
    answers = [ToolResult(call_id=f"c{at}", name="weather", output=fill("result", number, size)) for at in range(calls)]
    rows = [answers[:1], answers[1:]] if client else [answers]
    reply = Message(role="assistant", blocks=[Text(fill("reply", number, 1)), *asked])
    return [reply, *(Message(role="tool", blocks=list(row)) for row in rows if row)]


def build_stopped(number: int, size: int) -> list[Message]:
    reply = say("assistant", fill("partial", number, size), partial=True, reason="interrupted")
    return [reply, say("notice", "Stopped by you.")]


pieces: st.SearchStrategy[Piece] = st.one_of(
    sizes.map(lambda size: lambda number: [say("user", fill("request", number, size))]),
    sizes.map(lambda size: lambda number: [say("assistant", fill("answer", number, size))]),
    st.builds(
        lambda size, calls, client: lambda number: build_step(number, size=size, calls=calls, client=client),
        sizes,
        st.integers(1, 3),
        st.booleans(),
    ),
    sizes.map(lambda size: lambda number: build_stopped(number, size)),
    st.just(lambda number: [Message(role="assistant", blocks=[Reasoning("Hm")], reason="interrupted")]),
    st.just(lambda number: [say("user", fill("instruction", number, 1), visibility="model")]),
    st.just(lambda number: [say("user", fill("aside", number, 1), visibility="people")]),
)
chats = st.lists(st.lists(pieces, min_size=1, max_size=8), min_size=1, max_size=3)
"""What was said before the first compaction, between it and the second, and so on."""


def grow(chat: list[list[Piece]]) -> list[list[Message]]:
    numbers = iter(range(1000))
    spoken = [[message for piece in stretch for message in piece(next(numbers))] for stretch in chat]
    return [[SYSTEM, say("user", fill("request", 1000, 1)), *spoken[0]], *spoken[1:]]


def compact(history: list[Message]) -> tuple[Message | None, list[Call]]:
    model = ScriptedModel([SUMMARY])
    return asyncio.run(summarise(model, history, scope=CancelScope(), clock=ManualClock(), limits=LIMITS)), model.calls


@EXAMPLES
@given(chats)
def test_no_call_is_ever_parted_from_its_result(chat: list[list[Piece]]) -> None:
    history: list[Message] = []
    for stretch in grow(chat):
        history += stretch
        keep_last = count_verbatim(history)
        if keep_last is not None:
            kept = history[len(history) - keep_last :]
            assert not kept or kept[0].role in ("user", "assistant")
            calls = sum(isinstance(block, ToolCall) for message in kept for block in message.blocks)
            results = sum(isinstance(block, ToolResult) for message in kept for block in message.blocks)
            assert calls == results


@EXAMPLES
@given(chats)
def test_a_compacted_history_is_legal_and_shorter_and_its_prompt_holds_the_last_request(
    chat: list[list[Piece]],
) -> None:
    history: list[Message] = []
    for stretch in grow(chat):
        history += stretch
        before = from_newest_compaction(history)
        summary, _ = compact(history)
        if summary is None:
            continue
        history.append(summary)
        after = from_newest_compaction(history)
        assert_legal_everywhere(history)
        request = [message.text for message in history if message.text.startswith("request")][-1]
        for provider in ("anthropic", "openai"):
            assert request in "\n".join(text for _, text in read(build_prompt(history, provider=provider)))
        last = [message for message in before if message.visibility == "both" and message.role != "notice"][-1]
        partial = len(encode(last)) if last.partial else 0  # it stays, however long it is
        assert len(encode(after)) <= len(encode(before)) / 2 + partial + len(request) + 1000


@EXAMPLES
@given(chats)
def test_what_is_not_verbatim_was_read_by_whoever_wrote_the_summary(chat: list[list[Piece]]) -> None:
    """However often a chat is compacted, nothing falls between the summary and what follows it."""
    history: list[Message] = []
    for stretch in grow(chat):
        history += stretch
        before = from_newest_compaction(history)
        summary, calls = compact(history)
        if summary is None:
            continue
        history.append(summary)
        told = "\n".join(text for _, text in read(calls[0].messages))
        kept = from_newest_compaction(history)
        assert kept[:2] == [SYSTEM, summary]
        for message in before[1:]:
            heard = message.role != "notice" and message.visibility != "people"
            if heard and message.text and message not in kept:
                assert message.text.strip()[:20] in told


def test_a_second_compaction_keeps_what_it_says_it_keeps() -> None:
    """The first summary stands behind the messages that it left verbatim, but is told before them."""
    task = say("user", "Find the bug, and do not touch the tests.")
    first = make_summary("It was long. " * 200, keep_last=3)
    history = [*OLD, task, call("1"), result("1"), first, call("2"), result("2")]
    summary, _ = compact(history)
    assert summary is not None
    compacted = from_newest_compaction([*history, summary])
    assert compacted == [summary, task, call("1"), result("1"), call("2"), result("2")]


def test_a_request_that_only_the_first_summary_holds_survives_the_second() -> None:
    request = "Find the bug, and do not touch the tests."
    history = [say("user", request), call("1"), result("1", "x" * 4000)]
    for number in range(2, 5):
        summary, _ = compact(history)
        assert summary is not None
        history += [summary, call(str(number)), result(str(number), "x" * 4000)]
        assert request in "\n".join(text for _, text in read(build_prompt(history, provider="openai")))


# --- the summary -------------------------------------------------------------------------


async def ask_for_summary(history: list[Message], model: ScriptedModel | None = None) -> Message | None:
    return await summarise(
        model or ScriptedModel([SUMMARY]), history, scope=CancelScope(), clock=ManualClock(), limits=LIMITS
    )


async def test_a_summary_is_a_message_that_only_the_model_sees() -> None:
    summary = await ask_for_summary(LONG)
    assert summary is not None
    assert (summary.role, summary.visibility) == ("user", "model")
    assert "They spoke of rain." in summary.text
    assert from_newest_compaction([*LONG, summary]) == [SYSTEM, summary, *RECENT]


async def test_the_mark_of_a_summary_goes_to_no_provider() -> None:
    summary = await ask_for_summary(LONG)
    assert summary is not None
    prompt = build_prompt([*LONG, summary], provider="anthropic")
    assert all(getattr(block, "metadata", None) is None for entry in prompt for block in entry.blocks)


async def test_the_summariser_reads_what_is_left_out_and_nothing_else() -> None:
    model = ScriptedModel([SUMMARY])
    await ask_for_summary([say("notice", "Hello"), say("user", "psst", visibility="people"), *LONG], model)
    told = "\n".join(text for _, text in read(model.calls[0].messages))
    assert "Tell me all about rain." in told
    assert "It is wet." in told
    for unread in ("Snow?", "And now?", "psst", "Hello"):
        assert unread not in told
    assert model.calls[0].tools == []
    assert model.calls[0].options == CallOptions()
    for provider in ("anthropic", "openai"):
        assert_legal(model.calls[0].messages, provider=provider)


async def test_what_no_model_sees_is_no_reason_for_a_summary() -> None:
    model = ScriptedModel([SUMMARY])
    history = [say("notice", "Welcome! " * 500), say("user", "psst " * 500, visibility="people"), RECENT[-1]]
    assert await ask_for_summary(history, model) is None
    assert model.calls == []


async def test_a_transcript_that_is_too_long_itself_is_cut_in_the_middle() -> None:
    model = ScriptedModel([SUMMARY])
    history = [say("user", "Begin. " + "x" * 200_000 + " End."), *RECENT]
    await summarise(model, history, scope=CancelScope(), clock=ManualClock(), limits=LIMITS, context_limit=8192)
    transcript = read(model.calls[0].messages)[1][1]
    assert len(transcript.encode()) <= 16 * 1024
    assert "Begin." in transcript
    assert "End." in transcript


async def test_the_summariser_gets_calls_and_their_results() -> None:
    told = to_transcript([say("user", "Rain?"), call("1"), result("1", "rain in Oslo")])
    assert "weather" in told
    assert "rain in Oslo" in told


async def test_the_last_request_is_in_the_prompt_word_by_word_when_it_is_left_out() -> None:
    request = "Find the bug,\n\n  and do **not** touch the tests. é😀"
    history = [say("user", request), call("1"), result("1", "x" * 4000), call("2"), result("2")]
    summary = await ask_for_summary(history)
    assert summary is not None
    assert request in summary.text
    prompt = build_prompt([*history, summary], provider="openai")
    assert [entry.role for entry in prompt] == ["user", "assistant", "tool"]


async def test_a_request_that_stays_verbatim_is_not_repeated() -> None:
    summary = await ask_for_summary(LONG)
    assert summary is not None
    assert "And now?" not in summary.text


async def test_a_hidden_instruction_is_not_taken_for_the_users_request() -> None:
    hidden = say("user", "Go on where you stopped.", visibility="model")
    history = [
        say("user", "Find the bug."),
        call("1"),
        result("1", "x" * 4000),
        hidden,
        call("2"),
        result("2", "x" * 9000),
    ]
    summary = await ask_for_summary(history)
    assert summary is not None
    assert "Find the bug." in summary.text


async def test_a_picture_in_the_last_request_is_still_there() -> None:
    """Its bytes are no measure of what it costs the model, and the request is nothing without it."""
    picture = File(media_type="image/png", data=b"\x00" * 30_000)
    request = Message(role="user", blocks=[picture, Text("What is on it?")])
    summary = await ask_for_summary([*LONG, say("assistant", "Dry."), request])
    assert summary is not None
    prompt = build_prompt([*LONG, say("assistant", "Dry."), request, summary], provider="openai")
    assert [block for entry in prompt for block in entry.blocks if isinstance(block, File)] == [picture]


HALVES: dict[str, list[Message]] = {
    "the user's": [say("user", "\ud83d" + "x" * 4000), say("assistant", "Yes.")],
    "the model's": [say("user", "Rain?"), say("assistant", "\ud83d" + "x" * 4000)],
    "a tool's": [call("1"), result("1", "\ud83d" + "x" * 4000)],
    "a provider's": [
        Message(
            role="assistant",
            blocks=[
                ToolCall(id="s1", name="web_search", arguments="{}", provider_executed=True),
                ToolResult(call_id="s1", name="web_search", output={"a": "\ud83d" * 2000}, provider_executed=True),
            ],
        )
    ],
}


@pytest.mark.parametrize("older", HALVES.values(), ids=HALVES.keys())
async def test_half_a_character_in_the_history_does_not_keep_it_from_being_compacted(older: list[Message]) -> None:
    model = ScriptedModel([SUMMARY])
    history = [*older, say("user", "And \ud83d now?")]
    summary = await ask_for_summary(history, model)
    assert summary is not None
    assert_legal(model.calls[0].messages, provider="openai")
    assert_legal_everywhere([*history, summary])


async def test_a_model_that_thinks_in_its_text_does_not_think_in_the_summary() -> None:
    thinking: list[Step] = [parts.text_delta("1", "<think>Hm.</think>They spoke of rain."), parts.finish("stop")]
    summary = await ask_for_summary(LONG, ScriptedModel([thinking]))
    assert summary is not None
    assert "Hm." not in summary.text
    assert "think>" not in summary.text


class ThinksFirst(ScriptedModel):
    traits = ModelTraits(thinks_first=True)


async def test_a_model_that_thinks_first_does_not_think_in_the_summary() -> None:
    thinking: list[Step] = [parts.text_delta("1", "Hm.</think>They spoke of rain."), parts.finish("stop")]
    summary = await ask_for_summary(LONG, ThinksFirst([thinking]))
    assert summary is not None
    assert "Hm." not in summary.text
    assert "think>" not in summary.text


# --- through run: an overflow compacts once ----------------------------------------------

OVERFLOWS: dict[str, Callable[[], Script]] = {
    "the provider's words": lambda: RuntimeError("prompt is too long: 210000 tokens > 200000 maximum"),
    "an error part": lambda: [parts.error(RuntimeError("This model's maximum context length is 8192 tokens."))],
    "a ModelFailed": lambda: ModelFailed("too long", kind="context_overflow"),
    "after a word": lambda: [parts.text_delta("1", "Dr"), ModelFailed("too long", kind="context_overflow")],
}


def overflow() -> ModelFailed:
    return ModelFailed("The conversation is too long.", kind="context_overflow")


@pytest.mark.parametrize("overflowing", OVERFLOWS.values(), ids=OVERFLOWS.keys())
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_an_overflow_compacts_once_and_goes_on(
    harness: LoopHarness, overflowing: Callable[[], Script], provider: str
) -> None:
    model = ScriptedModel([overflowing(), SUMMARY, ANSWER], provider=provider)
    turn = await harness.start(model, messages=LONG)
    summary, answer = turn.messages
    assert (summary.visibility, answer.text) == ("model", "Dry.")
    assert read(model.calls[2].messages) == read([SYSTEM, summary, *RECENT])
    assert_legal(model.calls[2].messages, provider=provider)
    assert_legal_everywhere([*LONG, *turn.messages])
    assert [(event.kind, event.delay_ms) for event in harness.retries] == [("context_overflow", 0)]
    assert harness.clock.slept == []
    assert [step.blocks for step in harness.saved] == [[Text("Dry.")]]


async def test_the_summary_is_nobodys_to_read_while_it_is_written(harness: LoopHarness) -> None:
    await harness.start(ScriptedModel([overflow(), SUMMARY, ANSWER]), messages=LONG)
    assert all("spoke" not in getattr(part, "delta", "") for part in harness.published)


async def test_the_whole_preparation_runs_on_the_compacted_history(harness: LoopHarness) -> None:
    prepared = []

    def prepare(messages: list[Message]) -> list[Message]:
        prepared.append(len(messages))
        return [*messages, say("user", "(Mind the time.)")]

    model = ScriptedModel([overflow(), SUMMARY, ANSWER], provider="anthropic")
    await harness.start(model, messages=LONG, prepare_messages=prepare)
    assert prepared == [len(LONG), len(LONG) + 1]
    prompt = model.calls[2].messages
    assert read(prompt)[-1] == ("user", "(Mind the time.)")
    assert [at for at, entry in enumerate(prompt) if entry.cache] == [0, len(prompt) - 2, len(prompt) - 1]


async def test_the_steps_after_a_compaction_go_on_from_it(harness: LoopHarness) -> None:
    model = ScriptedModel([overflow(), SUMMARY, ASK, ANSWER])
    turn = await harness.start(model, messages=LONG, tools=[weather])
    assert read(model.calls[3].messages)[: len(RECENT) + 2] == read([SYSTEM, turn.messages[0], *RECENT])
    assert [message.role for message in turn.messages] == ["user", "assistant", "tool", "assistant"]


async def test_an_overflow_in_a_later_step_keeps_the_step_before_it(harness: LoopHarness) -> None:
    model = ScriptedModel([ASK, overflow(), SUMMARY, ANSWER])
    await harness.start(model, messages=LONG, tools=[weather])
    prompt = model.calls[3].messages
    assert read(prompt)[-2:] == [("assistant", ""), ("tool", "rain in Oslo")]
    assert "And now?" in "\n".join(text for _, text in read(prompt))
    assert_legal(prompt, provider="anthropic")


async def test_a_second_overflow_in_the_turn_is_terminal(harness: LoopHarness) -> None:
    second = overflow()
    model = ScriptedModel([overflow(), SUMMARY, second])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=LONG))
    assert caught.value is second
    assert len(model.calls) == 3
    assert harness.saved == []


async def test_a_second_overflow_is_terminal_in_a_later_step_too(harness: LoopHarness) -> None:
    second = overflow()
    model = ScriptedModel([overflow(), SUMMARY, ASK, second])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=LONG, tools=[weather]))
    assert caught.value is second
    assert len(harness.saved) == 1


async def test_the_next_turn_may_compact_again(harness: LoopHarness) -> None:
    model = ScriptedModel([overflow(), SUMMARY, ANSWER, overflow(), SUMMARY, ANSWER])
    turn = await harness.start(model, messages=LONG)
    history = [*LONG, *turn.messages, say("user", "And tomorrow? " * 100), say("assistant", "No."), say("user", "Why?")]
    again = await harness.start(model, messages=history)
    assert again.messages[0].visibility == "model"
    prompt = model.calls[5].messages
    assert read(prompt)[1] == ("user", again.messages[0].text)
    assert [entry.role for entry in prompt].count("system") == 1
    assert_legal(prompt, provider="anthropic")


@pytest.mark.parametrize(
    "history", [[], [SYSTEM], [SYSTEM, say("user", "hi")]], ids=["nothing", "system", "one request"]
)
async def test_an_overflow_with_nothing_to_compact_is_terminal(harness: LoopHarness, history: list[Message]) -> None:
    first = overflow()
    model = ScriptedModel([first, SUMMARY, overflow()])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=history))
    assert caught.value is first
    assert len(model.calls) == 1


BAD_SUMMARIES: dict[str, Script] = {
    "an error": RuntimeError("status 500"),
    "an error that could be retried": ModelFailed("busy", kind="overloaded"),
    "an overflow": ModelFailed("too long", kind="context_overflow"),
    "nothing": [parts.finish("stop")],
    "blanks": [parts.text_delta("1", " \n"), parts.finish("stop")],
    "thinking alone": [parts.text_delta("1", "<think>Hm."), parts.finish("stop")],
    "half of it": [parts.text_delta("1", "They sp")],
    "a refusal": [parts.finish("content_filter")],
}


@pytest.mark.parametrize("bad", BAD_SUMMARIES.values(), ids=BAD_SUMMARIES.keys())
@pytest.mark.may_log("the conversation could not be summarised")
async def test_a_summary_that_fails_is_terminal_with_the_original_failure(harness: LoopHarness, bad: Script) -> None:
    first = overflow()
    model = ScriptedModel([first, bad])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(model, messages=LONG))
    assert caught.value is first
    assert len(model.calls) == 2
    assert harness.retries == []


@pytest.mark.may_log("the conversation could not be summarised")
async def test_a_summariser_that_falls_silent_is_terminal_with_the_original_failure(harness: LoopHarness) -> None:
    first = overflow()
    task = harness.start(ScriptedModel([first, [parts.hang()]]), messages=LONG, silence_timeout_s=30)
    await harness.clock.wait_for_timer()
    await harness.clock.advance(0)
    await harness.clock.advance(31)
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(task)
    assert caught.value is first


async def test_a_summary_without_an_end_is_ended_at_the_limit_of_a_reply(harness: LoopHarness) -> None:
    async def ramble(call: Call) -> AsyncIterator[Part]:
        while True:
            yield parts.text_delta("1", "word " * 100)

    model = ScriptedModel([overflow(), ramble, [parts.text_delta("1", "Yes."), parts.finish()]])
    summaries: list[Message] = []
    await harness.start(model, messages=LONG, reply_max_characters=1000, keep_summary=summaries.append)
    [summary] = summaries
    assert 1000 <= summary.text.count("word ") * 5 <= 1500


async def stop_while_summarising(harness: LoopHarness, stop: Callable[[], None], first: Script) -> Any:
    summarising = asyncio.Event()

    async def summarise(call: Call) -> AsyncIterator[Part]:
        summarising.set()
        yield parts.text_delta("1", "They")
        await asyncio.Event().wait()

    task = harness.start(ScriptedModel([first, summarise]), messages=LONG)
    await summarising.wait()
    await harness.clock.advance(0)
    stop()
    return await task


async def test_a_stop_while_summarising_ends_interrupted(harness: LoopHarness) -> None:
    assert isinstance(await stop_while_summarising(harness, harness.scope.interrupt, overflow()), TurnInterrupted)
    assert harness.saved == []
    assert harness.retries == []


async def test_a_stop_while_summarising_keeps_what_was_written_before_the_overflow(harness: LoopHarness) -> None:
    assert isinstance(
        await stop_while_summarising(harness, harness.scope.interrupt, OVERFLOWS["after a word"]()), TurnInterrupted
    )
    assert harness.only.blocks == [Text("Dr")]
    assert (harness.only.partial, harness.only.reason) == (True, "interrupted")


async def test_a_shutdown_while_summarising_saves_nothing(harness: LoopHarness) -> None:
    assert isinstance(
        await stop_while_summarising(harness, harness.scope.shutdown, OVERFLOWS["after a word"]()), TurnShutDown
    )
    assert harness.saved == []


async def test_what_was_seen_before_the_overflow_is_kept_and_continued(harness: LoopHarness) -> None:
    harness.answers = [[say("user", "Go on.", visibility="model")]]
    model = ScriptedModel([OVERFLOWS["after a word"](), SUMMARY, ANSWER])
    await harness.start(model, messages=LONG, keep_failed=True)
    assert [(step.blocks, step.partial) for step in harness.saved] == [([Text("Dr")], True), ([Text("Dry.")], False)]
    assert read(model.calls[2].messages)[-2:] == [("assistant", "Dr"), ("user", "Go on.")]
    assert len(model.calls[2].messages) == len(RECENT) + 4


async def test_no_attempt_is_made_beyond_the_last_one_allowed(harness: LoopHarness) -> None:
    """rule 2.1: at most so many attempts. A compaction makes the next one shorter, not free."""
    model = ScriptedModel([ConnectionResetError(), ConnectionResetError(), overflow(), SUMMARY, ANSWER])
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(
            harness.start(model, messages=LONG, retry=RetryPolicy(max_attempts=3), clock=ManualClock(skip_sleeps=True))
        )
    assert caught.value.kind == "context_overflow"
    assert harness.attempts == [(1, 1), (1, 2), (1, 3)]


async def test_an_overflow_of_a_chained_run_compacts_the_whole_history(harness: LoopHarness) -> None:
    """What overflowed is what the provider remembers: with the id kept, no summary could help."""
    chained = CallOptions(store=True, previous_response_id="resp_1")
    model = ScriptedModel([overflow(), SUMMARY, ANSWER], provider="openai")
    turn = await harness.start(model, messages=[SYSTEM, RECENT[-1]], call=chained, reload_messages=lambda: list(LONG))
    assert [made.options.previous_response_id for made in model.calls] == ["resp_1", None, None]
    assert read(model.calls[2].messages) == read([SYSTEM, turn.messages[0], *RECENT])


# --- a caller who compacts by itself -----------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_the_callers_own_summary_is_used_and_the_model_not_asked(harness: LoopHarness, *, is_async: bool) -> None:
    given: list[list[Message]] = []

    def make(messages: list[Message]) -> Message:
        given.append(messages)
        return make_summary("It rained.", keep_last=1)

    async def make_later(messages: list[Message]) -> Message:
        await asyncio.sleep(0)
        return make(messages)

    model = ScriptedModel([overflow(), ANSWER])
    await harness.start(model, messages=LONG, compact=make_later if is_async else make)
    assert given == [LONG]
    assert [text for _, text in read(model.calls[1].messages)][::2] == ["Be brief.", "And now?"]


async def test_a_caller_who_has_no_summary_ends_the_turn_with_the_overflow(harness: LoopHarness) -> None:
    first = overflow()
    with pytest.raises(ModelFailed) as caught:
        await raise_failure(harness.start(ScriptedModel([first]), messages=LONG, compact=lambda messages: None))
    assert caught.value is first


async def test_a_summary_is_announced_as_soon_as_it_is_made(harness: LoopHarness) -> None:
    told: list[Message] = []
    turn = await harness.start(ScriptedModel([overflow(), SUMMARY, ANSWER]), messages=LONG, keep_summary=told.append)
    assert told == [turn.messages[0]]
