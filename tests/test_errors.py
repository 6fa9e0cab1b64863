"""The error tree: what is drawn is what there is, and what each class tells its catcher."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import get_args

import pytest

from indelible import errors
from indelible.errors import (
    REFUSALS,
    RETRYABLE,
    FailureKind,
    IndelibleError,
    Interrupted,
    LeaseLost,
    Lost,
    ModelFailed,
    Refused,
    Shutdown,
    StoreFailed,
)


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = read_tree(errors.__doc__ or "")
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]
    classes.remove(errors.TestBroken)

    assert drawn == {cls.__name__: cls.__bases__[0].__name__ for cls in classes}


def read_tree(page: str) -> dict[str, str]:
    """The name of each class in the drawing, with its parent's."""
    tree = {"IndelibleError": "Exception"}
    above = ["IndelibleError"]
    for before, name in re.findall(r"^    ([│ ]*[├└]── )(\w+)", page, re.MULTILINE):
        depth = len(before) // 4
        above = [*above[:depth], name]
        tree[name] = above[depth - 1]
    return tree


def test_every_refusal_has_a_name_over_http_that_no_other_has() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Refused)]
    named = {cls for cls in classes if "problem_kind" in vars(cls)} - {Refused}

    assert set(REFUSALS.values()) == named
    assert all(REFUSALS[cls.problem_kind] is cls for cls in named)


def test_the_branches_are_apart() -> None:
    branches = [Refused, Lost, ModelFailed, StoreFailed, Interrupted, Shutdown]

    for branch in branches:
        assert [other for other in branches if issubclass(branch, other)] == [branch]
        assert issubclass(branch, IndelibleError)
    assert issubclass(LeaseLost, Lost)


@pytest.mark.parametrize("ended", [Interrupted, Shutdown])
def test_the_two_ends_from_outside_need_no_words_and_are_no_cancellation(ended: type[IndelibleError]) -> None:
    assert str(ended())
    assert str(ended("because")) == "because"
    assert not issubclass(ended, asyncio.CancelledError)


def test_every_kind_of_failure_says_whether_to_retry() -> None:
    assert list(RETRYABLE) == list(get_args(FailureKind))


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_a_failure_is_as_retryable_as_its_kind_unless_somebody_knows_better(kind: FailureKind) -> None:
    assert ModelFailed("no", kind=kind).retryable is RETRYABLE[kind]
    assert ModelFailed("no", kind=kind, retryable=True).retryable is True
    assert ModelFailed("no", kind=kind, retryable=False).retryable is False
    assert ModelFailed("no", kind=kind).chain_broken is (kind == "chain_broken")


def test_a_failure_carries_what_happened() -> None:
    failure = ModelFailed(
        "Anthropic is busy.",
        kind="overloaded",
        status=529,
        provider="anthropic",
        detail="Overloaded",
        retry_after_s=2.0,
    )

    assert str(failure) == failure.message == "Anthropic is busy."
    assert (failure.kind, failure.status, failure.provider) == ("overloaded", 529, "anthropic")
    assert (failure.detail, failure.retry_after_s) == ("Overloaded", 2.0)


def test_a_failure_about_which_nothing_is_known_is_not_retried() -> None:
    failure = ModelFailed("no")

    assert failure.kind == "unknown"
    assert not failure.retryable
    assert (failure.status, failure.provider, failure.detail, failure.retry_after_s) == (None, None, None, None)
