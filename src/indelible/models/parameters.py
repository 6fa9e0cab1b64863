"""The parameters of a call: one vocabulary, which every wire format writes differently.

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
from difflib import get_close_matches
from typing import Any, Final, TypeVar, cast

from indelible.errors import Invalid, ModelFailed

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
