"""S83: a body that is shorter than it said is failed; a large JSON answer is shortened, never dropped (rule 10.17)."""

from __future__ import annotations

import json

import pytest
from tests.recording.answers import JSON, SSE, Answer, only, read_all, record

PROMISED = {"content-length": "100"}


@pytest.mark.parametrize("content_type", [JSON, SSE, "text/plain", "application/octet-stream"])
@pytest.mark.parametrize("is_closed", [True, False])
async def test_s83_a_body_that_is_shorter_than_its_content_length_is_failed(
    content_type: str, *, is_closed: bool
) -> None:
    response, log = record(Answer(b'{"a":1}', content_type=content_type, headers=PROMISED))
    await read_all(response)
    if is_closed or content_type != SSE:
        await response.aclose()
    assert (only(log).status, only(log).error) == ("failed", "unexpected end")


async def test_s83_a_json_answer_of_a_megabyte_is_shortened_and_stays_a_document() -> None:
    items = [{"id": number, "text": "rain " * 200} for number in range(1100)]
    body = json.dumps({"model": "m", "data": items, "usage": {"input_tokens": 7}}).encode()
    assert len(body) > 1024 * 1024
    pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    response, log = record(Answer(*pieces, content_type=JSON, headers={"content-length": str(len(body))}))
    assert await read_all(response) == body
    await response.aclose()
    assert (only(log).status, only(log).error) == ("completed", None)
    kept = json.loads(only(log).response_body)
    assert (kept["model"], kept["usage"]) == ("m", {"input_tokens": 7})
    assert kept["data"][0]["id"] == 0
    assert kept["data"][-1]["id"] == 1099
    assert len(only(log).response_body.encode()) <= 256 * 1024


async def test_s83_of_a_json_answer_that_is_too_large_for_that_the_beginning_is_kept() -> None:
    body = json.dumps({"model": "m", "data": ["rain " * 200] * 6000}).encode()
    response, log = record(Answer(body, content_type=JSON, headers={"content-length": str(len(body))}))
    await read_all(response)
    await response.aclose()
    kept = json.loads(only(log).response_body)
    assert kept["model"] == "m"
    assert kept["data"][0].startswith("rain rain")
