"""The texts of the demo model, and which question leads to which.

Each reply is a function of the question alone (and of a seeded `Random` where there is a choice), never of the rest of
the conversation. So model.py can tell from a history whether a reply was interrupted and how it would have continued:
it writes the reply again and compares. No reply ends with whitespace, so an interrupted one always lacks something
visible.

Every reply is Markdown, and together they use what a chat must be able to show: headings, lists, tables, fenced code,
quotes and emphasis. The code in the code reply really runs (tests/models/test_demo.py runs it).

model.py reads the prompt and streams the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from indelible.content import ToolResult

_LONGEST_QUOTE: Final = 240
_SHORTEST_FENCE: Final = 3


class DemoReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of one step: thinking, text, and perhaps a tool call."""

    thinking: str
    text: str
    tool: str | None = None
    arguments: str = "{}"


def write_reply(question: str, tools: Sequence[str], chance: Random) -> DemoReply:
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
            return write if isinstance(write, DemoReply) else write(chance)
    return _echo(question, chance) if lowered.strip() else _SILENCE


def report_results(results: Sequence[ToolResult]) -> DemoReply:
    """Report the tools' results."""
    failed = [result for result in results if result.is_error]
    verdict = "That did not work, and I should say so plainly." if failed else "That is all I need."
    return DemoReply(
        thinking=f"The tool has answered. {verdict}",
        text="\n\n".join(map(_format_result, results)) or "No tool answered, so I have nothing to tell.",
    )


def recall_cut(written: str) -> str:
    """The opening of a reply that follows an interrupted one."""
    tail = quote(" ".join(written.split()[-8:]))
    return (
        f"> My last reply was cut short. I know how far it got: it ended with “…{tail}”. "
        "Say *continue* and I go on from there.\n\n"
    )


def quote(text: str) -> str:
    """The text on one line, shortened if necessary."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_QUOTE else line[:_LONGEST_QUOTE].rstrip() + "…"


# --- tools -------------------------------------------------------------------------------

_ERRANDS: Final[list[tuple[str, str, str]]] = [
    (r"\bwhat('s| is)? (the )?(time|date|day)\b|\bhow late\b|\btime is it\b", "current_time", "{}"),
    (r"\b(roll|throw)\b.*\b(die|dice)\b", "roll_die", '{"sides": 6}'),
]


def _call(name: str, arguments: str) -> DemoReply:
    return DemoReply(
        thinking=f"I cannot know this by myself, but there is a tool for it: {name}. I will ask it.",
        text=f"Let me ask `{name}`.",
        tool=name,
        arguments=arguments,
    )


def _find_json_object(question: str) -> str:
    """The JSON arguments in the question, so that any tool can be tried by hand."""
    start = question.find("{")
    if start >= 0:
        try:
            found, _ = json.JSONDecoder().raw_decode(question, start)
        except ValueError:
            return "{}"
        return json.dumps(found, ensure_ascii=False)
    return "{}"


def _format_result(result: ToolResult) -> str:
    output = result.output if isinstance(result.output, str) else json.dumps(result.output, ensure_ascii=False)
    if result.is_error:
        return f"`{result.name}` did not give me an answer. It said: *{quote(output)}*"
    if "\n" in output.strip():
        longest_run = max(map(len, re.findall(r"`+", output)), default=0)
        fence = "`" * max(_SHORTEST_FENCE, longest_run + 1)
        return f"`{result.name}` answered:\n\n{fence}text\n{output.strip()}\n{fence}"
    return f"`{result.name}` answered: **{output.strip() or 'nothing at all'}**"


# --- replies -----------------------------------------------------------------------------


_HELP: Final = DemoReply(
    thinking="They want to know what I can do. I should be short, and honest that I am only a demo.",
    text="""\
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


def _greet(chance: Random) -> DemoReply:
    opening = chance.choice(["Hello!", "Hello there.", "Good to see you."])
    return DemoReply(
        thinking="A greeting. I greet back and explain what to try here.",
        text=f"""\
{opening} I am the **demo model** of Indelible. I need no key and no network.

Ask me for `help`, or just say *tell me a long story* and stop me in the middle of it.""",
    )


def _thank(chance: Random) -> DemoReply:
    return DemoReply(
        thinking="Thanks are best answered briefly.",
        text=chance.choice(["You are welcome.", "With pleasure.", "Any time."]) + " Everything so far is saved.",
    )


_TABLE: Final = DemoReply(
    thinking="A table, then. What would be worth tabulating? What is saved, and when.",
    text="""\
### What is saved when you stop me

| You stop me while I am… | What stays |
| --- | --- |
| thinking | the thoughts so far |
| talking | every word you saw |
| writing a tool's arguments | the arguments as far as they got |
| waiting for a tool | what finished, and a note for what did not |

In **every** row I see exactly what you saw when you ask me the next thing.""",
)


_CODE: Final = DemoReply(
    thinking="They want code. The best example is a whole program that runs: this very chat, in a few lines.",
    text="""\
### One turn, as a program

This asks me a question and saves the answer:

```python
import asyncio

from indelible.content import Message, Text
from indelible.loop import run
from indelible.models.providers.demo.model import DemoModel


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


def _story(chance: Random) -> DemoReply:
    keeper = chance.choice(["Marit", "Ansel", "Ottilie", "Iver", "Runa", "Tobias"])
    place = chance.choice(["Skarholm", "the Outer Ness", "Gull Rock", "Farrow Head"])
    ink = chance.choice(["oak gall", "lampblack", "cuttlefish", "walnut"])
    ship = chance.choice(["Patience", "Second Wind", "Halcyon", "Early Promise"])
    return DemoReply(
        thinking=(
            f"A long story, so that there is time to stop me. It should be about keeping things. "
            f"Somebody who writes a log: {keeper}, at the light of {place}. Seven short chapters will do."
        ),
        text=_STORY.format(keeper=keeper, place=place, ink=ink, ship=ship),
    )


def _echo(question: str, chance: Random) -> DemoReply:
    count = len(question.split())
    remark = chance.choice(
        [
            "I cannot think about it as a real model would, but I can show you that it arrived.",
            "A real model would have an opinion about that. I have only your words, and I keep them well.",
            "I am too simple to answer that properly, and too honest to pretend.",
        ]
    )
    return DemoReply(
        thinking=f"I have no ready answer to these {count} words. I had better say so than make one up.",
        text=f"""\
You wrote:

> {quote(question)}

{remark}

- Say `help` to see what I can do
- Say *tell me a long story* and stop me before it ends""",
    )


_NOTHING_LEFT: Final = DemoReply(
    thinking="They want me to continue, but no reply of mine was interrupted. I should say so.",
    text="I had come to the *end* of what I wanted to say; nothing was cut. Stop me in the middle, then try again.",
)

_SILENCE: Final = DemoReply(
    thinking="There are no words in this message. Perhaps a slip of the finger.",
    text="I found no words in your message. Send `help` to see *what you can try*.",
)


_REPLIES: Final[list[tuple[str, DemoReply | Callable[[Random], DemoReply]]]] = [
    (r"^\W*help\b|\bwhat can (you|i) (do|try)\b", _HELP),
    (r"^\W*(please )?(continue|go on|carry on|keep going)\b", _NOTHING_LEFT),
    (r"\bstory\b|\btale\b", _story),
    (r"\btable\b", _TABLE),
    (r"\bcode\b|\bprogram\b|\bpython\b", _CODE),
    (r"^\W*(hello|hi|hey|good (morning|evening|day))\b", _greet),
    (r"\b(thanks|thank you)\b", _thank),
]

_STORY: Final = """\
# The keeper of {place}

## 1. The rule

The light at {place} had a rule that was older than its lamp: *write it down before you tell it*. Whoever kept the
light kept the log as well, in {ink} ink, which does not wash out. A ship that was seen was written down first and
called out second. A storm was written down before the shutters were closed.

{keeper} thought the rule was foolish. "If I see a ship in trouble," said {keeper}, "should I look for a pen?"

"Yes," said the old keeper. "It takes one breath. And then it has happened."

## 2. The first winter

For a month nothing came to pass that was worth the ink. {keeper} wrote down gulls. {keeper} wrote down the colour of
the water, which was grey, and then a different grey. By the solstice the log held four hundred lines, and not one of
them would have interested a living soul.

But a habit had grown meanwhile, the way ice grows on a rope: thinly, and then all at once.

## 3. The night of the {ship}

In January the wind went round to the north. A little after two, a sail showed where no sail should be. {keeper} took
one breath, wrote *two o'clock, one sail, north-north-east, too close*, and ran for the bell.

On the stair the lamp went out.

There was no light then, and no bell, for the rope had broken in the frost. There was only a dark room, a smell of oil,
and somebody lying at the foot of the stairs with a broken leg, who could remember nothing at all: not the sail, not
the hour, not why the door stood open.

## 4. Whoever comes next

The relief boat had been late for three days. That night it was not. Two men came up the path with a lantern, found
the keeper and found the cold lamp, and did what people do: they asked what had happened.

"I don't know," said {keeper}.

One of the men held the lantern to the desk. The ink was still wet. *Two o'clock, one sail, north-north-east, too
close.* It was nine minutes past.

They did not stop to admire it. One went up to the lamp and one went down to the boat, and both went on with a piece
of work that somebody else had begun.

## 5. What the {ship} saw

The crew of the {ship} told it differently, as crews do. They had seen a light; they had seen it go out; they had
counted slowly, for there was nothing else to do. When they had come to five hundred, the light was there again, and
under it, on the water, a lantern that swung from side to side and meant *not here, not here, come round*.

"It paused," said the mate. "That is all I would call it. It paused, and then it went on."

## 6. The quarrel

In spring a gentleman came from the harbour office, who had to find somebody to blame. He turned the pages of the log.
There were the gulls, there were the two greys, and there was the line about the sail. After it, in another hand, stood
*nine past two, keeper hurt, lamp relit, boat out*.

"There is a gap here," he said. "Nine minutes."

"Yes," said {keeper}. "You can see exactly where it begins and where it ends. How many gaps have *you* had that you
could say that of?"

The gentleman thought about this for rather a long time. Then he asked what the ink was made of.

## 7. The rule, again

{keeper} kept the light at {place} for thirty-one years and limped a little in the cold. When the next keeper came up
the path, young and clever and in a hurry, there was a pen lying ready on the desk.

"If I see a ship in trouble," the young one began.

"One breath," said {keeper}. "And then it has happened, and nobody can make it not have happened. Not the dark, not the
stairs. Not even you."

And that was written down as well.

*The end.*"""
