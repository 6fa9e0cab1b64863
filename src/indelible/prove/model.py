"""The model and the tools of the server that is killed.

The model remembers nothing, as a real one does not: it reads the last wish and what was said since from its prompt,
and goes on behind the last word. Told a history in which its own words are wrong, it fails, and the turn with it.

A run of a tool is a line in the notebook, a file that outlives every server: its name and its idempotency key, written
in one piece before the tool returns. `jot_once` must not run twice; `jot_again` says that it may.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from indelible.content import (
    Finish,
    Part,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Text,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
)
from indelible.errors import ModelFailed
from indelible.models.port import Call, PromptMessage
from indelible.prove.points import Points
from indelible.prove.script import Wish
from indelible.tools.port import Tool, ToolContext, tool

MODEL: Final = "proof"
ONCE: Final = "jot_once"
AGAIN: Final = "jot_again"
SAFE_TOOLS: Final = frozenset({AGAIN})
_TOOL_S: Final = 0.05


class ProofModel:
    provider: Final = MODEL
    name: Final = MODEL
    context_limit: Final = None
    makes_titles: Final = False

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        wish, since = _find_wish(call.messages)
        words = wish.list_words()
        said = "".join(_read_text(message) for message in since if message.role == "assistant").split()
        if said != [word.strip() for word in words[: len(said)]]:
            raise ModelFailed(f"The model was told that it said {said}.", kind="config", retryable=False)
        has_called = any(isinstance(block, ToolCall) for message in since for block in message.blocks)
        until = len(words) if has_called else wish.words_before_tools
        pace_s = wish.pace_ms / 1000
        if wish.thoughts and not since:
            async for part in _think(wish.thoughts, pace_s):
                yield part
        if len(said) < until:
            yield TextStart("text")
            for word in words[len(said) : until]:
                await asyncio.sleep(pace_s)
                yield TextDelta("text", word)
            yield TextEnd("text")
        if until == len(words):
            yield Finish("stop")
            return
        for at in range(wish.tools):
            for part in _call_tool(f"call_{at}", (ONCE, AGAIN)[at % 2]):
                await asyncio.sleep(pace_s)
                yield part
        yield Finish("tool_calls")


async def _think(thoughts: int, pace_s: float) -> AsyncIterator[Part]:
    yield ReasoningStart("thinking")
    for place in range(thoughts):
        await asyncio.sleep(pace_s)
        yield ReasoningDelta("thinking", f"thought-{place} ")
    yield ReasoningEnd("thinking")


def _call_tool(call_id: str, name: str) -> list[Part]:
    said: list[Part] = [ToolInputStart(call_id, name), ToolInputDelta(call_id, "{"), ToolInputDelta(call_id, "}")]
    return [*said, ToolInputEnd(call_id), ToolCall(id=call_id, name=name, arguments="{}")]


def _find_wish(messages: Sequence[PromptMessage]) -> tuple[Wish, Sequence[PromptMessage]]:
    """The user's last wish, and what was said and done since."""
    for at in reversed(range(len(messages))):
        wish = Wish.parse(_read_text(messages[at])) if messages[at].role == "user" else None
        if wish is not None:
            return wish, messages[at + 1 :]
    raise ModelFailed("Nobody has a wish that this model knows.", kind="config", retryable=False)


def _read_text(message: PromptMessage) -> str:
    return "".join(block.text for block in message.blocks if isinstance(block, Text))


# --- tools ---


def make_tools(notebook: Path, points: Points) -> list[Tool[Any, Any]]:
    async def jot(context: ToolContext) -> str:
        await points.pass_by("before_effect")
        line = f"{context.name} {context.idempotency_key}\n"
        handle = os.open(notebook, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        await points.pass_by("after_effect")
        await asyncio.sleep(_TOOL_S)
        return f"noted {context.idempotency_key}"

    return [
        tool(jot, name=ONCE, description="Note something. Twice would be wrong."),
        tool(jot, name=AGAIN, description="Note something. Twice does no harm.", idempotent=True),
    ]


def read_notebook(notebook: Path) -> list[tuple[str, str]]:
    """Every run of a tool: its name and its idempotency key."""
    if not notebook.exists():
        return []
    return [(name, key) for name, key in (line.split() for line in notebook.read_text().splitlines())]
