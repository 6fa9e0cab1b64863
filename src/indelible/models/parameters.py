"""The parameters of a call: one vocabulary, written differently by every wire.

    temperature, top_p, top_k        numbers
    max_tokens                       the most that a reply may hold
    stop                             a list of texts that end it
    effort                           how hard to think: none, minimal, low, medium, high, xhigh, max
    summary                          what is shown of the thinking: auto, concise, detailed, none
    tool_choice                      auto, none, required, or the name of a tool
    parallel_tool_calls              true or false
    seed, frequency_penalty, presence_penalty, verbosity, service_tier, user

A wire takes what it has a place for. What nobody took is not sent, and the reader is warned: a parameter that is
dropped in silence looks like a model that does not obey. A value of the wrong kind is a failure of kind `config`.

Nothing else of a request can be set here: who may choose a chat's parameters may not choose its model or its tools.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

from indelible.errors import ModelFailed

T = TypeVar("T")

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
NAMES: Final = frozenset(
    {"temperature", "top_p", "top_k", "max_tokens", "stop", "effort", "tool_choice", "parallel_tool_calls", "seed"}
    | {"frequency_penalty", "presence_penalty", "verbosity", "service_tier", "user", "summary"}
)
_KINDS: Final[dict[Any, str]] = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}


class Parameters:
    """Those of one call. Each is taken at most once; `warn` tells of the rest."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = dict(given)

    def take(self, name: str, kind: type[T]) -> T | None:
        """The value, checked; None if it was not given."""
        value = self._given.pop(name, None)
        if value is None or _fits(value, kind):
            return cast("T | None", value)
        raise ModelFailed(f"The parameter {name} must be {_KINDS.get(kind, kind.__name__)}.", kind="config")

    def take_texts(self, name: str) -> list[str] | None:
        """A list of texts; a single one may stand for itself."""
        value = self._given.pop(name, None)
        texts = [value] if isinstance(value, str) else value
        if texts is None or (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
            return texts
        raise ModelFailed(f"The parameter {name} must be a list of texts.", kind="config")

    def take_effort(self) -> str | None:
        effort = self.take("effort", str)
        if effort is not None and effort not in EFFORTS:
            raise ModelFailed(f"The parameter effort must be one of {', '.join(EFFORTS)}.", kind="config")
        return effort

    def warn(self, provider: str) -> list[str]:
        """A sentence for each that was given and not taken."""
        return [
            f"The parameter {name} was not sent: {provider} has no such parameter."
            if name in NAMES
            else f"The parameter {name} was not sent: it is not known."
            for name in self._given
        ]


def _fits(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
