"""The built-in model: no key, no network, and honest about the prompt that it got.

It shows a newcomer streaming, thinking, a tool call, Stop and Continue in the first minute, and lets anything that is
built on the loop be tried offline. script.py has its texts; this module reads the prompt and streams the reply.

It keeps no state between calls. How far an earlier reply got is read from the prompt, as a real model reads it: the
reply to a question is always the same, so a history that holds only its first half shows that it was interrupted, and
where. Hence "continue" resumes at the exact character, and any other question is answered after a remark about the
interruption. The same prompt and seed always give the same parts.

All waiting goes through the clock: one beat of `pace_s` per word, and a few more after a sentence.

Must stay true (tests/models/test_demo.py): a reply that is interrupted anywhere and continued, any number of times, is
the whole reply; a pace of 0 sets no timer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from random import Random
from typing import Final

import msgspec

from indelible.clock import Clock, SystemClock
from indelible.content import (
    Finish,
    Part,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    encode,
    text_of,
)
from indelible.models.protocol import Call, ModelTraits, PromptMessage
from indelible.models.providers.demo.script import DemoReply, quote, recall_cut, report_results, write_reply

_BYTES_PER_TOKEN: Final = 4
_BEATS_BEFORE_THE_FIRST_WORD: Final = 15
_BEATS_AFTER_A_SENTENCE: Final = 5
_PARTS_BETWEEN_YIELDS: Final = 32

_CHUNK: Final = re.compile(r"\S+\s*|\s+")
_ARGUMENT_CHUNK: Final = re.compile(r".{1,6}", re.DOTALL)
_SENTENCE_END: Final = re.compile(r"[.!?:]\W*\s$|\n\n$")
_WISH_TO_CONTINUE: Final = re.compile(r"\b(continue|go on|carry on|keep going|cut off)\b", re.IGNORECASE)


class DemoModel:
    """See the module header. `seed` varies the wording where there is a choice."""

    provider: Final = "demo"
    name: Final = "demo"
    context_limit: Final = 32_000
    traits: Final = ModelTraits(makes_titles=False)
    """The user's own message is a better title than demo text."""

    def __init__(self, clock: Clock | None = None, *, pace_s: float = 0.02, seed: int | None = None) -> None:
        self._clock = clock or SystemClock()
        self._pace_s = pace_s
        self._seed = seed

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        """Stream the reply, part by part, at the pace of a fast reader."""
        reply = _Reader(call, self._seed).decide_reply()
        for number, (beats, part) in enumerate(_spell_out(reply, call)):
            if self._pace_s > 0:
                await self._clock.sleep(beats * self._pace_s)
            elif number % _PARTS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
            yield part


# --- reading the prompt ------------------------------------------------------------------


class _Thread(msgspec.Struct):
    """A question, and how much of its answer is written: over several replies, if it was continued.

    `written` is the text of the present step; `after_cut` is the text of an earlier answer that this question
    interrupted.
    """

    question: str
    written: str = ""
    results: Sequence[ToolResult] = ()
    after_cut: str = ""


class _Reader:
    """Determines from a prompt which answers are complete and what comes next."""

    def __init__(self, call: Call, seed: int | None) -> None:
        self._seed = seed
        self._tools = [spec.name for spec in call.tools if not spec.provider_executed]
        self._threads: list[_Thread] = []
        self._continuing = False
        for message in call.messages:
            self._read(message)

    def _read(self, message: PromptMessage) -> None:
        if message.role == "user":
            self._read_question(text_of(message.blocks))
        elif message.role == "assistant" and self._threads:
            self._threads[-1].written += text_of(message.blocks)
        elif message.role == "tool" and self._threads:
            thread = self._threads[-1]
            thread.written = ""
            thread.results = [block for block in message.blocks if isinstance(block, ToolResult)]

    def _read_question(self, question: str) -> None:
        self._continuing = False
        if _WISH_TO_CONTINUE.search(question):
            thread = next(filter(self._is_unfinished, reversed(self._threads)), None)
            if thread is not None:
                self._go_back_to(thread)
                return
        previous = self._threads[-1] if self._threads else None
        cut = previous.written if previous is not None and self._is_unfinished(previous) else ""
        self._threads.append(_Thread(question=question, after_cut=cut))

    def _go_back_to(self, thread: _Thread) -> None:
        self._threads = [other for other in self._threads if other is not thread] + [thread]
        self._continuing = True
        if any(result.is_error for result in thread.results):
            thread.results, thread.written = (), ""

    def _is_unfinished(self, thread: _Thread) -> bool:
        whole = self._write_whole(thread)
        written = thread.written.rstrip()
        return whole.text.startswith(written) and (whole.tool is not None or whole.text != written)

    def _write_whole(self, thread: _Thread) -> DemoReply:
        """The complete reply, as it is or would have been without the interruption."""
        if thread.results:
            return report_results(thread.results)
        chance = Random(f"{self._seed}:{thread.question}")  # noqa: S311 - it chooses words, not secrets
        reply = write_reply(thread.question, self._tools, chance)
        if thread.after_cut:
            return msgspec.structs.replace(reply, text=recall_cut(thread.after_cut) + reply.text)
        return reply

    def decide_reply(self) -> DemoReply:
        """The reply to stream now."""
        thread = self._threads[-1] if self._threads else _Thread(question="")
        whole = self._write_whole(thread)
        if not whole.text.startswith(thread.written):
            return whole
        if self._continuing and thread.written:
            tail = quote(" ".join(thread.written.split()[-4:]))
            return msgspec.structs.replace(
                whole,
                thinking=f"I was interrupted after “…{tail}”. I continue right there and repeat nothing.",
                text=whole.text[len(thread.written) :],
            )
        return whole


# --- streaming ---------------------------------------------------------------------------


def _spell_out(reply: DemoReply, call: Call) -> Iterator[tuple[int, Part]]:
    """The parts of a reply, each with the beats to wait before it."""
    yield _BEATS_BEFORE_THE_FIRST_WORD, ReasoningStart(id="reasoning")
    for beats, chunk in _pace_out(reply.thinking):
        yield beats, ReasoningDelta(id="reasoning", delta=chunk)
    yield 1, ReasoningEnd(id="reasoning")

    if reply.text:
        yield _BEATS_AFTER_A_SENTENCE, TextStart(id="text")
        for beats, chunk in _pace_out(reply.text):
            yield beats, TextDelta(id="text", delta=chunk)
        yield 1, TextEnd(id="text")

    if reply.tool is not None:
        call_id = f"demo_call_{_count_calls(call) + 1}"
        yield _BEATS_AFTER_A_SENTENCE, ToolInputStart(id=call_id, name=reply.tool)
        for piece in _ARGUMENT_CHUNK.findall(reply.arguments):
            yield 1, ToolInputDelta(id=call_id, delta=piece)
        yield 1, ToolInputEnd(id=call_id)
        yield 0, ToolCall(id=call_id, name=reply.tool, arguments=reply.arguments)

    yield 0, Finish(reason="stop" if reply.tool is None else "tool_calls", usage=_estimate_usage(reply, call))


def _pace_out(text: str) -> Iterator[tuple[int, str]]:
    beats = 1
    for chunk in _CHUNK.findall(text):
        yield beats, chunk
        beats = _BEATS_AFTER_A_SENTENCE if _SENTENCE_END.search(chunk) else 1


def _count_calls(call: Call) -> int:
    """The number of calls so far: ids continue from it, so that no two calls of a chat share one."""
    return sum(isinstance(block, ToolCall) for message in call.messages for block in message.blocks)


def _estimate_usage(reply: DemoReply, call: Call) -> Usage:
    arguments = reply.arguments if reply.tool is not None else ""
    return Usage(
        input_tokens=_count_tokens(encode(call.messages)),
        output_tokens=_count_tokens((reply.thinking + reply.text + arguments).encode()),
        reasoning_tokens=_count_tokens(reply.thinking.encode()),
    )


def _count_tokens(data: bytes) -> int:
    return -(-len(data) // _BYTES_PER_TOKEN)
