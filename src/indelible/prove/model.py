"""The model of a proof.

The model is stateless, as a real one is: it reads the last wish and its own words since then from its prompt, and
continues after the last word. If the history has wrong words of its own, it fails, and the turn fails with it. Only its
tool calls are numbered: each has a `note` of its own among its arguments, by which everybody recognises it, because the
ids of the calls repeat in every reply.

The servers call it over HTTP (provider.py), so its prompt was encoded in a wire format and decoded again: notices and
instructions to continue appear as the user's text, and a wire format may merge several texts into one.

Must stay true (tests/prove/test_proof_model.py): with every wire format it continues the newest wish, after its last
word.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from indelible import content
from indelible.errors import ModelFailed
from indelible.models.protocol import Call, PromptMessage
from indelible.prove.script import Wish
from indelible.prove.tools import AGAIN, ASK, DRAW, ONCE


class ProofModel:
    """`on_call` is called with every model call, before its reply begins."""

    provider: Final = "proof"
    name: Final = "proof"
    context_limit: Final = None

    def __init__(self, *, on_call: Callable[[Call], None]) -> None:
        self._on_call = on_call
        self._notes = itertools.count(1)

    async def stream(self, call: Call) -> AsyncIterator[content.Part]:
        self._on_call(call)
        wish, since = _find_wish(call.messages)
        words = wish.list_words()
        written = "".join(content.text_of(message.blocks) for message in since if message.role == "assistant").split()
        if written != [word.strip() for word in words[: len(written)]]:
            raise ModelFailed(f"The history claims that the model wrote {written}.", kind="config", retryable=False)
        has_called = any(isinstance(block, content.ToolCall) for message in since for block in message.blocks)
        until = len(words) if has_called else wish.words_before_tools
        usage = content.Usage(input_tokens=len(call.messages), output_tokens=count_output(until - len(written)))
        pace_s = wish.pace_ms / 1000
        if wish.thoughts and not since:
            async for part in _think(wish.thoughts, pace_s):
                yield part
        if len(written) < until:
            yield content.TextStart("text")
            for word in words[len(written) : until]:
                await asyncio.sleep(pace_s)
                yield content.TextDelta("text", word)
            yield content.TextEnd("text")
        if until == len(words):
            yield content.Finish("stop", usage=usage)
            return
        calls = [(f"call_{at}", (ONCE, AGAIN, DRAW)[at % 3]) for at in range(wish.tools)]
        for call_id, name in [*calls, *((f"ask_{at}", ASK) for at in range(wish.asks))]:
            for part in self._call_tool(call_id, name, wish):
                await asyncio.sleep(pace_s)
                yield part
        yield content.Finish("tool_calls", usage=usage)

    def _call_tool(self, call_id: str, name: str, wish: Wish) -> list[content.Part]:
        arguments = json.dumps({"note": f"{wish.number}-{next(self._notes)}"})
        half = len(arguments) // 2
        written: list[content.Part] = [content.ToolInputStart(call_id, name)]
        written += [content.ToolInputDelta(call_id, piece) for piece in (arguments[:half], arguments[half:])]
        return [*written, content.ToolInputEnd(call_id), content.ToolCall(id=call_id, name=name, arguments=arguments)]


def count_output(words: int) -> int:
    """The tokens of a call that says so many words: never none, so that a missing count is noticed."""
    return max(0, words) + 1


def read_note(arguments: str) -> str:
    """The note of a call; empty if its arguments are not complete."""
    try:
        return str(json.loads(arguments).get("note", ""))
    except (ValueError, AttributeError):
        return ""


async def _think(thoughts: int, pace_s: float) -> AsyncIterator[content.Part]:
    yield content.ReasoningStart("thinking")
    for place in range(thoughts):
        await asyncio.sleep(pace_s)
        yield content.ReasoningDelta("thinking", f"thought-{place} ")
    yield content.ReasoningEnd("thinking")


def _find_wish(messages: Sequence[PromptMessage]) -> tuple[Wish, Sequence[PromptMessage]]:
    """The user's last wish, and what the model has written and called since."""
    for at in reversed(range(len(messages))):
        wishes = Wish.find_all(content.text_of(messages[at].blocks)) if messages[at].role == "user" else []
        if wishes:
            return wishes[-1][1], [message for message in messages[at + 1 :] if message.role != "user"]
    raise ModelFailed("The prompt has no wish that this model knows.", kind="config", retryable=False)
