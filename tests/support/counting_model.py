"""A model whose every reply is known in advance, and tools that leave a trace of every run.

`ask_to_count(40)` is a message whose reply is `count(40)`: "1 2 3 … 40 ", a word at a time, at a pace that the message
names. A `HurriedModel` makes no more pauses once the test wants replies to end; a `PatientModel` does not end before.
The model remembers nothing. How far it has come it reads from the replies that follow the message, as a real model
would, and goes on behind the last word: so whatever happens to the workers, the reply is the same text, and a word that
is said twice, or never, is seen at once.

`CALL_TOOLS` makes it call all four tools in one step, and then tell what each of them answered. Each run of a tool is
a line in the notebook, a file that outlives every process: its name and its idempotency key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from indelible.clock import SystemClock
from indelible.content import Finish, Part, Text, TextDelta, TextEnd, TextStart, ToolCall, ToolResult
from indelible.models.protocol import Call, ModelTraits, PromptMessage
from indelible.tools.tool import Tool, ToolContext, tool

CALL_TOOLS: Final = "Call all your tools."
TOOL_NAMES: Final = ("quick", "risky", "repeatable", "late")
"""In the order in which they are called."""

_SLOW_S: Final = 0.2
_WISH: Final = re.compile(r"Count to (\d+), (\d+) ms a word(, in a block of code)?\.")
_FENCE: Final = "```"


def ask_to_count(count_to: int, *, pace_ms: int = 10, as_code: bool = False) -> str:
    return f"Count to {count_to}, {pace_ms} ms a word{', in a block of code' if as_code else ''}."


def count(count_to: int) -> str:
    """The whole reply."""
    return "".join(f"{number} " for number in range(1, count_to + 1))


def read_reply_to(wish: str) -> str:
    """The reply that this message will get."""
    found = _WISH.fullmatch(wish)
    assert found is not None, wish
    return count(int(found[1]))


class CountingModel:
    """`pause` is what it does before each word."""

    provider: Final = "counting"
    name: Final = "counting"
    context_limit: Final = None
    traits: Final = ModelTraits(makes_titles=False)

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        wish, said = _read_turn(call.messages)
        if wish == CALL_TOOLS:
            for part in _call_or_report(said):
                yield part
            return
        found = _WISH.fullmatch(wish)
        assert found is not None, wish
        text = "".join(_text_of(message) for message in said if message.role == "assistant")
        numbers = [int(word) for word in text.split() if word.isdigit()]
        yield TextStart("text")
        if found[3] and _FENCE not in text:
            yield TextDelta("text", f"{_FENCE}\n")
        for number in range(numbers[-1] + 1 if numbers else 1, int(found[1]) + 1):
            await self.pause(int(found[2]) / 1000)
            yield TextDelta("text", f"{number} ")
        if found[3]:
            yield TextDelta("text", f"\n{_FENCE}")
        yield TextEnd("text")
        yield Finish("stop")

    async def pause(self, pace_s: float) -> None:
        await SystemClock().sleep(pace_s)


class HurriedModel(CountingModel):
    """Makes no pauses any more as soon as there is a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def pause(self, pace_s: float) -> None:
        await super().pause(0 if self._file.exists() else pace_s)


class PatientModel(CountingModel):
    """Counts slowly until there is a file, and has not ended before there is one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        async for part in super().stream(call):
            if not self._file.exists():
                await super().pause(_SLOW_S)
            while isinstance(part, TextEnd) and not self._file.exists():
                await super().pause(_SLOW_S)
            yield part


def _read_turn(messages: Sequence[PromptMessage]) -> tuple[str, Sequence[PromptMessage]]:
    """The last wish of the user's own, and what was said and done since."""
    for at in reversed(range(len(messages))):
        text = _text_of(messages[at])
        if messages[at].role == "user" and (text == CALL_TOOLS or _WISH.fullmatch(text)):
            return text, messages[at + 1 :]
    raise AssertionError("nobody wants anything")


def _call_or_report(said: Sequence[PromptMessage]) -> list[Part]:
    results = [block for message in said for block in message.blocks if isinstance(block, ToolResult)]
    if not results:
        calls = [ToolCall(id=f"call_{name}", name=name, arguments="{}") for name in TOOL_NAMES]
        return [*calls, Finish("tool_calls")]
    report = "\n".join(f"{result.name}: {result.output}" for result in results)
    return [TextStart("text"), TextDelta("text", report), TextEnd("text"), Finish("stop")]


def _text_of(message: PromptMessage) -> str:
    return "".join(block.text for block in message.blocks if isinstance(block, Text))


# --- tools ---


def make_tools(notebook: Path) -> list[Tool[Any, Any]]:
    """One of each kind. A first run of `risky` or `repeatable` never ends, and `late` waits for `risky` to end."""

    def note(context: ToolContext) -> int:
        """Gives how often the tool has run by now."""
        with notebook.open("a") as file:
            file.write(f"{context.name} {context.idempotency_key}\n")
        return sum(line.startswith(f"{context.name} ") for line in notebook.read_text().splitlines())

    @tool
    async def quick(context: ToolContext) -> str:
        """It has ended before anything happens."""
        return f"run {note(context)}"

    @tool(serial=True)
    async def risky(context: ToolContext) -> str:
        """Running it twice would do harm."""
        runs = note(context)
        if runs == 1:
            await asyncio.Event().wait()
        return f"run {runs}"

    @tool(idempotent=True)
    async def repeatable(context: ToolContext) -> str:
        """Running it twice does none."""
        runs = note(context)
        if runs == 1:
            await asyncio.Event().wait()
        return f"run {runs}"

    @tool(serial=True)
    async def late(context: ToolContext) -> str:
        """It has to wait for its turn."""
        return f"run {note(context)}"

    return [quick, risky, repeatable, late]


def read_notebook(notebook: Path) -> list[tuple[str, str]]:
    """Each run of a tool: its name and its idempotency key."""
    if not notebook.exists():
        return []
    return [(name, key) for name, key in (line.split() for line in notebook.read_text().splitlines())]
