"""The databases of tests/databases.py, and an app on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_type_hints

import msgspec
import pytest
from tests.support.app_harness import make_settings

import indelible
from indelible.api.operations import UseCase


def carry_out(own: object, use_case: UseCase, names: dict[str, str]) -> Any:
    """Carry out an operation on what these names stand for, with the body of its example."""
    function, operation = use_case
    arguments: dict[str, Any] = {key: value for key, value in names.items() if f"{{{key}}}" in operation.path}
    if operation.example is not None:
        example = msgspec.json.encode(operation.example).decode()
        for key, value in names.items():
            example = example.replace(f"{{{key}}}", value)
        arguments["body"] = msgspec.json.decode(example, type=get_type_hints(function)["body"])
    return getattr(own, use_case.name)(**arguments)


@pytest.fixture
async def app(database: str) -> AsyncIterator[indelible.App]:
    async with indelible.open(database, worker=False, settings=make_settings()) as opened:
        yield opened
