"""The provider's side of a wire format: parsing requests and writing replies.

The client's side of the same three formats is models/http/http_model.py, and the two share no code: a mistake there
must not be hidden by the same mistake here. A `Dialect` is pure. It parses the JSON of a request into a
`ParsedRequest`, checks whether the real provider would accept such a history, and opens a `ReplyWriter` that turns
parts into events, one by one. The writer remembers what it wrote, so it also builds the whole reply for a request that
does not stream.

What a format cannot express (a model's warnings, a provider's own tools in Chat Completions) is left out.

The three dialects are anthropic.py, openai_responses.py and openai_chat.py; server.py serves them over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from indelible.content import Part, ToolSpec
from indelible.errors import ModelFailed
from indelible.models.protocol import Call, CallOptions, PromptMessage
from indelible.testing.provider.refusals import Refusal

CREATED_AT: Final = 1_767_225_600
"""The time of every reply, fixed so that the same script gives the same bytes."""


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `instructions` apply to this request only; a stored response does not keep them."""

    model: str
    body: dict[str, Any]
    instructions: Sequence[PromptMessage] = ()
    messages: Sequence[PromptMessage]
    tools: list[ToolSpec] = []
    options: CallOptions = CallOptions()
    streams: bool = False

    def build_call(self, history: Sequence[PromptMessage] = ()) -> Call:
        """The call for the model. `history` is the stored conversation of a chained request."""
        messages = [*self.instructions, *history, *self.messages]
        return Call(messages=messages, tools=self.tools, options=self.options)


class ReplyWriter(Protocol):
    """Writes one reply."""

    def write(self, part: Part) -> list[bytes]:
        """The events of this part, each complete."""

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        """The events that end a reply that failed midway."""

    def write_error(self, body: Any) -> bytes:
        """One error event with this body, or with the provider's default."""

    def build_whole(self) -> dict[str, Any]:
        """The whole reply, after its finish was written."""


class Dialect(Protocol):
    name: str
    path: str
    reply_prefix: str
    """The prefix of reply ids."""

    def find_key(self, headers: Mapping[str, str]) -> str | None:
        """The key of a request."""

    def refuse_key(self, key: str | None) -> Refusal:
        """The response to a wrong or missing key."""

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Parse a request, or raise a `Refusal`."""

    def check(self, call: Call) -> None:
        """Raise a `Refusal` if the provider would reject this history."""

    def refuse(self, status: int, message: str) -> Refusal: ...

    def refuse_failure(self, failure: ModelFailed) -> Refusal:
        """The response that stands for a model's failure."""

    def show(self, refusal: Refusal, request_id: str) -> dict[str, Any]:
        """The body of the response."""

    def open_reply(self, parsed: ParsedRequest, id: str) -> ReplyWriter: ...

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        """The response to GET /v1/models."""
