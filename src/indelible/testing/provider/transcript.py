"""A history, read back from a request into the messages of a `Call`.

Wire formats merge and split messages; this is the one place that decides what the model sees: each text of a user is a
message of its own (files join the text before them), consecutive assistant content is one message, and consecutive
results are one tool message. A result gets the name of its call, which no wire format repeats.

The two checks at the end are those that every provider makes of a history with tool calls.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from indelible.content import Block, File, Role, Text, ToolCall, ToolResult
from indelible.models.protocol import PromptMessage
from indelible.testing.provider.refusals import Refusal

_ONE_MESSAGE: Final = frozenset({"assistant", "tool"})


class Transcript:
    """Add blocks in conversation order; `messages` is what the model will read."""

    def __init__(self) -> None:
        self.messages: list[PromptMessage] = []
        self._names: dict[str, str] = {}

    def add(self, role: Role, block: Block, *, cache: bool = False) -> None:
        if isinstance(block, ToolCall):
            self._names[block.id] = block.name
        if isinstance(block, ToolResult):
            block = replace(block, name=self._names.get(block.call_id, ""))
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == role and (role in _ONE_MESSAGE or not isinstance(block, Text)):
            self.messages[-1] = replace(last, blocks=[*last.blocks, block], cache=last.cache or cache)
        else:
            self.messages.append(PromptMessage(role=role, blocks=[block], cache=cache))


def read_file(url: str, *, name: str | None = None, media_type: str = "image/*") -> File:
    """A file from its URL, which may be a data URL."""
    head, comma, data = url.partition(",")
    if not (head.startswith("data:") and comma):
        return File(media_type=media_type, name=name, url=url)
    media_type = head.removeprefix("data:").partition(";")[0]
    return File(media_type=media_type, name=name, data=decode_base64(data))


def decode_base64(data: Any) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise Refusal("Invalid base64 data.", code="invalid_base64") from error


# --- checks ------------------------------------------------------------------------------


def find_unanswered(messages: Sequence[PromptMessage], *, at_once: bool) -> list[str]:
    """The calls without a result: `at_once` in the very next message, else anywhere."""
    answered = _list_results(messages)
    missing: list[str] = []
    for at, message in enumerate(messages):
        calls = _list_calls([message])
        if calls and at_once:
            answered = _list_results(messages[at + 1 : at + 2])
        missing += [call_id for call_id in calls if call_id not in answered]
    return missing


def find_orphans(messages: Sequence[PromptMessage], *, at_once: bool) -> list[str]:
    """The results without a call: `at_once` in the message right before, else anywhere."""
    called = _list_calls(messages)
    orphans: list[str] = []
    for at, message in enumerate(messages):
        results = _list_results([message])
        if results and at_once:
            called = _list_calls(messages[max(at - 1, 0) : at])
        orphans += [call_id for call_id in results if call_id not in called]
    return orphans


def _list_calls(messages: Sequence[PromptMessage]) -> dict[str, ToolCall]:
    blocks = [block for message in messages for block in message.blocks]
    return {block.id: block for block in blocks if isinstance(block, ToolCall) and not block.provider_executed}


def _list_results(messages: Sequence[PromptMessage]) -> dict[str, ToolResult]:
    blocks = [block for message in messages for block in message.blocks]
    return {block.call_id: block for block in blocks if isinstance(block, ToolResult) and not block.provider_executed}
