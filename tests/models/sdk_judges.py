"""The official SDKs as judges: of the requests that our adapters write, and of streams that claim to be a provider's.

The judge of a request is the SDK's own type for a streaming request with three changes that make it strict: lists are
checked at once instead of on iteration, an unknown field is an error anywhere, and the SDK's response objects, which it
also accepts in requests, do not excuse a dictionary. Every file that uses a judge has a test that it refuses what is
wrong.

The SDKs are imported when a judge is first asked, because importing them takes as long as collecting all other tests.
The files that ask one run in one process (GROUPS in tests/scheduling.py), so that one process imports them.
"""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator

from indelible.testing.provider import WireName

REQUESTS: Final[dict[WireName, str]] = {
    "anthropic": "anthropic.types.message_create_params:MessageCreateParamsStreaming",
    "openai": "openai.types.responses.response_create_params:ResponseCreateParamsStreaming",
    "openai-chat": "openai.types.chat.completion_create_params:CompletionCreateParamsStreaming",
}
EVENTS: Final[dict[WireName, str]] = {
    "anthropic": "anthropic.types:RawMessageStreamEvent",
    "openai": "openai.types.responses:ResponseStreamEvent",
    "openai-chat": "openai.types.chat:ChatCompletionChunk",
}


@cache
def make_request_judge(wire: WireName, *, lenient: bool = False) -> SchemaValidator:
    """Judges a body. A lenient judge ignores fields that the SDK does not name, at any depth: a dialect's own."""
    schema = TypeAdapter(resolve_name(REQUESTS[wire])).core_schema
    return SchemaValidator(_harden(schema, "ignore" if lenient else "forbid"))


@cache
def make_event_judge(wire: WireName) -> TypeAdapter[Any]:
    """Judges an event of a stream."""
    return TypeAdapter(resolve_name(EVENTS[wire]))


def _harden(schema: Any, unknown_fields: str) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)(_harden(each, unknown_fields) for each in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "model":
        named = {"ref": schema["ref"]} if "ref" in schema else {}
        return {"type": "is-instance", "cls": schema["cls"], **named}
    unused = {"metadata", "serialization"} if isinstance(kind, str) else set[str]()
    hardened = {name: _harden(each, unknown_fields) for name, each in schema.items() if name not in unused}
    if kind == "generator":
        hardened["type"] = "list"
    if kind == "typed-dict" and hardened.get("extra_behavior") != "allow":
        hardened["extra_behavior"] = unknown_fields
    return hardened
