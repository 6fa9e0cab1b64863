"""Requests drawn from our own OpenAPI document, valid and not: no server error, and no answer that it does not have.

Schemathesis draws them for every operation, most of them about things that exist: chats in several states, their
messages, what is queued, a file, a share. An answer must have a status, a type and a body that the document describes
(server/openapi.py); an error is a problem document. Feeds are left out: they do not end.

`make test` draws a few requests for each operation, always the same ones; `make nightly` many (tests/conftest.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.app_harness import AppHarness
from tests.support.running_server import RunningServer

from indelible.service.files import Upload

Names = Mapping[str, Sequence[str]]

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES_PER_OPERATION: Final = max(2, settings().max_examples // 50)
TIMEOUT_S: Final = 60.0


def is_feed(operation: Any) -> bool:
    return "text/event-stream" in str(operation.definition.raw["responses"])


def has_input(operation: Any) -> bool:
    """Whether anything can be wrong with a request: every path is right, for some chat."""
    return bool(operation.body) or bool(operation.query)


async def test_no_request_is_a_server_error_or_gets_an_answer_that_is_not_documented(harness: AppHarness) -> None:
    server = await harness.start_server("demo")
    names = await make_things(server)

    asked = await asyncio.to_thread(ask_everything, server.url, names)

    assert len(asked) > 20
    assert "/api/v1/chats" in {path for _, path in asked}


async def make_things(server: RunningServer) -> Names:
    """Things to ask about, by the name of the path's parameter."""
    client, service = server.client, server.app.service_of(await server.app.service.get_user_id())
    running = await client.create_chat("Is it raining?")
    queued = await client.send(running["id"], "And in Bergen?")
    others = [(await client.create_chat(None))["id"] for _ in range(2)]
    file = await service.files.upload(Upload(b"Some words.", "words.txt").open_chunks, name="words.txt")
    return {
        "chat_id": [running["id"], *others],
        "message_id": [running["message"]],
        "queued_id": [str(queued["queued"])],
        "file_id": [file.id],
    }


def ask_everything(url: str, names: Names) -> set[tuple[str, str]]:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    asked = set()
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation: Any = cast(Ok[Any], found).ok()
            if not is_feed(operation):
                asked.add((operation.method, operation.path))
                ask(operation, GenerationMode.POSITIVE, names, session)
                if has_input(operation):
                    ask(operation, GenerationMode.NEGATIVE, names, session)
    return asked


def ask(operation: Any, mode: GenerationMode, names: Names, session: requests.Session) -> None:
    known = st.fixed_dictionaries({name: st.sampled_from([*values, None]) for name, values in names.items()})

    @settings(
        max_examples=EXAMPLES_PER_OPERATION,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), names=known)
    def draw(case: Any, names: dict[str, str | None]) -> None:
        for name, value in names.items():
            if value is not None and name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        case.call_and_validate(session=session, checks=CHECKS, timeout=TIMEOUT_S)

    try:
        draw()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, f"nothing can be drawn for {operation.label}"
