"""How much a user may store in one chat, checked before a transaction begins (rule 3.3).

A worker loads the fields of a chat for every turn, and readers load its messages again and again: a field without a
limit is a way to fill the memory of every process. Names have fixed limits; the limits of content are settings. They
hold for the library and for HTTP alike, because they are checked here.

Must stay true (tests/store/test_store_limits.py): what is too large changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from indelible.api.inputs import MAX_DESCRIPTION, MAX_LABEL, MAX_LABELS, MAX_NAME, MAX_TITLE, MAX_TOOLS
from indelible.content import TOOL_NAME, ToolSpec, encode
from indelible.errors import Invalid, TooLarge
from indelible.store.payloads import AddedHistory, ChatPatch, NewChat, Payload, QueuedInput, ToolResultsInput, UserInput


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a chat may queue, and how large its content may be."""

    queued: int = 20
    message_bytes: int = 256 * 1024
    system_bytes: int = 256 * 1024
    parameters_bytes: int = 16 * 1024
    tools_bytes: int = 64 * 1024
    tool_result_bytes: int = 4 * 1024 * 1024


def check_payload(payload: Payload[Any] | None, limits: StoreLimits) -> None:
    """Raises `TooLarge` or `Invalid` if the payload holds too much."""
    if isinstance(payload, NewChat | UserInput | QueuedInput) and payload.blocks:
        _check_size("Message", len(encode(payload.blocks)), limits.message_bytes)
    if isinstance(payload, NewChat | AddedHistory):
        for message in (*payload.history, *(payload.progress if isinstance(payload, NewChat) else ())):
            _check_size("Message", len(encode(message.blocks)), limits.message_bytes)
    if isinstance(payload, NewChat | UserInput | ToolResultsInput) and payload.request is not None:
        _check_size("Request", len(encode(payload.request)), limits.message_bytes)
    if isinstance(payload, NewChat | ChatPatch):
        _check_fields(payload, limits)
    if isinstance(payload, ToolResultsInput):
        for result in payload.results:
            _check_size("Tool result", len(result.output.encode(errors="surrogatepass")), limits.tool_result_bytes)
            _check_size("Files of a tool result", len(encode(result.files)), limits.message_bytes)


def _check_fields(given: NewChat | ChatPatch, limits: StoreLimits) -> None:
    _check_length("title", given.title, MAX_TITLE)
    _check_length("model", given.model, MAX_NAME)
    if isinstance(given.system_prompt, str):
        _check_size("Instructions", len(encode(given.system_prompt)), limits.system_bytes)
    if isinstance(given.parameters, dict):
        _check_size("Parameters", len(encode(given.parameters)), limits.parameters_bytes)
    if isinstance(given.tools, list):
        _check_tools(given.tools, limits)
    for labels in (given.labels, given.label_pairs if isinstance(given, ChatPatch) else None):
        check_labels(labels if isinstance(labels, list) else [])


def check_labels(labels: Sequence[str]) -> None:
    """Raises `Invalid` if a chat cannot have so many labels, or such long ones."""
    if len(labels) > MAX_LABELS:
        raise Invalid(f"labels: at most {MAX_LABELS}.")
    for label in labels:
        _check_length("label", label, MAX_LABEL)


def _check_tools(tools: Sequence[ToolSpec], limits: StoreLimits) -> None:
    if len(tools) > MAX_TOOLS:
        raise Invalid(f"tools: at most {MAX_TOOLS}.")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise Invalid("tools: two of them have the same name.")
    for tool in tools:
        if re.fullmatch(TOOL_NAME, tool.name) is None:
            raise Invalid("tool: a name is 1 to 64 letters, digits, _ or -.")
        _check_length("description", tool.description, MAX_DESCRIPTION)
    _check_size("Tools", len(encode(tools)), limits.tools_bytes)


def _check_length(name: str, text: object, limit: int) -> None:
    if isinstance(text, str) and len(text) > limit:
        raise Invalid(f"{name}: at most {limit:,} characters.")


def _check_size(what: str, size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise TooLarge(f"{what} too long: {size_bytes:,} bytes (limit {limit_bytes:,}).")
