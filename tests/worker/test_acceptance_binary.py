"""S88: a tool that returns a picture or bytes gives a result that says so, and never a crash.

Pictures and documents are stored as files of the chat; other bytes are only described. That both databases keep files
is tests/files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.app_harness import AppHarness
from tests.support.messages import outline

from indelible.content import File, ToolResult
from indelible.testing import ScriptedModel, parts

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4
CALL = [parts.tool_call("c", "draw", "{}"), parts.finish("tool_calls")]
DONE = [parts.text_delta("1", "Done"), parts.finish()]
ADVICE = "a tool's result is text; return a URL or a description instead"


@dataclass
class Drawing:
    title: str
    data: bytes


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (PNG, "[file: image/png, 1,032 bytes]"),
        (b"\xff\xd8\xff\xe0" + bytes(96), "[file: image/jpeg, 100 bytes]"),
        (b"%PDF-1.7 ...", "[file: application/pdf, 12 bytes]"),
        (bytearray(b"\x00\x01\x02"), f"[binary data, 3 bytes, not shown: {ADVICE}]"),
        (memoryview(b"\x00\x01\x02"), f"[binary data, 3 bytes, not shown: {ADVICE}]"),
        (File(media_type="image/webp", name="cat.webp", data=b"RIFF"), "[file: cat.webp, 4 bytes]"),
        (b"rain", "rain"),
        (b"caf\xe9", "caf\ufffd"),
        (Drawing("Cat", PNG), '{"title":"Cat","data":"[file: image/png, 1,032 bytes]"}'),
        ([PNG, "and text"], '["[file: image/png, 1,032 bytes]","and text"]'),
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
    messages = await chat.messages()
    assert outline(messages)[2] == ("tool", shown)
    result = messages[2].blocks[0]
    assert isinstance(result, ToolResult)
    assert len(result.files) == shown.count("[file: ")
    for file in result.files:
        assert file.data is None
        assert len(await harness.app.read_file(file.file_id or "")) == file.size
