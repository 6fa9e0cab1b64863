"""The request for a chat completion: its messages, and how the turn is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

from indelible.content import Block, Message, Reasoning, ToolCall
from indelible.errors import Invalid
from indelible.server.wires.content import join_neighbours, read_file
from indelible.server.wires.openai.items import check_objects, make_result, read_content
from indelible.server.wires.openai.responses.request import FunctionTool, Metadata, ToolRequest, read_choice
from indelible.server.wires.requests import WireBody
from indelible.service.turns import TurnSettings


class CompletionFunction(FunctionTool, kw_only=True):
    type: str = "function"


class CompletionTool(WireBody, kw_only=True):
    """A tool of another type has no function; it is left out, as in Responses."""

    type: str = "function"
    function: CompletionFunction | None = None
    custom: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.type == "function" and self.function is None:
            raise ValueError("a tool of type function needs its function")

    def to_tool(self) -> FunctionTool:
        named = self.function or CompletionFunction(name=str((self.custom or {}).get("name") or ""))
        return replace(named, type=self.type)


class CompletionRequest(ToolRequest, kw_only=True):
    off: ClassVar = {
        "n": [1],
        "logprobs": [False],
        "top_logprobs": [0],
        "logit_bias": [{}],
        "modalities": [[], ["text"]],
        "audio": [],
        "functions": [[]],
        "function_call": ["none", "auto"],
        "web_search_options": [],
    }

    messages: list[dict[str, Any]]
    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[CompletionTool] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    store: bool | None = None

    @property
    def wants_usage(self) -> bool:
        return bool((self.stream_options or {}).get("include_usage"))

    def to_settings(self, system: str | None) -> TurnSettings:
        parameters = self._to_parameters() or None
        return TurnSettings(model=self.model, system=system, parameters=parameters, tools=self.to_specs())

    @property
    def declared(self) -> list[FunctionTool]:
        return [tool.to_tool() for tool in self.tools or ()]

    def _to_parameters(self) -> dict[str, Any]:
        named = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "seed": self.seed,
            "stop": self.stop,
            "effort": self.reasoning_effort,
            "verbosity": self.verbosity,
            "format": _read_format(self.response_format),
            "tool_choice": read_choice(self.tool_choice) if self.served else None,
            "parallel_tool_calls": self.parallel_tool_calls if self.served else None,
            "service_tier": None if self.service_tier == "auto" else self.service_tier,
            "metadata": self.metadata or None,
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
            "user": self.user,
        }
        return {name: value for name, value in named.items() if value is not None}


def _read_format(given: dict[str, Any] | None) -> dict[str, Any] | None:
    if given is None or given.get("type") == "text":
        return None
    schema = given.get("json_schema")
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else given


def read_messages(given: Sequence[dict[str, Any]]) -> list[Message]:
    """The messages of the request."""
    return join_neighbours([_read_message(message) for message in given])


def _read_message(given: dict[str, Any]) -> Message:
    match given.get("role"):
        case "system" | "developer":
            return Message(role="system", blocks=_read_parts(given.get("content")))
        case "user":
            return Message(role="user", blocks=_read_parts(given.get("content")))
        case "assistant":
            return Message(role="assistant", blocks=_read_reply(given))
        case "tool":
            call_id, name = str(given.get("tool_call_id")), str(given.get("name") or "")
            result = make_result(call_id, _read_parts(given.get("content")), name=name)
            return Message(role="tool", blocks=[result])
        case role:
            raise Invalid(f"messages: the role {str(role)[:40]!r} is not supported.")


def _read_reply(given: dict[str, Any]) -> list[Block]:
    """What the assistant said, in this form: thinking, text, calls. What has no place here is refused."""
    for name in ("audio", "function_call"):
        if given.get(name) is not None:
            raise Invalid(f"messages: {name!r} of an assistant's message is not supported.")
    thought, refusal = given.get("reasoning_content"), given.get("refusal")
    texts = [*_read_parts(given.get("content") or ""), *_read_parts(refusal or "")]
    return [
        *([Reasoning(thought)] if isinstance(thought, str) and thought else []),
        *(block for block in texts if getattr(block, "text", "x")),
        *map(_read_call, check_objects(given.get("tool_calls") or [], "tool_calls")),
    ]


def _read_call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, dict):
        raise Invalid("messages: only calls of functions are supported.")
    return ToolCall(id=str(call.get("id")), name=str(function.get("name")), arguments=str(function.get("arguments")))


def _read_parts(content: Any) -> list[Block]:
    if not isinstance(content, list):
        return read_content(content)
    return [block for part in check_objects(content, "content") for block in _read_part(part)]


def _read_part(part: dict[str, Any]) -> list[Block]:
    kind, body = part.get("type"), part.get(str(part.get("type")))
    if kind == "image_url" and isinstance(body, dict) and isinstance(body.get("url"), str):
        return [read_file(body["url"], media_type=None if body["url"].startswith("data:") else "image/png")]
    if kind == "file" and isinstance(body, dict):
        return read_content([{"type": "input_file", **body}])
    return read_content([part])
