"""A model that does what the prompt asks for, so that a client can be tested without a provider.

    … hold …        writes ten words of a story, then waits until the file `release` exists beside the database
    … here …        calls the server's tool `weather_here`
    … tool …        calls the first tool of the client
    … shell …       calls the tool `exec_command` of the client, which is Codex's, to read the file `greeting.txt`
    recite          repeats the whole conversation as the model got it
    a JSON schema   answers with an object that fits
    anything else   repeats what was said

A story that was cut goes on at the word at which it was cut. Nothing here depends on time: a test decides when a held
story may go on, and kills the server in the middle of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from indelible.content import Block, Part, Text, ToolCall, ToolResult, Usage, encode
from indelible.loop.prompt.build import CUT_REMARK
from indelible.models.protocol import Call, ModelTraits, PromptMessage
from indelible.store.commands.change import CONTINUE
from indelible.testing import parts

STORY: Final = " ".join(f"word{number}" for number in range(40))
HELD_AT: Final = 10
OWN_TOOL: Final = "weather_here"
BROWSER_TOOL: Final = "confirm"
_OURS: Final = (CONTINUE, CUT_REMARK)
_CALL: Final = '{"city": "Oslo"}'
_SHELL_TOOL: Final = "exec_command"
_SHELL_CALL: Final = '{"cmd": "cat greeting.txt"}'


class CompatModel:
    provider = "compat"
    name = "compat"
    context_limit = None
    traits = ModelTraits(makes_titles=False)

    def __init__(self, release: Path) -> None:
        self._release = release
        self._calls = 0

    async def stream(self, call: Call) -> AsyncIterator[Part]:
        asked = _find_asked(call)
        last = call.messages[-1]
        self._calls += 1
        counted = Usage(input_tokens=7, output_tokens=5)
        if last.role == "tool":
            results = [block.output for block in last.blocks if isinstance(block, ToolResult)]
            text = f"The tool says: {results[-1]}."
        elif wanted := call.parameters.get("format"):
            text = encode(_make_sample(wanted.get("schema") or {})).decode()
        elif "hold" in asked:
            text = ""
        elif name := _choose_tool(call, asked):
            call_id = f"call_{id(self):x}_{self._calls}"
            arguments = _SHELL_CALL if name == _SHELL_TOOL else _CALL
            yield parts.tool_input_start(call_id, name)
            yield parts.tool_input_delta(call_id, arguments)
            yield parts.tool_input_end(call_id)
            yield parts.tool_call(call_id, name, arguments)
            yield parts.finish("tool_calls", usage=counted)
            return
        else:
            text = _recite(call) if asked == "recite" else f"You said: {asked}"
        yield parts.text_start("1")
        async for piece in self._tell(call) if "hold" in asked else _split(text):
            yield parts.text_delta("1", piece)
        yield parts.text_end("1")
        yield parts.finish(usage=counted)

    async def _tell(self, call: Call) -> AsyncIterator[str]:
        said = len(_find_said(call))
        left = STORY[said:]
        for number, word in enumerate(left.split(" ")):
            written = said + sum(len(each) + 1 for each in left.split(" ")[:number])
            if STORY[:written].count(" ") >= HELD_AT:
                await self._wait()
            yield word if number == 0 else f" {word}"

    async def _wait(self) -> None:
        while not self._release.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.02)


async def _split(text: str) -> AsyncIterator[str]:
    for number, word in enumerate(text.split(" ")):
        yield word if number == 0 else f" {word}"


def _find_question(call: Call) -> int:
    """Where the user's last own message stands. An instruction to continue a reply is in the user's role, too."""
    asked = [at for at, message in enumerate(call.messages) if message.role == "user" and _read(message) not in _OURS]
    return asked[-1] if asked else 0


def _find_asked(call: Call) -> str:
    return _read(call.messages[_find_question(call)])


def _find_said(call: Call) -> str:
    """What the reply that is to be continued has said so far: the messages of the assistant since the question."""
    since = call.messages[_find_question(call) :]
    return "".join(_read(message) for message in since if message.role == "assistant")


def _recite(call: Call) -> str:
    return "\n".join(f"{message.role}: {line}" for message in call.messages for line in map(_describe, message.blocks))


def _describe(block: Block) -> str:
    match block:
        case ToolCall():
            return f"called {block.name}({block.arguments.replace(' ', '')})"
        case ToolResult():
            return str(block.output)
        case _:
            return getattr(block, "text", "")


def _read(message: PromptMessage) -> str:
    return "".join(block.text for block in message.blocks if isinstance(block, Text))


def _choose_tool(call: Call, asked: str) -> str | None:
    """The tool that is asked for. What a request brings along comes before the tool of every browser."""
    words = re.findall(r"\w+", asked)
    if "shell" in words and any(tool.name == _SHELL_TOOL for tool in call.tools):
        return _SHELL_TOOL
    names = sorted((tool.name for tool in call.tools if tool.name != OWN_TOOL), key=lambda name: name == BROWSER_TOOL)
    if "here" in words and any(tool.name == OWN_TOOL for tool in call.tools):
        return OWN_TOOL
    return names[0] if "tool" in words and names else None


def _make_sample(schema: dict[str, Any]) -> Any:
    kinds: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "null": None}
    if schema.get("type") == "object":
        return {name: _make_sample(each) for name, each in schema.get("properties", {}).items()}
    return kinds.get(str(schema.get("type")), "Oslo")
