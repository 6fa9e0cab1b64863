"""Bodies that are made to be expensive are refused with one short sentence (S94, S109)."""

from __future__ import annotations

import gzip
import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.asking import read_problem
from tests.support.app_harness import AppHarness

from indelible.errors import Invalid, TooLarge
from indelible.server.access import MAX_BODY_BYTES
from indelible.server.limits import MAX_JSON_DEPTH, MAX_JSON_VALUES, check_json

SHORT = 1_000
"""No answer to a mistake is longer than this, in bytes."""
ECHO = "x" * 50
"""What nobody misspells is not repeated."""
TAIL = b"]}"


def fill(start: bytes, piece: bytes, end: bytes) -> bytes:
    """As large a body as may be sent."""
    return start + piece * ((MAX_BODY_BYTES - len(start) - len(end)) // len(piece)) + end


def nest(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def name_many(count: int) -> dict[str, int]:
    return {f"unknown_{number}": number for number in range(count)}


EXPENSIVE: dict[str, tuple[str, str, bytes]] = {
    "numbers": ("POST", "/tool-results", fill(b'{"results":[0', b",0", TAIL)),
    "texts": ("POST", "/tool-results", fill(b'{"results":[""', b',""', TAIL)),
    "quotes": ("POST", "/tool-results", fill(b'{"results":["', b'\\"', b'"' + TAIL)),
    "objects": ("POST", "/tool-results", fill(b'{"results":[{}', b",{}", TAIL)),
    "some numbers": ("POST", "/tool-results", b'{"results":[0' + b",0" * 50_000 + TAIL),
    "some results": (
        "POST",
        "/tool-results",
        json.dumps({"results": [{"tool_call_id": str(n)} for n in range(5_000)]}).encode(),
    ),
    "ids": ("PUT", "/queue/order", b'{"ids":["a"' + b',"a"' * 50_000 + TAIL),
    "blocks": ("POST", "/messages", b'{"content":[{}' + b",{}" * 30_000 + TAIL),
    "labels": ("PATCH", "", b'{"labels":[0' + b",0" * 50_000 + TAIL),
    "unknown fields": ("PATCH", "", json.dumps(name_many(20_000)).encode()),
    "unknown fields inside": ("POST", "/tool-results", json.dumps({"results": [name_many(20_000)] * 2}).encode()),
    "a field with a long name": ("PATCH", "", json.dumps({"x" * 1_000_000: 1}).encode()),
    "a long number": ("POST", "/interrupt", b'{"wait_s":' + b"1" * 1_000_000 + b"}"),
    "a long choice": ("POST", "/messages", json.dumps({"text": "Hi", "if_busy": "x" * 1_000_000}).encode()),
    "a block of a long type": ("POST", "/messages", json.dumps({"content": [{"type": "x" * 1_000_000}]}).encode()),
    "lists in lists": ("POST", "/messages", nest(100_000)),
    "lists in parameters": ("PATCH", "", b'{"parameters":{"a":' + nest(500) + b"}}"),
    "lists in a result": ("POST", "/tool-results", b'{"results":[{"tool_call_id":"a","output":' + nest(500) + b"}]}"),
    "lists in a block": ("POST", "/messages", b'{"content":[{"type":"text","text":' + nest(500) + b"}]}"),
    "lists in UTF-16": ("POST", "/messages", ('{"text":"\\"","x":' + "[" * 5_000 + "]" * 5_000 + "}").encode("utf-16")),
    "numbers in UTF-32": ("POST", "/tool-results", ('{"results":[0' + ",0" * 50_000 + "]}").encode("utf-32-le")),
    "no JSON": ("POST", "/messages", fill(b"", b"\xff", b"")),
}


@pytest.mark.parametrize("name", EXPENSIVE)
async def test_s94_an_expensive_body_is_refused_with_one_short_sentence(harness: AppHarness, name: str) -> None:
    server = await harness.start_server(worker=False)
    chat = await server.client.create_chat(title="Rain")
    method, path, body = EXPENSIVE[name]
    headers = {"Content-Type": "application/json"}
    async with server.request(method, f"/chats/{chat['id']}{path}", data=BytesIO(body), headers=headers) as response:
        problem = await read_problem(response)
        assert len(await response.read()) < SHORT
    assert 400 <= problem["status"] < 500, problem
    assert ECHO not in problem["detail"]


async def test_s94_only_an_import_may_have_as_many_values_as_a_chat(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    headers = {"Content-Type": "application/json"}
    async with server.request("PATCH", "/chats/import", data=BytesIO(nest(100_000)), headers=headers) as response:
        problem = await read_problem(response)
    assert problem["status"] == 400
    assert "nested" in problem["detail"]


async def test_s94_what_looks_like_json_in_a_text_is_a_text(harness: AppHarness) -> None:
    server = await harness.start_server(worker=False)
    text = '[{,\\"' * 20_000
    chat = await server.client.create_chat(text)
    [message] = (await server.client.read_all_messages(chat["id"]))[:1]
    assert message["blocks"] == [{"type": "text", "text": text}]


def measure(value: Any) -> tuple[int, int]:
    """How many commas and opening brackets this value has, and how deep it is nested."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inside is None:
        return 0, 0
    measured = [measure(one) for one in inside]
    count = max(1, len(inside)) + sum(count for count, _ in measured)
    return count, 1 + max((depth for _, depth in measured), default=0)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a",[]{}\\:é\n', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(alphabet='a",[\\', max_size=5), inner, max_size=4)
    ),
    max_leaves=30,
)


@given(value=VALUES, max_values=st.integers(1, 30), max_depth=st.integers(0, 5), spaced=st.booleans())
def test_the_values_of_any_document_are_counted_without_parsing_it(
    value: Any, max_values: int, max_depth: int, spaced: bool
) -> None:
    body = json.dumps(value, ensure_ascii=False, indent=1 if spaced else None).encode()
    count, depth = measure(value)
    is_refused = False
    try:
        check_json(body, max_values=max_values, max_depth=max_depth)
    except (Invalid, TooLarge):
        is_refused = True
    assert is_refused == (count > max_values or depth > max_depth)


@pytest.mark.parametrize("body", [b"", b"]", b'"', b'{"a', b"\\", b'"\\', b"]]]]", b"[" * 10, b"\xff"])
def test_what_is_no_json_is_left_to_the_parser(body: bytes) -> None:
    check_json(body, max_values=MAX_JSON_VALUES, max_depth=MAX_JSON_DEPTH)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_json_that_is_not_utf_8_is_refused_because_its_values_cannot_be_counted(encoding: str) -> None:
    with pytest.raises(Invalid, match="UTF-8"):
        check_json('{"text": "Rain"}'.encode(encoding))


@pytest.mark.parametrize("path", ["/chats", "/files?name=rain.txt", "//v1/responses"])
async def test_a_compressed_body_is_refused_with_the_reason(harness: AppHarness, path: str) -> None:
    server = await harness.start_server(worker=False)
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    data = gzip.compress(b'{"message": "Hi", "input": "Hi"}')
    async with server.request("POST", path, data=data, headers=headers) as response:
        assert response.status == 415
        text = await response.text()
    assert "must not be compressed" in text
    assert (await server.client.list_chats())["items"] == []
    plain = {"Content-Encoding": "identity"}
    async with server.request("POST", "/chats", json={"message": "Hi"}, headers=plain) as response:
        assert response.status == 201
