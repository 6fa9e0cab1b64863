"""The parameters of a call: popped once, type-checked, and never dropped silently."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from indelible.errors import Invalid, ModelFailed
from indelible.models.protocol import EFFORTS, NAMES, Parameters, check_parameters


def test_a_value_is_taken_as_it_is_and_only_once() -> None:
    parameters = Parameters({"temperature": 1, "top_p": 0.5, "seed": None})
    assert parameters.pop("temperature", float) == 1
    assert parameters.pop("temperature", float) is None
    assert parameters.pop("seed", int) is None
    assert parameters.warn("Nobody") == ["The parameter top_p was not sent: Nobody has no such parameter."]


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("temperature", float, "warm"),
        ("temperature", float, True),
        ("max_tokens", int, 1.5),
        ("max_tokens", int, True),
        ("parallel_tool_calls", bool, 1),
        ("verbosity", str, 3),
        ("temperature", float, [1]),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_the_reason(name: str, kind: type, value: Any) -> None:
    with pytest.raises(ModelFailed, match=f"The parameter {name} must be") as caught:
        Parameters({name: value}).pop(name, kind)
    assert caught.value.kind == "config"


def test_texts_may_come_alone() -> None:
    assert Parameters({"stop": "END"}).pop_texts("stop") == ["END"]
    assert Parameters({"stop": ["A", "B"]}).pop_texts("stop") == ["A", "B"]
    assert Parameters({}).pop_texts("stop") is None
    for wrong in (1, [1], {"a": "b"}):
        with pytest.raises(ModelFailed, match="a list of texts"):
            Parameters({"stop": wrong}).pop_texts("stop")


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_is_known(effort: str) -> None:
    assert Parameters({"effort": effort}).pop_effort() == effort


def test_an_unknown_effort_says_which_there_are() -> None:
    with pytest.raises(ModelFailed, match="none, minimal, low, medium, high, xhigh, max"):
        Parameters({"effort": "enormous"}).pop_effort()


def test_what_is_unknown_differs_from_what_a_provider_lacks() -> None:
    warnings = Parameters({"model": "gpt-evil", **dict.fromkeys(NAMES, 1)}).warn("Groq")
    assert "The parameter model was not sent: unknown parameter." in warnings
    silent = {"metadata", "prompt_cache_key", "safety_identifier"}  # no reply depends on them
    assert len(warnings) == 1 + len(NAMES - silent)
    assert not any(name in warning for name in silent for warning in warnings)


def test_every_parameter_is_checked_where_it_is_given() -> None:
    for name in NAMES:
        with pytest.raises(Invalid, match=f"The parameter {name} must be"):
            check_parameters({name: 1.5j if name in ("format", "metadata") else {}})
        check_parameters({name: None})
    check_parameters({"temperature": 1, "max_tokens": 10, "stop": ["a"], "effort": "low"})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "Did you mean temperature?"),
        ("maxTokens", "Did you mean max_tokens?"),
        ("zzz", "Known are effort,"),
    ],
)
def test_an_unknown_parameter_is_refused_with_a_suggestion(name: str, hint: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_parameters({"temperature": 1, name: 1})
    assert str(caught.value).startswith(f"Unknown parameter {name}. {hint}")
    check_parameters({name: 1}, allow_unknown=True)  # an export of a chat that has it


def test_an_endless_name_is_neither_repeated_nor_compared() -> None:
    name = "ab" * 500_000
    tracemalloc.start()
    with pytest.raises(Invalid) as caught:
        check_parameters({name: 1})
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(caught.value)) < 1000
    assert peak_bytes < 100_000
