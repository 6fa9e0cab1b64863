"""The simulated provider reports a model's failure as the real one would, and it is classified as its original kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast, get_args

import aiohttp
import msgspec
import pytest
from tests.testing.provider_scripts import WIRES

from indelible.content import Part
from indelible.errors import FailureKind, ModelFailed
from indelible.models.failures.classify import classify_response
from indelible.models.http.sse import SseDecoder
from indelible.testing import SimulatedProvider, parts, write_reply
from indelible.testing.model import Script
from indelible.testing.provider import WireName
from indelible.testing.provider.exchange import DIALECTS

ASK: Final = [{"role": "user", "content": "Hello"}]
BODY: Final = {"model": "m", "max_tokens": 9, "messages": ASK, "input": "Hello"}
READ_AS: Final[dict[FailureKind, FailureKind]] = {
    "missing_key": "auth",
    "stream_silence_timeout": "timeout",
    "unknown": "server_error",
}
"""Kinds that no provider has a word for, and what its word for them means."""

KINDS: Final[Sequence[FailureKind]] = get_args(FailureKind)


def list_cases() -> list[tuple[WireName, FailureKind]]:
    """A broken chain is OpenAI's alone."""
    return [(wire, kind) for wire in WIRES for kind in KINDS if (wire, kind) != ("anthropic", "chain_broken")]


async def post(provider: SimulatedProvider, wire: WireName, **more: Any) -> tuple[int, dict[str, str], bytes]:
    async with aiohttp.ClientSession() as session:
        url, headers = provider.url + DIALECTS[wire].path, {"anthropic-version": "2023-06-01"}
        async with session.post(url, json={**BODY, **more}, headers=headers) as answer:
            names = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, names, await answer.read()


@pytest.mark.parametrize(("wire", "kind"), list_cases())
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_part_is_an_error_status(
    wire: WireName, kind: FailureKind, stream: bool
) -> None:
    failure = ModelFailed("It did not work.", kind=kind, detail="no luck", retry_after_s=2.5)
    async with SimulatedProvider([failure]) as provider:
        status, headers, body = await post(provider, wire, stream=stream)
    assert status >= 400
    assert headers["content-type"] == "application/json"
    read = classify_response(provider=wire, status=status, headers=headers, body=body)
    assert read.kind == READ_AS.get(kind, kind)
    assert read.retryable == failure.retryable
    assert read.retry_after_s == 2.5
    assert b"no luck" in body


@pytest.mark.parametrize(("wire", "kind"), list_cases())
async def test_a_later_failure_is_an_error_inside_the_stream(wire: WireName, kind: FailureKind) -> None:
    script: list[Any] = [parts.text_delta("t", "Hel"), ModelFailed("It did not work.", kind=kind)]
    async with SimulatedProvider([script]) as provider:
        status, _, body = await post(provider, wire, stream=True)
    assert status == 200
    *said, last = SseDecoder().feed(body)
    assert b"Hel" in said[-1].data
    assert classify_response(provider=wire, status=None, body=last.data).kind == READ_AS.get(kind, kind)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_failure_with_a_status_keeps_it(wire: WireName) -> None:
    async with SimulatedProvider([ModelFailed("Gone.", kind="config", status=404)]) as provider:
        status, _, _ = await post(provider, wire, stream=True)
    assert status == 404


@pytest.mark.parametrize("script", [[parts.error(TimeoutError())], [TimeoutError()], TimeoutError()])
async def test_a_failure_may_be_sent_or_raised_and_be_any_error(script: Script) -> None:
    async with SimulatedProvider([script]) as provider:
        status, _, body = await post(provider, "openai", stream=True)
    assert status == 504
    assert msgspec.json.decode(body)["error"]["code"] == "request_timeout"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_reply_without_an_end_that_was_not_to_be_streamed_is_an_error(wire: WireName) -> None:
    async with SimulatedProvider([[parts.text_delta("t", "Hel")]]) as provider:
        status, _, _ = await post(provider, wire, stream=False)
    assert status == 500


@pytest.mark.parametrize("wire", WIRES)
def test_a_reply_written_without_a_network_ends_with_its_error(wire: WireName) -> None:
    said = cast("list[Part]", [parts.text_delta("t", "Hel"), parts.error(ModelFailed("Busy.", kind="overloaded"))])
    *_, last = SseDecoder().feed(b"".join(write_reply(wire, said)))
    assert classify_response(provider=wire, status=None, body=last.data).kind == "overloaded"
