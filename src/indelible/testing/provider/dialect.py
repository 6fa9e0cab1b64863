"""A wire from the provider's side: how requests are understood and replies are written.

The client's side of the same three wires is models/http/http_model.py, and the two share no code: a mistake there must
not be answered by the same mistake here. A `Dialect` is pure. It turns the JSON of a request into an `Asked`, judges
whether the real provider would take such a history, and opens a `ReplyWriter` that turns parts into events, one by one.
The writer remembers what it wrote, so the same object also gives the whole reply for a request that does not stream.

What has no place on a wire (a model's warnings, a provider's own tools in Chat Completions) is left out.

The three dialects are anthropic.py, openai_responses.py and openai_chat.py; server.py speaks them over HTTP.
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
"""When every reply is made: the same script gives the same bytes."""


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request, understood. `instructions` hold for this one request only; a stored response does not keep them."""

    model: str
    body: dict[str, Any]
    instructions: Sequence[PromptMessage] = ()
    messages: Sequence[PromptMessage]
    tools: list[ToolSpec] = []
    options: CallOptions = CallOptions()
    streams: bool = False

    def build_call(self, history: Sequence[PromptMessage] = ()) -> Call:
        """What the model is asked: `history` is what a chained request leans on."""
        messages = [*self.instructions, *history, *self.messages]
        return Call(messages=messages, tools=self.tools, options=self.options)


class ReplyWriter(Protocol):
    """One reply on its way out."""

    def write(self, part: Part) -> list[bytes]:
        """The events that say this, each whole."""

    def write_failure(self, refusal: Refusal) -> list[bytes]:
        """The events that end a reply which failed on its way."""

    def write_error(self, body: Any) -> bytes:
        """One error event with this body; the wire's own, if there is none."""

    def build_whole(self) -> dict[str, Any]:
        """The reply in one piece, once its finish was written."""


class Dialect(Protocol):
    name: str
    path: str
    reply_prefix: str
    """How the ids of its replies begin."""

    def find_key(self, headers: Mapping[str, str]) -> str | None:
        """The key that a request came with."""

    def refuse_key(self, key: str | None) -> Refusal:
        """The answer to a wrong key, or to none."""

    def read(self, body: dict[str, Any], headers: Mapping[str, str]) -> ParsedRequest:
        """Understand a request, or raise a `Refusal`."""

    def check(self, call: Call) -> None:
        """Raise a `Refusal` if the provider would not take this history."""

    def refuse(self, status: int, message: str) -> Refusal: ...

    def refuse_failure(self, failure: ModelFailed) -> Refusal:
        """The answer that stands for a model's failure."""

    def show(self, refusal: Refusal, request_id: str) -> dict[str, Any]:
        """The body of the answer."""

    def open_reply(self, parsed: ParsedRequest, id: str) -> ReplyWriter: ...

    def list_models(self, names: Sequence[str]) -> dict[str, Any]:
        """What GET /v1/models says."""
