"""What the loop needs of a model, what it tells one, and the parameters of a call.

A model is anything with `provider`, `name`, `context_limit` and `stream(call)`. `stream` gives
an async iterator of parts (content/parts.py) that ends with a `Finish`; a stream that ends without
one is truncated, and the loop treats it as a failure. A failure may be raised by `stream`, by
the iterator, or be yielded as a `StreamError`: all three are the same. Cancelling the pending
read is how a stop reaches the provider's connection.

What else is known of a model is one value, `model.traits`. It is optional: a model without traits has the default
ones (`traits_of`), so that a class of four members is a model.

A `Call` is immutable: what a model was asked does not change behind its back. Its parameters have one vocabulary, which
every wire format writes differently:

    temperature, top_p, top_k        numbers
    max_tokens                       the maximum length of a reply
    stop                             a list of texts that end it
    effort                           how hard to think: none, minimal, low, medium, high, xhigh, max
    summary                          how much of the thinking to show: auto, concise, detailed, none
    tool_choice                      auto, none, required, or the name of a tool
    parallel_tool_calls              true or false
    format                           an object: {"type": "json_schema", "name", "schema", "strict"}, or "json_object"
    seed, frequency_penalty, presence_penalty, verbosity, service_tier, user
    metadata, prompt_cache_key, safety_identifier       what a provider files a request under; no reply depends on it

A wire format reads the parameters that it supports. The rest are not sent, and the user gets a warning: a parameter
that is dropped silently looks like a model that does not obey. The last three are for the provider alone, and one that
has no use for them changes nothing, so there is no warning. A parameter of another name, or a value of the wrong type,
is refused where it is given (`check_parameters`); in a chat that has it nevertheless, such a value is a failure of kind
`config`, and such a name a warning.

Nothing else of a request can be set here: permission to choose a chat's parameters is not permission to choose its
model or its tools.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from difflib import get_close_matches
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from indelible.content import Block, Part, Role, ToolSpec, Usage
from indelible.errors import Invalid, ModelFailed


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


T = TypeVar("T")

_TYPES: Final[dict[str, type]] = {
    **dict.fromkeys(("temperature", "top_p", "frequency_penalty", "presence_penalty"), float),
    **dict.fromkeys(("top_k", "max_tokens", "seed"), int),
    **dict.fromkeys(("tool_choice", "verbosity", "service_tier", "user", "summary"), str),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier"), str),
    "parallel_tool_calls": bool,
    "format": dict,
    "metadata": dict,
}
"""The parameters that are one value; `stop` and `effort` have rules of their own."""

_SHOWN_CHARACTERS: Final = 100
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
NAMES: Final = frozenset({*_TYPES, "stop", "effort"})
_FILED_UNDER: Final = frozenset({"metadata", "prompt_cache_key", "safety_identifier"})

_KINDS: Final[dict[Any, str]] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    dict: "an object",
}


class Parameters:
    """The parameters of one call. `pop` each supported one; `warn` reports the rest."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = dict(given)

    def pop(self, name: str, kind: type[T]) -> T | None:
        """The value, type-checked; None if it was not given."""
        value = self._given.pop(name, None)
        if value is None or _fits(value, kind):
            return cast("T | None", value)
        raise ModelFailed(f"The parameter {name} must be {_KINDS.get(kind, kind.__name__)}.", kind="config")

    def pop_texts(self, name: str) -> list[str] | None:
        """A list of texts; a single text counts as a list of one."""
        value = self._given.pop(name, None)
        texts = [value] if isinstance(value, str) else value
        if texts is None or (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
            return texts
        raise ModelFailed(f"The parameter {name} must be a list of texts.", kind="config")

    def pop_effort(self) -> str | None:
        effort = self.pop("effort", str)
        if effort is not None and effort not in EFFORTS:
            raise ModelFailed(f"The parameter effort must be one of {', '.join(EFFORTS)}.", kind="config")
        return effort

    def warn(self, provider: str) -> list[str]:
        """One sentence per parameter that was given and not popped."""
        return [
            f"The parameter {name} was not sent: {provider} has no such parameter."
            if name in NAMES
            else f"The parameter {name} was not sent: unknown parameter."
            for name in self._given
            if name not in _FILED_UNDER
        ]


def check_parameters(given: dict[str, Any], *, allow_unknown: bool = False) -> None:
    """Raises `Invalid` for an unknown parameter or a value of the wrong type.

    A chat of an earlier version may have unknown ones, and so may its export: they are not sent.
    """
    unknown = next((name for name in given if name not in NAMES), None)
    if unknown is not None and not allow_unknown:
        unknown = unknown[:_SHOWN_CHARACTERS]  # first: comparing takes long with a name of megabytes
        similar = get_close_matches(unknown, NAMES, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else f"Known are {', '.join(sorted(NAMES))}."
        raise Invalid(f"Unknown parameter {unknown}. {hint}")
    parameters = Parameters(given)
    try:
        for name, kind in _TYPES.items():
            parameters.pop(name, kind)
        parameters.pop_texts("stop")
        parameters.pop_effort()
    except ModelFailed as failure:
        raise Invalid(failure.message) from failure


def _fits(value: object, kind: type) -> bool:
    if kind is float and isinstance(value, float):
        return math.isfinite(value)  # JSON has no others
    if kind is float:
        return _fits(value, int)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
