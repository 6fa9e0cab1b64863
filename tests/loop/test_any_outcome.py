"""UncancellableFuture P8 through the loop: however a turn ended, the next request is legal, for whichever provider.

Hypothesis draws a conversation: what the models say, with which tools, where they fail, where somebody
presses Stop. Each turn is a real `run`; a `Chat` keeps what it saves, the way a store does: the steps, the
instruction to continue a failed one, a steer, the notices, and after a shutdown what the journal held.
From turn to turn the provider may change, and the user may write on or edit any earlier message.

legality.py judges every request that was really made, and for both providers the requests that could be made
next: after all of it, and after a cut behind every message. Histories that no loop made are test_any_history.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples
from tests.support.loop_harness import run_turn

from indelible import tool
from indelible.content import Message, Part, StreamError, Text, ToolCall, ToolResult, ToolSpec
from indelible.content.assemble import assemble, finalize, to_messages
from indelible.errors import Interrupted, ModelFailed, Shutdown
from indelible.loop import CancelScope, FinishedStep, RetryPolicy
from indelible.loop.prompt.build import build_prompt, mark_cache
from indelible.loop.prompt.compact import make_summary
from indelible.models import Call
from indelible.testing import ManualClock, ScriptedModel, parts
from indelible.testing.legality import check_legality
from indelible.tools.toolset import AnyTool

EXAMPLES = settings(max_examples=count_examples(30))
PROVIDERS = ("anthropic", "openai")
MODELS = ("m1", "m2")


class Pause:
    """The model says nothing more, and the user presses Stop."""


class Turn(NamedTuple):
    """One turn. It is stopped at the `stop_at`-th thing that happens in it, if so much happens."""

    provider: str
    model: str
    scripts: list[list[Part | Pause | BaseException]]
    stop: Literal["interrupt", "shutdown"]
    stop_at: int
    keep_failed: bool
    max_steps: int
    steers: bool
    client_answers: bool
    cut_before: int | None


# --- the tools ---------------------------------------------------------------------------


@tool
async def quick() -> str:
    await asyncio.sleep(0)
    return "rain"


@tool
async def raising() -> str:
    raise LookupError("no such city")


@tool
async def enough() -> None:
    pass


@tool
async def alone() -> str:
    return "\ud800"


TOOLS: list[AnyTool] = [quick, raising, enough, alone, ToolSpec(name="web_search", provider_executed=True)]


# --- what is drawn -----------------------------------------------------------------------

CALLED = ["quick", "quick", "raising", "client", "client", "enough", "enough", "alone", "nobody knows", ""]
IDS = ["c1", "c1", "c2", "a.b:c", "x" * 60]
FINISHES = [parts.finish("stop"), parts.finish("tool_calls"), parts.finish("length"), parts.finish("content_filter")]
FAILURES: list[list[Part | Pause | BaseException]] = [
    [ConnectionResetError()],
    [],
    [Pause()],
    [ModelFailed("busy", kind="overloaded")],
    [ModelFailed("no key", kind="auth")],
    [ModelFailed("too long", kind="context_overflow")],
    [StreamError(message="Previous response with id 'resp_abc' not found.")],
    [asyncio.CancelledError()],
]


def stream_text(text: str) -> list[Part]:
    return [
        parts.text_start("1"),
        parts.text_delta("1", text[:3]),
        parts.text_delta("1", text[3:]),
        parts.text_end("1"),
    ]


def stream_reasoning(signature: str | None) -> list[Part]:
    return [parts.reasoning_start("r"), parts.reasoning_delta("r", "Hm"), parts.reasoning_end("r", signature)]


def stream_call(id: str, name: str, arguments: str) -> list[Part]:
    half = len(arguments) // 2
    deltas = [parts.tool_input_delta(id, arguments[:half]), parts.tool_input_delta(id, arguments[half:])]
    return [parts.tool_input_start(id, name), *deltas, parts.tool_call(id, name, arguments)]


def stream_search(id: str, output: Any) -> list[Part]:
    called = parts.tool_call(id, "web_search", '{"q": "rain"}', provider_executed=True)
    found = [parts.tool_result(id, "web_search", output, provider_executed=True)] if output is not None else []
    return [parts.tool_input_start(id, "web_search", provider_executed=True), called, *found, parts.source(url="u:1")]


pieces: st.SearchStrategy[list[Part]] = st.one_of(
    st.sampled_from(["It rains.", " \n", "<think>Hm</think>So.", "<think>Hm", "\ud83d", "a < b"]).map(stream_text),
    st.sampled_from([None, "signed"]).map(stream_reasoning),
    st.builds(
        stream_call, st.sampled_from(IDS), st.sampled_from(CALLED), st.sampled_from(["{}", "{}", "", '{"a": ', "[]"])
    ),
    st.builds(stream_search, st.sampled_from(["s1", "s2"]), st.sampled_from([None, "dry", {"finalized": [1]}])),
)
ends = st.one_of(st.sampled_from(FINISHES).map(lambda finish: [finish]), st.sampled_from(FAILURES))
scripts = st.builds(
    lambda said, end: [*(part for piece in said for part in piece), *end], st.lists(pieces, max_size=4), ends
)
turns = st.builds(
    Turn,
    provider=st.sampled_from(PROVIDERS),
    model=st.sampled_from(MODELS),
    scripts=st.lists(scripts, min_size=1, max_size=4),
    stop=st.sampled_from(["interrupt", "shutdown"]),
    stop_at=st.one_of(st.just(-1), st.integers(0, 40)),
    keep_failed=st.booleans(),
    max_steps=st.sampled_from([1, 2, 5]),
    steers=st.booleans(),
    client_answers=st.booleans(),
    cut_before=st.one_of(st.none(), st.integers(0, 12)),
)
conversations = st.lists(turns, min_size=1, max_size=3)


# --- the chat ----------------------------------------------------------------------------


def say(role: Any, text: str, **more: Any) -> Message:
    return Message(role=role, blocks=[Text(text)], **more)


class Chat:
    """What a store would hold, and the turns that fill it."""

    def __init__(self) -> None:
        self.messages = [say("system", "Be brief.")]
        self.calls: list[tuple[str, Call]] = []
        self.compacted = False
        self._journal: list[Part] = []

    async def take_turn(self, turn: Turn) -> None:
        if turn.cut_before is not None:
            del self.messages[1 + turn.cut_before :]
        self.messages.append(say("user", "Rain?"))
        self._turn, self._scope, self._happened = turn, CancelScope(), 0
        model = ScriptedModel(
            [*map(self._play, turn.scripts), *[self._play([*stream_text("Dry."), parts.finish()])] * 20],
            provider=turn.provider,
            name=turn.model,
        )
        ended = await self._run(model)
        event(f"ended: {ended}")
        self.calls += [(turn.provider, call) for call in model.calls]

    async def _run(self, model: ScriptedModel) -> str:
        turn = self._turn
        try:
            result = await run_turn(
                model=model,
                messages=self.messages,
                persist_step=self._save,
                tools=TOOLS,
                client_tools=["client"],
                stop_after=["enough"],
                exclusive=["alone"],
                max_steps=turn.max_steps,
                scope=self._scope,
                publish=self._publish,
                compact=self._compact,
                open_attempt=lambda step, number: self._journal.clear(),
                schedule_retry=lambda retry: self._happen(),
                keep_failed=turn.keep_failed,
                retry=RetryPolicy(max_attempts=3),
                clock=ManualClock(skip_sleeps=True),
            )
        except Interrupted:
            self.messages.append(say("notice", "Stopped by you."))
            return "interrupted"
        except Shutdown:
            self.messages += to_messages(
                finalize(assemble(self._journal), "handed_over", None),
                partial=True,
                reason="handed_over",
                provider=turn.provider,
                model=turn.model,
            )
            return "shutdown"
        except ModelFailed as failure:
            self.messages.append(say("notice", failure.message))
            return f"failed: {failure.kind}"
        if result.reason == "client_tools" and turn.client_answers:
            answers = [ToolResult(call_id=call.id, name=call.name, output="yes") for call in result.steps[-1].awaiting]
            self.messages.append(Message(role="tool", blocks=[*answers]))
        return str(result.reason)

    def _happen(self) -> None:
        """Something happened; perhaps it is what the stop was waiting for."""
        if self._happened == self._turn.stop_at:
            self._stop()
        self._happened += 1

    def _stop(self) -> None:
        (self._scope.interrupt if self._turn.stop == "interrupt" else self._scope.shutdown)()

    def _play(self, script: Sequence[Part | Pause | BaseException]) -> Callable[[Call], AsyncIterator[Part]]:
        async def speak(call: Call) -> AsyncIterator[Part]:
            for step in script:
                if isinstance(step, Pause):
                    self._stop()
                    await asyncio.get_running_loop().create_future()
                elif isinstance(step, BaseException):
                    raise step
                else:
                    yield step

        return speak

    def _publish(self, part: Part) -> None:
        self._journal.append(part)
        self._happen()

    def _save(self, step: FinishedStep) -> list[Message]:
        returned = []
        if step.reason == "failed" and not step.last:
            returned.append(say("user", "Go on where you stopped.", visibility="model"))
        elif self._turn.steers and not step.last and not step.awaiting and step.reason is None:
            returned.append(say("user", "Quickly, please."))
        self.messages += [*step.messages(), *returned]
        self._journal.clear()
        self._happen()
        return returned

    def _compact(self, messages: list[Message]) -> Message | None:
        summary = make_summary("They spoke of rain.", keep_last=min(2, len(messages) - 1))
        self.messages.append(summary)
        self.compacted = True
        return summary


async def play(conversation: list[Turn]) -> Chat:
    chat = Chat()
    for turn in conversation:
        await chat.take_turn(turn)
    return chat


# --- the promise -------------------------------------------------------------------------


def assert_next_prompts_legal(messages: list[Message]) -> None:
    """Whether the user writes on, edits any message, or lets it go on, and whoever is asked."""
    asked = say("user", "And now?")
    for end in range(len(messages) + 1):
        for provider in PROVIDERS:
            for history in (messages[:end], [*messages[:end], asked]):
                prompt = build_prompt(history, provider=provider, model="m1")
                assert check_legality(mark_cache(prompt, provider=provider), provider=provider) == []


def assert_nothing_lost(messages: list[Message]) -> None:
    """rule 5.1 and 5.2: every word of a reply is in the prompt, every local call is there and answered once."""
    told = [block for entry in build_prompt(messages, provider="openai") for block in entry.blocks]
    said = [block for message in messages if message.role == "assistant" for block in message.blocks]
    words = [block.text for block in said if isinstance(block, Text) and block.text.strip()]
    assert [block.text for block in told if isinstance(block, Text) and block.text in words] == words
    calls = [block for block in said if isinstance(block, ToolCall) and not block.provider_executed]
    answers = [block for block in told if isinstance(block, ToolResult) and not block.provider_executed]
    assert len(answers) == len(calls)


@EXAMPLES
@given(conversations)
def test_every_outcome_of_the_loop_gives_a_legal_prompt_for_every_provider(conversation: list[Turn]) -> None:
    chat = asyncio.run(play(conversation))
    for provider, call in chat.calls:
        assert check_legality(call.messages, provider=provider) == []
    assert_next_prompts_legal(chat.messages)
    if not chat.compacted:
        assert_nothing_lost(chat.messages)
