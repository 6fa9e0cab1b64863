"""The unfinished items of a response: what was emitted of each, and what remains to emit when it is complete.

A message, reasoning, a call: each receives deltas, and the whole at the end, of which it emits only what no delta
contained. If the deltas are not a prefix of the whole, they cannot be retracted, so nothing is added to them.

Must stay true (tests/models/test_openai_responses.py): an incomplete item is never emitted as complete. response.py
maps events to items.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from indelible import content
from indelible.models.providers.openai_responses.request import Item, get_text

_ARGUMENTS: Final = ("action", "queries", "code", "revised_prompt", "server_label", "operation")
_RESULTS: Final = ("results", "outputs", "output", "result")


class OpenText(msgspec.Struct):
    """One text of a message: what was emitted of it, and how many sources."""

    id: str
    output_index: int
    content_index: int
    emitted: list[str] = []
    sources: int = 0

    def emit(self, delta: str) -> content.TextDelta:
        self.emitted.append(delta)
        return content.TextDelta(self.id, delta)


class OpenMessage(msgspec.Struct):
    texts: dict[int, OpenText] = {}


class OpenThought(msgspec.Struct):
    """Reasoning: a summary in parts or the text itself, with a blank line between parts."""

    id: str
    emitted: dict[tuple[str, int], list[str]] = {}
    part: tuple[str, int] | None = None

    def emit(self, part: tuple[str, int], delta: str) -> content.ReasoningDelta:
        self.emitted.setdefault(part, []).append(delta)
        if part != self.part:
            delta = delta if self.part is None else "\n\n" + delta
            self.part = part
        return content.ReasoningDelta(self.id, delta)

    def finish(self, item: Item) -> Iterator[content.Part]:
        for kind in ("summary", "content"):
            for at, piece in enumerate(list_objects(item.get(kind))):
                if rest := find_rest(get_text(piece, "text") or "", self.emitted.get((kind, at), [])):
                    yield self.emit((kind, at), rest)
        kept = {name: get_text(item, name) for name in ("id", "encrypted_content")}
        yield content.ReasoningEnd(self.id, metadata=kept if all(kept.values()) and is_whole(item) else None)


class OpenCall(msgspec.Struct):
    """A call, local or the provider's own. `wrapped_in` names the argument that its plain text becomes."""

    id: str
    name: str
    own: bool
    wrapped_in: str | None
    emitted: list[str] = []

    def emit(self, delta: str) -> content.ToolInputDelta:
        if self.wrapped_in is not None:
            opening = "" if self.emitted else f'{{"{self.wrapped_in}":"'
            delta = opening + msgspec.json.encode(delta)[1:-1].decode()
        self.emitted.append(delta)
        return content.ToolInputDelta(self.id, delta)

    def emit_rest(self, whole: str) -> Iterator[content.Part]:
        if rest := find_rest(whole, self.emitted):
            self.emitted.append(rest)
            yield content.ToolInputDelta(self.id, rest)

    def finish(self, item: Item) -> Iterator[content.Part]:
        whole = _describe_arguments(item, wrapped_in=self.wrapped_in) or self._close() or "{}"
        yield from self.emit_rest(whole)
        yield content.ToolInputEnd(self.id)
        if self.own:
            metadata: content.Metadata = {"item": item} if item else {}
        else:
            metadata = {"id": id_} if (id_ := get_text(item, "id")) else {}
            metadata |= {"custom": True} if self.wrapped_in else {}
        yield content.ToolCall(
            self.id,
            self.name or get_text(item, "name") or "",
            whole,
            provider_executed=self.own,
            standalone=self.own,
            metadata=metadata or None,
        )

    def _close(self) -> str:
        """The arguments from their deltas alone."""
        emitted = "".join(self.emitted)
        return f'{emitted}"}}' if emitted and self.wrapped_in is not None else emitted


def _describe_arguments(item: Item, *, wrapped_in: str | None) -> str:
    """The arguments of a complete call as JSON text; empty if it has none."""
    if wrapped_in is not None:
        text = get_text(item, wrapped_in)
        return msgspec.json.encode({wrapped_in: text}).decode() if text else ""
    arguments = item.get("arguments")
    if isinstance(arguments, str):
        return arguments
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    known = {name: item[name] for name in _ARGUMENTS if item.get(name)}
    action = known.pop("action", None)
    known |= action if isinstance(action, dict) else {}
    return msgspec.json.encode(known).decode() if known else ""


def find_rest(whole: str, emitted: list[str]) -> str:
    """What remains to emit; nothing if the emitted text differs, because it cannot be retracted."""
    begun = "".join(emitted)
    return whole[len(begun) :] if whole.startswith(begun) else ""


def list_objects(value: object) -> list[Item]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def is_whole(item: Item) -> bool:
    return item.get("status") in (None, "completed")


def read_results(call: OpenCall, item: Item) -> Iterator[content.Part]:
    """The result of one of the provider's own calls, as far as its item contains it."""
    error = item.get("error")
    output = error or next((item[name] for name in _RESULTS if item.get(name) is not None), None)
    if call.name == "image_generation" and isinstance(output, str):
        yield from read_image(output, get_text(item, "output_format") or "png")
    elif output is not None:
        yield content.ToolResult(call.id, call.name, output, is_error=bool(error), provider_executed=True)


def read_image(encoded: str, suffix: str) -> Iterator[content.Part]:
    subtype = "svg+xml" if suffix == "svg" else suffix
    with suppress(ValueError):
        yield content.File(f"image/{subtype}", name=f"image.{suffix}", data=b64decode(encoded, validate=True))


def name_own_call(kind: str, item: Item) -> str:
    """The name to show: an MCP tool's own name, if it is legal; else that of the provider's tool."""
    name = get_text(item, "name") or ""
    return name if re.fullmatch(content.TOOL_NAME, name) else kind.removesuffix("_call")


def identify_message(item: Item) -> content.Metadata | None:
    emitted = {name: get_text(item, name) for name in ("id", "phase")}
    return {name: value for name, value in emitted.items() if value} or None if is_whole(item) else None
