"""The built-in model: no key, no network, and honest about the prompt that it got.

It shows a newcomer streaming, thinking, a tool call, Stop and Continue in the first minute, and lets anything that is
built on the loop be tried offline. All waiting goes through the clock: one beat of `pace_s` per word, and a few more
after a sentence.

It keeps no state between calls. How far an earlier reply got is read from the prompt, as a real model reads it: the
reply to a question is a function of the question alone (and of a seeded `Random` where there is a choice), so a history
that holds only its first half shows that it was interrupted, and where: it is written again and compared. No reply ends
with whitespace, so an interrupted one always lacks something visible. Hence "continue" resumes at the exact character,
and any other question is answered after a remark about the interruption.

Every reply is Markdown, and together they use what a chat must be able to show: headings, lists, tables, fenced code,
quotes and emphasis.

Must stay true (tests/models/test_demo.py): a reply that is interrupted anywhere and continued, any number of times, is
the whole reply; a pace of 0 sets no timer; the code in the code reply really runs.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from indelible import content
from indelible.clock import Clock, SystemClock
from indelible.models.protocol import Call, ModelTraits

_BEATS_BEFORE_THE_FIRST_WORD: Final = 15
_BEATS_AFTER_A_SENTENCE: Final = 5
_PARTS_BETWEEN_YIELDS: Final = 32
_LONGEST_QUOTE: Final = 240
_STORY: Final = Path(__file__).with_name("demo_story.md").read_text("utf-8").rstrip()
_CHUNK: Final = re.compile(r"\S+\s*|\s+")
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

    async def stream(self, call: Call) -> AsyncIterator[content.Part]:
        """Stream the reply, part by part, at the pace of a fast reader."""
        reply = _Reader(call, self._seed).decide_reply()
        for number, (beats, part) in enumerate(_list_parts(reply, call)):
            if self._pace_s > 0:
                await self._clock.sleep(beats * self._pace_s)
            elif number % _PARTS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
            yield part


class _Reply(msgspec.Struct, frozen=True):
    """The reply of one step: thinking, text, and perhaps a tool call."""

    thinking: str
    text: str
    tool: str | None = None
    arguments: str = ""


def _list_parts(reply: _Reply, call: Call) -> Iterator[tuple[int, content.Part]]:
    """The parts of a reply, each with the beats to wait before it."""
    yield _BEATS_BEFORE_THE_FIRST_WORD, content.ReasoningStart(id="reasoning")
    for beats, chunk in _pace_out(reply.thinking):
        yield beats, content.ReasoningDelta(id="reasoning", delta=chunk)
    yield 1, content.ReasoningEnd(id="reasoning")
    if reply.text:
        yield _BEATS_AFTER_A_SENTENCE, content.TextStart(id="text")
        for beats, chunk in _pace_out(reply.text):
            yield beats, content.TextDelta(id="text", delta=chunk)
        yield 1, content.TextEnd(id="text")
    if reply.tool is not None:  # the calls of a chat are counted: no two of them share an id
        calls = sum(isinstance(block, content.ToolCall) for message in call.messages for block in message.blocks)
        call_id = f"demo_call_{calls + 1}"
        yield _BEATS_AFTER_A_SENTENCE, content.ToolInputStart(id=call_id, name=reply.tool)
        for start in range(0, len(reply.arguments), 6):
            yield 1, content.ToolInputDelta(id=call_id, delta=reply.arguments[start : start + 6])
        yield 1, content.ToolInputEnd(id=call_id)
        yield 0, content.ToolCall(id=call_id, name=reply.tool, arguments=reply.arguments)
    usage = content.Usage(
        input_tokens=_count_tokens(content.encode(call.messages)),
        output_tokens=_count_tokens((reply.thinking + reply.text + reply.arguments).encode()),
        reasoning_tokens=_count_tokens(reply.thinking.encode()),
    )
    yield 0, content.Finish(reason="stop" if reply.tool is None else "tool_calls", usage=usage)


def _pace_out(text: str) -> Iterator[tuple[int, str]]:
    beats = 1
    for chunk in _CHUNK.findall(text):
        yield beats, chunk
        beats = _BEATS_AFTER_A_SENTENCE if _SENTENCE_END.search(chunk) else 1


def _count_tokens(data: bytes) -> int:
    return -(-len(data) // 4)


# --- reading the prompt ---


class _Thread(msgspec.Struct):
    """A question, and how much of its answer is written: over several replies, if it was continued.

    `written` is the text of the present step; `after_cut` is the text of an earlier answer that this question
    interrupted.
    """

    question: str = ""
    written: str = ""
    results: Sequence[content.ToolResult] = ()
    after_cut: str = ""


class _Reader:
    """Determines from a prompt which answers are complete and what comes next."""

    def __init__(self, call: Call, seed: int | None) -> None:
        self._seed = seed
        self._tools = [spec.name for spec in call.tools if not spec.provider_executed]
        self._threads: list[_Thread] = []
        self._continuing = False
        for message in call.messages:
            if message.role == "user":
                self._read_question(content.text_of(message.blocks))
            elif message.role == "assistant" and self._threads:
                self._threads[-1].written += content.text_of(message.blocks)
            elif message.role == "tool" and self._threads:
                self._threads[-1].written = ""
                self._threads[-1].results = [block for block in message.blocks if isinstance(block, content.ToolResult)]

    def _read_question(self, question: str) -> None:
        wanted = reversed(self._threads) if _WISH_TO_CONTINUE.search(question) else ()
        thread = next(filter(self._is_unfinished, wanted), None)
        self._continuing = thread is not None
        if thread is None:
            is_cut = bool(self._threads) and self._is_unfinished(self._threads[-1])
            self._threads.append(_Thread(question, after_cut=self._threads[-1].written if is_cut else ""))
            return
        self._threads = [*(other for other in self._threads if other is not thread), thread]
        if any(result.is_error for result in thread.results):
            thread.results, thread.written = (), ""

    def _is_unfinished(self, thread: _Thread) -> bool:
        whole = self._write_whole(thread)
        written = thread.written.rstrip()
        return whole.text.startswith(written) and (whole.tool is not None or whole.text != written)

    def _write_whole(self, thread: _Thread) -> _Reply:
        """The complete reply, as it is or would have been without the interruption."""
        if thread.results:
            return _report(thread.results)
        chance = Random(f"{self._seed}:{thread.question}")  # noqa: S311 - it chooses words, not secrets
        reply = _answer(thread.question, self._tools, chance)
        if not thread.after_cut:
            return reply
        tail = _quote_end(thread.after_cut, 8)
        remark = (
            f"> My last reply was cut short. I know how far it got: it ended with “…{tail}”. "
            "Say *continue* and I go on from there.\n\n"
        )
        return replace(reply, text=remark + reply.text)

    def decide_reply(self) -> _Reply:
        """The reply to stream now."""
        thread = self._threads[-1] if self._threads else _Thread()
        whole = self._write_whole(thread)
        if not self._continuing or not thread.written or not whole.text.startswith(thread.written):
            return whole
        tail = _quote_end(thread.written, 4)
        thinking = f"I was interrupted after “…{tail}”. I continue right there and repeat nothing."
        return replace(whole, thinking=thinking, text=whole.text[len(thread.written) :])


def _quote(text: str) -> str:
    """The text on one line, shortened if necessary."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[:_LONGEST_QUOTE].rstrip() + "…"


def _quote_end(text: str, words: int) -> str:
    return _quote(" ".join(text.split()[-words:]))


# --- what it answers ---


def _answer(question: str, tools: Sequence[str], chance: Random) -> _Reply:
    """Answer a question, or call one of `tools` (their names)."""
    lowered = question.casefold()
    for name in tools:
        if re.search(rf"\b{re.escape(name.casefold())}\b", lowered):
            return _call(name, _find_json_object(question))
    for pattern, name, arguments in _ERRANDS:
        if name in tools and re.search(pattern, lowered):
            return _call(name, arguments)
    for pattern, write in _REPLIES:
        if re.search(pattern, lowered):
            return write if isinstance(write, _Reply) else write(chance)
    return _echo(question, chance) if lowered.strip() else _SILENCE


def _call(name: str, arguments: str) -> _Reply:
    thinking = f"I cannot know this by myself, but there is a tool for it: {name}. I will ask it."
    return _Reply(thinking, f"Let me ask `{name}`.", name, arguments)


def _find_json_object(question: str) -> str:
    """The JSON arguments in the question, so that any tool can be tried by hand."""
    try:
        found, _ = json.JSONDecoder().raw_decode(question, question.index("{"))
    except ValueError:
        return "{}"
    return json.dumps(found, ensure_ascii=False)


def _report(results: Sequence[content.ToolResult]) -> _Reply:
    """Report the tools' results."""
    failed = any(result.is_error for result in results)
    verdict = "That did not work, and I should say so plainly." if failed else "That is all I need."
    return _Reply(f"The tool has answered. {verdict}", "\n\n".join(map(_format_result, results)))


def _format_result(result: content.ToolResult) -> str:
    output = result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False)
    if result.is_error:
        return f"`{result.name}` did not give me an answer. It said: *{_quote(output)}*"
    if "\n" not in output.strip():
        return f"`{result.name}` answered: **{output.strip() or 'nothing at all'}**"
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`+", output))])
    return f"`{result.name}` answered:\n\n{fence}text\n{output.strip()}\n{fence}"


_HELP: Final = _Reply(
    "They want to know what I can do. I should be short, and honest that I am only a demo.",
    """\
## What you can try

I am the **demo model**: no key, no network, and no real intelligence. I am here so that you can see
how a conversation is saved.

- `tell me a long story`, and stop me in the middle: everything so far is saved
- `continue`, and I resume at the very word where I stopped
- `what time is it?` or `roll a die`: I call a *tool* and use its result
- `show me a table` or `show me some code`
- anything else: I reply with your own words

Every word you see was saved **before** it was shown. Try to lose one.""",
)


def _greet(chance: Random) -> _Reply:
    opening = chance.choice(["Hello!", "Hello there.", "Good to see you."])
    return _Reply(
        "A greeting. I greet back and explain what to try here.",
        f"""\
{opening} I am the **demo model** of Indelible. I need no key and no network.

Ask me for `help`, or just say *tell me a long story* and stop me in the middle of it.""",
    )


def _thank(chance: Random) -> _Reply:
    return _Reply(
        "Thanks are best answered briefly.",
        chance.choice(["You are welcome.", "With pleasure.", "Any time."]) + " Everything so far is saved.",
    )


_TABLE: Final = _Reply(
    "A table, then. What would be worth tabulating? What is saved, and when.",
    """\
### What is saved when you stop me

| You stop me while I am… | What stays |
| --- | --- |
| thinking | the thoughts so far |
| talking | every word you saw |
| writing a tool's arguments | the arguments as far as they got |
| waiting for a tool | what finished, and a note for what did not |

In **every** row I see exactly what you saw when you ask me the next thing.""",
)

_CODE: Final = _Reply(
    "They want code. The best example is a whole program that runs: this very chat, in a few lines.",
    """\
### One turn, as a program

This asks me a question and saves the answer:

```python
import asyncio

from indelible.content import Message, Text
from indelible.loop import run
from indelible.models.providers.demo import DemoModel


async def main() -> None:
    history = [Message(role="user", blocks=[Text(text="hello")])]
    end = await run(DemoModel(), history)
    history.extend(end.messages)
    print(history[-1].text)


asyncio.run(main())
```

Three things are worth a look:

1. `history` is a plain list: the loop knows **no database**.
2. `end` says how the turn ended, also when it was *stopped*.
3. `end.messages` is legal for the next call, whatever happened.""",
)


def _story(chance: Random) -> _Reply:
    keeper = chance.choice(["Marit", "Ansel", "Ottilie", "Iver", "Runa", "Tobias"])
    place = chance.choice(["Skarholm", "the Outer Ness", "Gull Rock", "Farrow Head"])
    ink = chance.choice(["oak gall", "lampblack", "cuttlefish", "walnut"])
    ship = chance.choice(["Patience", "Second Wind", "Halcyon", "Early Promise"])
    return _Reply(
        (
            f"A long story, so that there is time to stop me. It should be about keeping things. "
            f"Somebody who writes a log: {keeper}, at the light of {place}. Seven short chapters will do."
        ),
        _STORY.format(keeper=keeper, place=place, ink=ink, ship=ship),
    )


def _echo(question: str, chance: Random) -> _Reply:
    count = len(question.split())
    remark = chance.choice(
        [
            "I cannot think about it as a real model would, but I can show you that it arrived.",
            "A real model would have an opinion about that. I have only your words, and I keep them well.",
            "I am too simple to answer that properly, and too honest to pretend.",
        ]
    )
    return _Reply(
        f"I have no ready answer to these {count} words. I had better say so than make one up.",
        f"""\
You wrote:

> {_quote(question)}

{remark}

- Say `help` to see what I can do
- Say *tell me a long story* and stop me before it ends""",
    )


_NOTHING_LEFT: Final = _Reply(
    "They want me to continue, but no reply of mine was interrupted. I should say so.",
    "I had come to the *end* of what I wanted to say; nothing was cut. Stop me in the middle, then try again.",
)

_SILENCE: Final = _Reply(
    "There are no words in this message. Perhaps a slip of the finger.",
    "I found no words in your message. Send `help` to see *what you can try*.",
)

_ERRANDS: Final[list[tuple[str, str, str]]] = [
    (r"\bwhat('s| is)? (the )?(time|date|day)\b|\bhow late\b|\btime is it\b", "current_time", "{}"),
    (r"\b(roll|throw)\b.*\b(die|dice)\b", "roll_die", '{"sides": 6}'),
]
_REPLIES: Final[list[tuple[str, _Reply | Callable[[Random], _Reply]]]] = [
    (r"^\W*help\b|\bwhat can (you|i) (do|try)\b", _HELP),
    (r"^\W*(please )?(continue|go on|carry on|keep going)\b", _NOTHING_LEFT),
    (r"\bstory\b|\btale\b", _story),
    (r"\btable\b", _TABLE),
    (r"\bcode\b|\bprogram\b|\bpython\b", _CODE),
    (r"^\W*(hello|hi|hey|good (morning|evening|day))\b", _greet),
    (r"\b(thanks|thank you)\b", _thank),
]
