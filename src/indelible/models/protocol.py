"""What the loop needs of a model, and what it tells one.

A model is anything with `provider`, `name`, `context_limit` and `stream(call)`. `stream` gives
an async iterator of parts (content/parts.py) that ends with a `Finish`; a stream that ends without
one is truncated, and the loop treats it as a failure. A failure may be raised by `stream`, by
the iterator, or be yielded as a `StreamError`: all three are the same. Cancelling the pending
read is how a stop reaches the provider's connection.

What else is known of a model is one value, `model.traits`. It is optional: a model without traits has the default
ones (`traits_of`), so that a class of four members is a model.

A `Call` is immutable: what a model was asked does not change behind its back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

import msgspec

from indelible.content import Block, Part, Role, ToolSpec, Usage


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to call.

    `store` asks the provider to keep the response; `previous_response_id` chains to one it
    kept (rule 4). `parameters` are the model's own: temperature, max_tokens, effort…
    """

    store: bool = False
    previous_response_id: str | None = None
    parameters: dict[str, Any] = {}


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the prompt. `cache` asks the provider to cache everything up to here."""

    role: Role
    blocks: list[Block] = []
    cache: bool = False


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model."""

    messages: list[PromptMessage]
    tools: list[ToolSpec] = []
    options: CallOptions = CallOptions()

    @property
    def parameters(self) -> dict[str, Any]:
        return self.options.parameters


class ModelTraits(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop and the worker take into account about a model. The defaults hold for an unknown one.

    inline_thinking: it may think in its text, so its text is searched for that. thinks_first: its text begins with
    thinking. continues_prefix: it continues an interrupted reply at the end of the prompt. chains: chain mode is wanted
    (rule 4). accepts_images, accepts_pdfs: it reads pictures and documents. makes_titles: it can title a chat.
    silence_timeout_s: how long it may send nothing, if that is longer than the setting: some models think in silence.
    price(usage): what a usage costs, in billionths of a dollar, or None if that is not known.
    """

    inline_thinking: bool = True
    thinks_first: bool = False
    continues_prefix: bool = False
    chains: bool = False
    accepts_images: bool = True
    accepts_pdfs: bool = True
    makes_titles: bool = True
    silence_timeout_s: float = 0.0
    price: Callable[[Usage], int | None] | None = None


_DEFAULT_TRAITS: Final = ModelTraits()


class Model(Protocol):
    """It may have `traits: ModelTraits` as well; ask `traits_of`."""

    @property
    def provider(self) -> str:
        """Whose rules the prompt must follow: "anthropic", "openai", …"""

    @property
    def name(self) -> str:
        """The model's name at its provider."""

    @property
    def context_limit(self) -> int | None:
        """The context window in tokens, if known."""

    def stream(self, call: Call) -> AsyncIterator[Part]:
        """Ask the model. Parts come as the provider sends them."""


def traits_of(model: Model) -> ModelTraits:
    """What is known of this model; the defaults, if it does not say."""
    traits: ModelTraits = getattr(model, "traits", _DEFAULT_TRAITS)
    return traits
