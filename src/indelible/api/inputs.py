"""What comes from users: the body of each request, and content.

A body is one type: the service takes it, the HTTP server decodes it, and the client sends it (operations.py). Unknown
fields are refused: an error is better than a misspelt field that is ignored. Every list and every text has a limit,
and decoding ends at the first mistake. A struct that a program makes itself is not checked when it is made; the library
checks what people hand to it (`to_blocks`, `check_body`), so that the same message is valid or invalid everywhere.

A field of `ChatChanges` that is unset stays as it is, and None clears it: "no title" and "do not change the title" are
different requests.

Must stay true (tests/app/test_same_script.py, tests/frozen/routes.txt): the same mistake is refused in process and over
HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from indelible.api.shapes import DebugMode, Scope, StoredFile, UserRole
from indelible.content import TOOL_NAME, Block, File, Text, ToolResult, ToolSpec, encode
from indelible.errors import Invalid

MAX_TITLE: Final = 1000
MAX_NAME: Final = 200
"""The longest name of a model, in characters."""
MAX_LABELS: Final = 100
MAX_LABEL: Final = 100
MAX_TOOLS: Final = 128
MAX_DESCRIPTION: Final = 10_000
"""The longest description of a tool, in characters."""
MAX_TOKEN_LABEL: Final = 200
"""The longest label of a token, in characters."""

ModelName = Annotated[str, Meta(max_length=MAX_NAME)]
Title = Annotated[str, Meta(max_length=MAX_TITLE)]
Labels = Annotated[list[Annotated[str, Meta(max_length=MAX_LABEL)]], Meta(max_length=MAX_LABELS)]
Id = Annotated[str, Meta(max_length=200)]
UserName = Annotated[str, Meta(min_length=1, max_length=200)]
Blocks = Annotated[list[Block], Meta(max_length=100, description='Blocks: [{"type": "text", "text": "…"}].')]

Content = str | Sequence[Block | StoredFile | str]
"""A user's message: a text, or texts and files in their order."""

IfBusy = Literal["queue", "interrupt", "steer"]
"""What to do during a running reply: wait for it, stop it, or join it."""
OpenChunks = Callable[[], AsyncIterator[bytes]]
"""Opens a file that is uploaded: once more for every attempt."""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A body. What has its default is not sent."""


# --- messages ---


class MessageContent(RequestBody, frozen=True, kw_only=True):
    """A message of the user: `text`, or `content` as a list of text and file blocks."""

    text: Annotated[str, Meta(description="The message as plain text.")] | None = None
    content: Blocks | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.content is None):
            raise ValueError("give either text or content")

    def to_blocks(self) -> list[Block]:
        """Raises `Invalid` if no user can send this."""
        return to_blocks(self.text if self.text is not None else self.content or [])


class EditedMessage(MessageContent, frozen=True, kw_only=True):
    model: ModelName | None = None
    """The model that answers. Default: the edited message's model, or the chat's."""


class NewMessage(EditedMessage, frozen=True, kw_only=True):
    if_busy: IfBusy = "queue"


class TurnRequest(RequestBody, frozen=True, kw_only=True):
    """Start a turn again, optionally with another model."""

    model: ModelName | None = None


SAME_MODEL: Final = TurnRequest()


class BranchTarget(RequestBody, frozen=True, kw_only=True):
    message_id: Id
    exact: Annotated[bool, Meta(description="Go to this message itself, not to the newest end of its branch.")] = False


class Fork(RequestBody, frozen=True, kw_only=True):
    message_id: Id


class QueueOrder(RequestBody, frozen=True, kw_only=True):
    ids: Annotated[list[Id], Meta(max_length=1000, description="Every queued message, in the new order.")]


class Interruption(RequestBody, frozen=True, kw_only=True):
    wait_s: Annotated[float, Meta(ge=0, le=60, description="How long to wait for the turn to end.")] = 0
    turn: Annotated[Id, Meta(description="Stop only this turn: a late click must not stop the next one.")] | None = None


STOP_NOW: Final = Interruption()


class ToolResultInput(RequestBody, frozen=True, kw_only=True):
    """`output` may be any JSON; what is no text is sent to the model as JSON."""

    tool_call_id: Id
    output: Any = ""
    is_error: bool = False

    def to_result(self) -> ToolResult:
        output = self.output if isinstance(self.output, str) else encode(self.output).decode()
        return ToolResult(call_id=self.tool_call_id, name="", output=output, is_error=self.is_error)


class ToolResultsRequest(RequestBody, frozen=True, kw_only=True):
    results: Annotated[list[ToolResultInput], Meta(max_length=200)]
    turn: Id | None = None


# --- chats ---


class ClientTool(RequestBody, frozen=True, kw_only=True):
    """A tool that the client runs: a reply that calls it waits for the result."""

    name: Annotated[str, Meta(pattern=TOOL_NAME)]
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION)] = ""
    input_schema: Annotated[dict[str, Any], Meta(description="JSON Schema of the arguments.")] = msgspec.field(
        default_factory=lambda: {"type": "object"}
    )

    def to_spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, input_schema=self.input_schema)


ClientTools = Annotated[list[ClientTool], Meta(max_length=MAX_TOOLS, description="Tools that the client runs.")]


class CreateChat(RequestBody, frozen=True, kw_only=True):
    """A new chat. With a message, the reply starts at once."""

    message: str | Blocks | None = None
    model: ModelName | None = None
    system: Annotated[str, Meta(description="Instructions for the model in this chat.")] | None = None
    title: Title | None = None
    parameters: Annotated[dict[str, Any], Meta(description="Of the model, such as temperature.")] | None = None
    tools: ClientTools | None = None


class ChatChanges(RequestBody, frozen=True, kw_only=True):
    """Changes to the chat's metadata. An unset field stays as it is; null clears it."""

    title: Title | UnsetType | None = UNSET
    labels: Labels | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    model: ModelName | UnsetType | None = UNSET
    system: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    tools: ClientTools | UnsetType | None = UNSET
    debug: DebugMode | UnsetType | None = UNSET
    """Which exchanges with providers are recorded; null: the `debug` setting."""


class ReadRequest(RequestBody, frozen=True, kw_only=True):
    seq: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Up to this event; null: all of it.")] | None = None


ALL_OF_IT: Final = ReadRequest()


class DraftRequest(RequestBody, frozen=True, kw_only=True):
    text: Annotated[str, Meta(description="What was typed so far; empty: no draft.")]


# --- logins and shares ---


class LoginRequest(RequestBody, frozen=True, kw_only=True):
    token: Annotated[str, Meta(min_length=1, max_length=1000)]


class NewToken(RequestBody, frozen=True, kw_only=True):
    label: Annotated[str, Meta(max_length=MAX_TOKEN_LABEL)] = ""
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=3)]
    expires_in_s: Annotated[float, Meta(gt=0, le=10 * 366 * 86400)] | None = None


class NewUser(RequestBody, frozen=True, kw_only=True):
    name: UserName
    role: UserRole = "user"


class UserChanges(RequestBody, frozen=True, kw_only=True):
    role: UserRole | None = None
    disabled: bool | None = None


class NewShare(RequestBody, frozen=True, kw_only=True):
    """With a user, or, without one, with everybody who has the new link."""

    user: UserName | None = None


# --- what a program hands over ---


def check_body(body: RequestBody, what: str) -> None:
    """Raises `Invalid` if a value has the wrong type. HTTP has checked it; a program that calls the library may not."""
    try:
        msgspec.convert(msgspec.to_builtins(body, enc_hook=_to_plain_text), type(body))
    except (TypeError, ValueError) as error:
        raise Invalid(f"{what}: {error}.") from error


def _to_plain_text(value: object) -> str:
    """A subclass of `str` is a text, too."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not a value of a chat")


def check_if_busy(if_busy: str) -> None:
    """Raises `Invalid` if this is not one of `IfBusy`."""
    if if_busy not in get_args(IfBusy):
        raise Invalid(f"if_busy: must be one of {', '.join(get_args(IfBusy))}, not {if_busy!r}.")


def declare_tools(tools: Sequence[ToolSpec]) -> list[ClientTool]:
    """The tools of a chat, which its client runs. What is no tool stays as it is, for `check_body` to refuse."""
    given: Sequence[Any] = tools
    return [_declare(tool) if isinstance(tool, ToolSpec) else tool for tool in given]


def _declare(tool: ToolSpec) -> ClientTool:
    if tool.provider_executed:
        raise Invalid("tools: a chat's own tools are run by its client, not by the provider.")
    return ClientTool(name=tool.name, description=tool.description, input_schema=tool.input_schema)


def to_results(results: Sequence[ToolResult]) -> list[ToolResultInput]:
    """Results of tools that a program has run."""
    return [
        ToolResultInput(tool_call_id=result.call_id, output=result.output, is_error=result.is_error)
        for result in results
    ]


def to_blocks(content: Content) -> list[Block]:
    """The blocks of a user's message. Raises `Invalid` if it is empty, or has blocks that users cannot send."""
    blocks = list_blocks(content)
    for block in blocks:
        if not isinstance(block, Text | File):
            raise Invalid(f"content: a user's message holds text and files only, not {type(block).__name__}.")
        if isinstance(block, File) and not (block.file_id or block.url or block.data):
            raise Invalid("content: a file needs file_id. Upload it first.")
    if not any(isinstance(block, File) or block.text.strip() for block in blocks):
        raise Invalid("The message is empty.")
    return blocks


def list_blocks(content: Content) -> list[Block]:
    """The content as blocks, whatever they are."""
    given: Any = [content] if isinstance(content, str) else content
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise Invalid(f"content: must be a text, or a list of texts and files, not {type(content).__name__}.")
    return [_to_block(item) for item in given]


def _to_block(item: Block | StoredFile | str) -> Block:
    if isinstance(item, str):
        return Text(item)
    return item.to_block() if isinstance(item, StoredFile) else item


LONGEST_USER_NAME: Final = 200


def check_user_name(name: object) -> None:
    """Raise `Invalid` for a name that a new user may not have: it stands in headers, commands and lines of a list."""
    if (
        not isinstance(name, str)
        or not name
        or len(name) > LONGEST_USER_NAME
        or not name.isprintable()
        or name != name.strip()
    ):
        raise Invalid(f"A user's name has 1 to {LONGEST_USER_NAME} printable characters, and no spaces around it.")
