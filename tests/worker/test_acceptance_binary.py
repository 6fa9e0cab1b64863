"""S88: a tool that returns a picture or bytes gives a result that says so, and never a crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.messages import outline

from indelible.content import File
from indelible.testing import ScriptedModel, parts

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
CALL = [parts.tool_call("c", "draw", "{}"), parts.finish("tool_calls")]
DONE = [parts.text_delta("1", "Done"), parts.finish()]
ADVICE = "a tool's result is text; return a URL or a description instead"


@dataclass
class Drawing:
    title: str
    data: bytes


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (PNG, f"[image/png, 1,032 bytes, not shown: {ADVICE}]"),
        (b"\xff\xd8\xff\xe0" + bytes(96), f"[image/jpeg, 100 bytes, not shown: {ADVICE}]"),
        (b"%PDF-1.7 ...", f"[application/pdf, 12 bytes, not shown: {ADVICE}]"),
        (bytearray(b"\x00\x01\x02"), f"[binary data, 3 bytes, not shown: {ADVICE}]"),
        (memoryview(b"\x00\x01\x02"), f"[binary data, 3 bytes, not shown: {ADVICE}]"),
        (File(media_type="image/webp", data=b"RIFF"), f"[image/webp, 4 bytes, not shown: {ADVICE}]"),
        (b"rain", "rain"),
        (b"caf\xe9", "caf\ufffd"),
        (Drawing("Cat", PNG), '{"title":"Cat","data":"[image/png, 1,032 bytes, not shown: ' + ADVICE + ']"}'),
        ([PNG, "and text"], f'["[image/png, 1,032 bytes, not shown: {ADVICE}]","and text"]'),
    ],
    ids=["png", "jpeg", "pdf", "bytearray", "memoryview", "file", "text", "invalid text", "dataclass", "list"],
)
async def test_s88_a_picture_or_bytes_become_a_text_that_says_so(harness: AppHarness, value: Any, shown: str) -> None:
    def draw() -> Any:
        return value

    model = ScriptedModel([CALL, DONE])
    await harness.start_worker(model, tools=[draw])
    chat = await harness.app.create_chat()
    assert (await chat.send("Draw")).text == "Done"
    assert outline(await chat.messages())[2] == ("tool", shown)
