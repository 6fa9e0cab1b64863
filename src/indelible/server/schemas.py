"""The bodies of requests. Unknown fields are refused: an error is better than a misspelt field that is ignored.

Every list and every text has a limit, and an object with too many fields is refused before they are looked at: the
validator collects all mistakes, so a body that is nothing but mistakes would cost more than a valid one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from indelible.api.inputs import (
    MAX_DESCRIPTION,
    MAX_LABEL,
    MAX_LABELS,
    MAX_NAME,
    MAX_TITLE,
    MAX_TOOLS,
    ChatChanges,
    Content,
    IfBusy,
    parse_content,
)
from indelible.api.shapes import DebugMode
from indelible.content import TOOL_NAME, ToolResult, ToolSpec, encode

ModelName = Annotated[str, Field(max_length=MAX_NAME)]
Title = Annotated[str, Field(max_length=MAX_TITLE)]
Label = Annotated[str, Field(max_length=MAX_LABEL)]
Labels = Annotated[list[Label], Field(max_length=MAX_LABELS)]


Id = Annotated[str, Field(max_length=200)]
Blocks = Annotated[list[dict[str, Any]], Field(max_length=100)]
MAX_FIELDS: Final = 50


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > MAX_FIELDS:
            raise ValueError("too many fields")
        return given


class MessageContent(RequestBody):
    """A message of the user: `text`, or `content` as a list of text and file blocks."""

    text: str | None = Field(default=None, description="The message as plain text.")
    content: Blocks | None = Field(default=None, description='Blocks: [{"type": "text", "text": "…"}].')

    @model_validator(mode="after")
    def _check_one_is_given(self) -> Self:
        if (self.text is None) == (self.content is None):
            raise ValueError("give either text or content")
        return self

    def to_content(self) -> Content:
        return parse_content(self.text if self.text is not None else self.content or [])


class EditedMessage(MessageContent):
    model: ModelName | None = Field(
        default=None, description="The model that answers. Default: the edited message's model, or the chat's."
    )


class NewMessage(EditedMessage):
    if_busy: IfBusy = Field(default="queue", description="During a reply: wait for it, interrupt it, or join it.")


class ClientTool(RequestBody):
    """A tool that the client runs: a reply that calls it waits for the result."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] = ""
    input_schema: dict[str, Any] = Field(default={"type": "object"}, description="JSON Schema of the arguments.")

    def to_spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, input_schema=self.input_schema)


ClientTools = Annotated[list[ClientTool], Field(max_length=MAX_TOOLS, description="Tools that the client runs.")]


class CreateChatRequest(RequestBody):
    model: ModelName | None = None
    system: str | None = Field(default=None, description="Instructions for the model in this chat.")
    title: Title | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="Parameters of the model, such as temperature.")
    tools: ClientTools | None = None
    message: str | Blocks | None = Field(default=None, description="The first message; the reply starts at once.")

    def to_content(self) -> Content | None:
        return None if self.message is None else parse_content(self.message)


class UpdateChatRequest(RequestBody):
    """Only the given fields are changed; null clears a field."""

    title: Title | None = None
    labels: Labels | None = None
    pinned: bool = False
    archived: bool = False
    model: ModelName | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    tools: ClientTools | None = None
    debug: DebugMode | None = Field(
        default=None, description="Which exchanges with providers are recorded; null: the `debug` setting."
    )

    def to_changes(self) -> ChatChanges:
        given = self.model_dump(exclude_unset=True)
        if "tools" in given:
            given["tools"] = None if self.tools is None else [tool.to_spec() for tool in self.tools]
        return ChatChanges(**given)


class TurnRequest(RequestBody):
    """Start a turn again, optionally with another model."""

    model: ModelName | None = None


def model_of(choice: TurnRequest | None) -> str | None:
    return None if choice is None else choice.model


class BranchTarget(RequestBody):
    message_id: Id
    exact: bool = Field(default=False, description="Go to this message itself, not to the newest end of its branch.")


class QueueOrder(RequestBody):
    ids: Annotated[list[Id], Field(max_length=1000)] = Field(description="Every queued message, in the new order.")


class Interruption(RequestBody):
    wait_s: Annotated[float, Field(ge=0, le=60)] = Field(default=0, description="How long to wait for the turn to end.")
    turn: Id | None = Field(default=None, description="Stop only this turn: a late click must not stop the next one.")


class ToolResultInput(RequestBody):
    tool_call_id: Id
    output: Any = ""
    is_error: bool = False

    def to_result(self) -> ToolResult:
        output = self.output if isinstance(self.output, str) else encode(self.output).decode()
        return ToolResult(call_id=self.tool_call_id, name="", output=output, is_error=self.is_error)


class ToolResultsRequest(RequestBody):
    results: Annotated[list[ToolResultInput], Field(max_length=200)]
    turn: Id | None = None


class Fork(RequestBody):
    message_id: Id


class ReadRequest(RequestBody):
    seq: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="Up to this event; null: all of it."
    )


class DraftRequest(RequestBody):
    text: str = Field(description="What was typed so far; empty: no draft.")
