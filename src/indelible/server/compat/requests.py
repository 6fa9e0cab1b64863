"""Requests of other APIs: their bodies, and the messages in them, divided as a chat can begin or continue with them.

Unknown fields of a body are ignored: the clients of these APIs send many. A known one that asks for something that
this server cannot give is refused, because its client would wait for it in vain. A number or a boolean may be written
as a text, as some clients do. A body has no `Content-Type` that it must have.

Each API reads its own JSON into plain messages (openai_items.py, chat_completions.py, ai_sdk_messages.py). Here they
are divided: the text of the system, the message to be answered, and what stands above and below it. A conversation ends
with a message of the user, or with results of calls that its answer has made: anything else is refused, because there
would be nothing to answer.

What a response of OpenAI's repeats (`metadata`, `instructions`, `tools` …) is stored with its turn, so that every
replay repeats the same (`turns.request`). Long tool lists are repeated by name only: they would otherwise be stored
with every turn. A note from before may have been written by a user, so it is checked when it is read: one that has
another shape counts as none (tests/server/compat/test_responses.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from starlette.requests import Request

from indelible.content import Block, File, Message, ToolResult, ToolSpec, encode, text_of
from indelible.errors import Invalid
from indelible.server.compat.openai import read_conversation_name
from indelible.server.router import describe_mistake
from indelible.service.turns import Given, TurnSettings

_NOT_REPEATED: Final = frozenset({"input", "conversation", "stream", "tools", "model"})
"""What a response does not repeat, or in a form of its own."""
_MOST_REPEATED_BYTES: Final = 8 * 1024
_MOST_LABELS: Final = 50
_LONGEST_LABEL: Final = 80
_UNPRINTABLE: Final = re.compile(r"[^!-+\--~]")
"""What is no character of a header, or would separate two names in it."""
_NOT_SERVED: Final = "Unsupported parameter: 'tool_choice' names a tool that this server does not have. Omit it."
_ALLOWED: Final = "allowed_tools"
LEFT_OUT: Final = "x-indelible-left-out-tools"
MOST_INPUTS: Final = 10_000
"""A longer note is ignored: reading one must not cost more than this, whoever wrote it."""
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class WireBody(msgspec.Struct, kw_only=True):
    off: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Parameters that are not supported, each with the values that do not ask for anything; None never does."""

    @classmethod
    def find_unsupported(cls, given: Mapping[str, Any]) -> str | None:
        """The first parameter that asks for something that is not supported."""
        asked = (name for name, values in cls.off.items() if given.get(name) not in (None, *values))
        return next(asked, None)


B = TypeVar("B", bound=WireBody)


async def read_body(request: Request, kind: type[B]) -> B:
    """The body, checked. Raises `Invalid` with the first mistake."""
    raw = await request.body()
    try:
        given = msgspec.json.decode(raw) if raw else {}
        if isinstance(given, dict) and (name := kind.find_unsupported(given)) is not None:
            raise Invalid(f"Unsupported parameter: {name!r} is not supported with this value. Omit it.", param=name)
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(describe_mistake("body", error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("The body is not valid JSON in UTF-8.") from error


# --- messages ---


class Divided(NamedTuple):
    """A conversation, divided; `system` is the text of its leading system messages."""

    system: str | None
    given: Given


def divide(messages: Sequence[Message]) -> Divided:
    """The parts of a whole conversation, to begin a chat with."""
    leading = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    system = "\n\n".join(text_of(message.blocks) for message in messages[:leading]) or None
    rest = list(messages[leading:])
    asked = next((at for at in range(len(rest) - 1, -1, -1) if rest[at].role == "user"), None)
    if asked is None:
        raise Invalid("The input has no message of the user.")
    if not rest[asked].blocks:
        raise Invalid("The message is empty.")
    progress = rest[asked + 1 :]
    if progress and progress[-1].role == "assistant":
        raise Invalid("The input must end with a message of the user or with the output of a tool.")
    return Divided(system, Given(history=rest[:asked], blocks=rest[asked].blocks, progress=progress))


class Continuation(NamedTuple):
    """What a request adds to a chat that has the rest already: results of calls, and what the user says."""

    system: str | None
    results: list[ToolResult]
    blocks: list[Block]


def continue_with(messages: Sequence[Message]) -> Continuation:
    """What is new in these messages. What the assistant said is in the chat already."""
    system = "\n\n".join(text_of(message.blocks) for message in messages if message.role == "system") or None
    of_tools = [message for message in messages if message.role == "tool"]
    results = [block for message in of_tools for block in message.blocks if isinstance(block, ToolResult)]
    blocks = [block for message in messages if message.role == "user" for block in message.blocks]
    if not results and not blocks:
        raise Invalid("The input has no message of the user and no output of a tool.")
    return Continuation(system, results, blocks)


def join_neighbours(messages: Sequence[Message]) -> list[Message]:
    """One message per speaker in a row, for assistant and tools: their items come one by one."""
    joined: list[Message] = []
    for message in messages:
        before = joined[-1] if joined and message.role in ("assistant", "tool") else None
        if before is not None and (before.role, before.model) == (message.role, message.model):
            joined[-1] = replace(before, blocks=[*before.blocks, *message.blocks])
        else:
            joined.append(message)
    return joined


def check_texts(*given: Any) -> None:
    """The name and the type of a file are a client's: anything but a text could be stored and never read again."""
    if not all(isinstance(each, str | None) for each in given):
        raise Invalid("The name and the type of a file must be texts.")


def read_file(url: str, *, name: Any = None, media_type: Any = None) -> File:
    """A file by its URL; a `data:` URL brings its content along. Name and type are the client's, and are checked."""
    check_texts(name, media_type)
    if not url.startswith("data:"):
        guessed = mimetypes.guess_type(name or url.partition("?")[0])[0]
        return File(media_type=media_type or guessed or "application/octet-stream", name=name, url=url)
    head, _, encoded = url.removeprefix("data:").partition(",")
    declared, *options = head.split(";")
    try:
        if "base64" not in options:
            raise Invalid("A data URL must be base64-encoded.")
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise Invalid("A data URL is not valid base64.") from error
    return File(media_type=media_type or declared or "application/octet-stream", name=name, data=data)


def write_file_url(block: File) -> str:
    """The URL of a file, with its content if that is all there is."""
    if block.url is not None or block.data is None:
        return block.url or ""
    return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"


# --- requests of OpenAI ---


class FunctionTool(WireBody, kw_only=True):
    """A tool that the client runs. One of another type is left out: it runs at OpenAI, or needs a model of OpenAI's."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def is_served(self) -> bool:
        return self.type == "function"

    @property
    def label(self) -> str:
        """How the client is told that it was left out."""
        return f"{self.type}:{self.name}" if self.name else self.type

    def to_spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description or "", input_schema=self.parameters or {})


class ToolRequest(WireBody, kw_only=True):
    """What requests of both OpenAI APIs have in common."""

    model: str | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @property
    def declared(self) -> list[FunctionTool]:
        raise NotImplementedError

    @property
    def served(self) -> list[FunctionTool]:
        return [tool for tool in self.declared if tool.is_served]

    @property
    def left_out(self) -> dict[str, str]:
        """The header that names the tools that were left out, if there are any."""
        labels = [tool.label for tool in self.declared if not tool.is_served][:_MOST_LABELS]
        return (
            {LEFT_OUT: ", ".join(_UNPRINTABLE.sub("?", label)[:_LONGEST_LABEL] for label in labels)} if labels else {}
        )

    def to_specs(self) -> list[ToolSpec] | None:
        """The tools of the client. Raises `Invalid` if the model must call one that was left out."""
        name, choice = read_choice(self.tool_choice), self.tool_choice
        kind = choice.get("type") or "function" if isinstance(choice, dict) else "function"
        is_left_out = any(tool.name == name for tool in self.declared if not tool.is_served and tool.name)
        wants_none = name == "required" and bool(self.declared) and not self.served
        if kind not in ("function", _ALLOWED) or is_left_out or wants_none:
            raise Invalid(_NOT_SERVED, param="tool_choice")
        allowed = read_allowed(choice) if kind == _ALLOWED else None
        return [tool.to_spec() for tool in self.served if allowed is None or tool.name in allowed] or None

    def name_parameters(self, **own: Any) -> dict[str, Any] | None:
        """The parameters of the model that are given, `own` ones of an API included."""
        named = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            **own,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "tool_choice": read_choice(self.tool_choice) if self.served else None,
            "parallel_tool_calls": self.parallel_tool_calls if self.served else None,
            "service_tier": None if self.service_tier == "auto" else self.service_tier,
            "metadata": self.metadata or None,
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
            "user": self.user,
        }
        return {name: value for name, value in named.items() if value is not None} or None


class ConversationName(WireBody, kw_only=True):
    id: str


class ResponseRequest(ToolRequest, kw_only=True):
    off: ClassVar = {"top_logprobs": [0], "prompt": [], "max_tool_calls": []}

    @classmethod
    def find_unsupported(cls, given: Mapping[str, Any]) -> str | None:
        """`include` asks for much that is left out silently, as by OpenAI; probabilities would be missed."""
        include = given.get("include")
        wants_logprobs = isinstance(include, list) and "message.output_text.logprobs" in include
        return "include" if wants_logprobs else super().find_unsupported(given)

    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    tools: list[FunctionTool] | None = None
    background: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.previous_response_id is not None and self.conversation is not None:
            raise ValueError("give previous_response_id or conversation, not both")
        if self.background and self.store is False:
            raise ValueError("a background response has to be stored")

    @property
    def chat_id(self) -> str | None:
        """The chat of the named conversation."""
        return None if self.conversation is None else read_conversation_name(self._conversation_id)

    def to_settings(self, system: str | None = None) -> TurnSettings:
        """How the turn is run. `system` is what the input adds to the instructions."""
        reasoning, text = self.reasoning or {}, self.text or {}
        format_ = text.get("format")
        parameters = self.name_parameters(
            max_tokens=self.max_output_tokens,
            effort=reasoning.get("effort"),
            summary=reasoning.get("summary"),
            verbosity=text.get("verbosity"),
            format=None if not isinstance(format_, dict) or format_.get("type") == "text" else format_,
        )
        system = "\n\n".join(filter(None, [self.instructions, system])) or None
        return TurnSettings(model=self.model, system=system, parameters=parameters, tools=self.to_specs())

    @property
    def declared(self) -> list[FunctionTool]:
        return self.tools or []

    def to_repeated(self) -> dict[str, Any]:
        """What the response repeats."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in _NOT_REPEATED}
        tools = [self._repeat_tool(tool) for tool in self.served]
        if len(encode(tools)) > _MOST_REPEATED_BYTES:
            tools = [{**tool, "parameters": {}, "description": None} for tool in tools]
        repeated = {name: value for name, value in given.items() if value is not None}
        conversation = {"conversation": {"id": self._conversation_id}} if self.conversation is not None else {}
        model = {"model": self.model} if self.model is not None else {}
        return {**repeated, **conversation, **model, "tools": tools}

    @property
    def _conversation_id(self) -> str:
        return self.conversation.id if isinstance(self.conversation, ConversationName) else str(self.conversation)

    @staticmethod
    def _repeat_tool(tool: FunctionTool) -> dict[str, Any]:
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters or {},
            "strict": bool(tool.strict),
        }


class ResponseNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted about a request for a response: what it repeats, its settings' hash, and how many items it had."""

    response: dict[str, Any] = {}
    settings: str = ""
    inputs: Annotated[int, Meta(ge=1, le=MOST_INPUTS)] = 1
    continues: bool = False


_NO_NOTE: Final = ResponseNote()


def read_note(request: Any) -> ResponseNote:
    """What is stored with a turn. Empty for one that another API started."""
    try:
        note = msgspec.convert(request or {}, ResponseNote)
        msgspec.convert(note.response, ResponseRequest, strict=False)
    except msgspec.ValidationError:
        return _NO_NOTE
    return note


def read_choice(choice: Any) -> str | None:
    """`tool_choice` of both OpenAI APIs: a mode, or the name of a tool."""
    if isinstance(choice, dict):
        inner = choice.get(_ALLOWED)
        choice = inner if isinstance(inner, dict) else choice
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, dict) else choice.get("name") or choice.get("mode")
    return choice if isinstance(choice, str) else None


def read_allowed(choice: dict[str, Any]) -> set[str]:
    """The functions that the model may call now, of all that are declared; both APIs have their own form."""
    inner = choice.get(_ALLOWED)
    listed = (inner if isinstance(inner, dict) else choice).get("tools")
    return {name for tool in listed if (name := read_choice(tool))} if isinstance(listed, list) else set()


def hash_settings(settings: TurnSettings) -> str:
    """Equal for equal settings, the model apart: a continued chat is reconfigured only if they differ."""
    kept = [settings.system, settings.parameters, settings.tools]
    return hashlib.blake2b(encode(kept), digest_size=8).hexdigest()
