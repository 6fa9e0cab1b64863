"""What a model gets of the files in a chat: as much as it takes, within the limits."""

from __future__ import annotations

import asyncio
import inspect
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from PIL import Image
from tests.log_records import DATABASE_AWAY
from tests.support.app_harness import AppHarness
from tests.support.messages import find_notices

from indelible.content import File, Text, ToolResult
from indelible.errors import ModelFailed, StoreFailed
from indelible.files.bytes import DatabaseBytes, DatabaseWriter
from indelible.files.store import FileStore
from indelible.models.profile import find_profile
from indelible.models.protocol import ModelTraits
from indelible.store.database.errors import DatabaseUnreachable
from indelible.testing import ScriptedModel, parts
from indelible.worker import attachments
from indelible.worker.attachments import MAX_TEXT_BYTES

DONE = [parts.text_delta("1", "Done"), parts.finish()]
BLIND = ModelTraits(makes_titles=False, accepts_images=False, accepts_pdfs=False)


def draw(kind: str = "PNG", size: tuple[int, int] = (40, 20)) -> bytes:
    written = io.BytesIO()
    Image.effect_noise(size, 100).convert("RGB").save(written, kind)
    return written.getvalue()


async def ask(harness: AppHarness, model: ScriptedModel, *data: tuple[str, bytes]) -> list[Any]:
    """Send these files, and return the blocks that the model was sent with them."""
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    files = [await harness.app.upload(each, name=name) for name, each in data]
    assert (await chat.send(["Look", *files])).text == "Done"
    return model.calls[-1].messages[-1].blocks[1:]


async def test_pictures_documents_and_text_go_to_a_model_that_takes_them(harness: AppHarness) -> None:
    png, pdf = draw(), b"%PDF-1.7 ..."
    sent = await ask(
        harness, ScriptedModel([DONE]), ("a.png", png), ("a.pdf", pdf), ("a.md", b"# Rain"), ("a.zip", b"PK\x03\x04")
    )
    assert sent == [
        File("image/png", name="a.png", data=png),
        File("application/pdf", name="a.pdf", data=pdf),
        File("text/plain", name="a.md", data=b"# Rain"),
        Text("[The attached file a.zip (application/zip, 4 bytes): its content cannot be shown to you.]"),
    ]


async def test_a_model_that_cannot_see_gets_the_names(harness: AppHarness) -> None:
    model = ScriptedModel([DONE])
    model.traits = BLIND
    png = draw()
    sent = await ask(harness, model, ("a.png", png), ("a.pdf", b"%PDF-1.7"), ("a.txt", b"Rain"))
    hidden = "its content cannot be shown to you.]"
    assert sent == [
        Text(f"[The attached file a.png (image/png, {len(png):,} bytes): {hidden}"),
        Text(f"[The attached file a.pdf (application/pdf, 8 bytes): {hidden}"),
        File("text/plain", name="a.txt", data=b"Rain"),
    ]


async def test_a_picture_that_is_too_large_or_of_another_kind_is_converted(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = draw(size=(300, 200))
    monkeypatch.setattr(attachments, "MAX_PICTURE_BYTES", len(large) - 1)
    sent = await ask(
        harness, ScriptedModel([DONE]), ("large.png", large), ("a.bmp", draw("BMP")), ("broken.png", large[:-500])
    )
    assert [(file.media_type, file.name) for file in sent[:2]] == [("image/webp", "large.png"), ("image/webp", "a.bmp")]
    with Image.open(io.BytesIO(sent[0].data)) as picture:
        assert picture.size == (300, 200)
    assert isinstance(sent[2], File)  # small enough as it is: whether it can be read is up to the provider


async def test_a_long_text_is_cut_and_says_so(harness: AppHarness) -> None:
    (sent,) = await ask(harness, ScriptedModel([DONE]), ("a.txt", b"x" * (MAX_TEXT_BYTES + 7)))
    assert sent.data == b"x" * MAX_TEXT_BYTES + b"\n\n[The other 7 bytes of this file are left out.]"


async def test_newer_files_come_first_when_not_all_fit(harness: AppHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    png = draw()
    monkeypatch.setattr(attachments, "MAX_REQUEST_BYTES", len(png) + 10)
    model = ScriptedModel([DONE, DONE])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    for name in ("old.png", "new.png"):
        assert (await chat.send([name, await harness.app.upload(png, name=name)])).text == "Done"
    first, second = (message.blocks[1] for message in model.calls[-1].messages if message.role == "user")
    assert first == Text(
        f"[The attached file old.png (image/png, {len(png):,} bytes): "
        "it is left out here, because newer files fill the request.]"
    )
    assert second == File("image/png", name="new.png", data=png)


async def test_a_file_that_cannot_be_read_now_fails_the_turn_and_a_retry_helps(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel([DONE])
    await harness.start_worker(model)
    chat = await harness.app.create_chat()
    file = await harness.app.upload(draw(), name="a.png")

    async def fail(*_given: Any, **_more: Any) -> AsyncIterator[bytes]:
        for _ in ():
            yield b""
        raise StoreFailed("the disk is on fire")

    with monkeypatch.context() as broken:
        broken.setattr(DatabaseBytes, "read", fail)
        with pytest.raises(ModelFailed):
            await chat.send(["Look", file])
    assert find_notices(await chat.messages()) == [
        "The file a.png could not be read from the file storage. Retry in a moment."
    ]
    assert (await chat.retry()).text == "Done"
    assert isinstance(model.calls[0].messages[-1].blocks[1], File)


class Outage:
    """Replaces a method: the database does not answer the first calls, and then everything is as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, calls: int = 2) -> None:
        self.left = calls
        self.began = asyncio.Event()
        answer = getattr(owner, name)

        def call(*given: Any, **more: Any) -> Any:
            return answer(*given, **more) if self._is_over() else self._fail()

        def stream(*given: Any, **more: Any) -> Any:
            return answer(*given, **more) if self._is_over() else self._fail_stream()

        monkeypatch.setattr(owner, name, stream if inspect.isasyncgenfunction(answer) else call)

    def _is_over(self) -> bool:
        self.left -= 1
        self.began.set()
        return self.left < 0

    async def _fail(self) -> None:
        raise DatabaseUnreachable("The connection was lost. Try again.")

    async def _fail_stream(self) -> AsyncIterator[bytes]:
        yield b"half"
        await self._fail()


@pytest.mark.both_databases
@pytest.mark.parametrize(("owner", "method"), [(FileStore, "find_used"), (DatabaseBytes, "read")])
@pytest.mark.may_log(*DATABASE_AWAY)
async def test_a_connection_that_is_lost_while_files_are_read_is_waited_for(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    outage = Outage(monkeypatch, owner, method)
    png = draw()
    assert await ask(harness, ScriptedModel([DONE]), ("a.png", png)) == [File("image/png", name="a.png", data=png)]
    assert outage.left < 0


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("owner", "method"), [(FileStore, "_begin"), (DatabaseWriter, "write"), (FileStore, "_finish")]
)
@pytest.mark.may_log(*DATABASE_AWAY)
async def test_a_file_of_a_tool_waits_for_a_lost_connection_and_is_kept(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    png = draw()

    def chart() -> bytes:
        return png

    outage = Outage(monkeypatch, owner, method)
    model = ScriptedModel([[parts.tool_call("c", "chart", "{}"), parts.finish("tool_calls")], DONE])
    await harness.start_worker(model, tools=[chart])
    chat = await harness.app.create_chat()
    assert (await chat.send("Draw")).text == "Done"
    result = (await chat.messages())[2].blocks[0]
    assert isinstance(result, ToolResult)
    assert [(file.size, file.file_id is not None) for file in result.files] == [(len(png), True)]
    assert "not stored" not in result.output
    sent = model.calls[-1].messages[-1].blocks[0]
    assert isinstance(sent, ToolResult)
    assert sent.files == [File("image/png", name="chart-1.png", data=png)]
    assert outage.left < 0


@pytest.mark.may_log(*DATABASE_AWAY)
async def test_a_stop_ends_the_wait_for_a_file(harness: AppHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch, FileStore, "find_used", calls=10**9)
    await harness.start_worker(ScriptedModel([]))
    chat = await harness.app.create_chat()
    await chat.post(["Look", await harness.app.upload(draw(), name="a.png")])
    await outage.began.wait()
    assert (await chat.interrupt()).status == "idle"
    assert find_notices(await chat.messages()) == ["Stopped by you."]
    assert outage.left > 0


async def test_a_picture_of_a_tool_is_stored_shown_to_the_model_and_deleted_with_the_chat(harness: AppHarness) -> None:
    png = draw()

    def chart() -> list[Any]:
        return ["Here:", File("image/png", name="chart.png", data=png)]

    model = ScriptedModel([[parts.tool_call("c", "chart", "{}"), parts.finish("tool_calls")], DONE])
    await harness.start_worker(model, tools=[chart])
    chat = await harness.app.create_chat()
    assert (await chat.send("Draw")).text == "Done"
    (stored,) = await harness.app.files()
    result = (await chat.messages())[2].blocks[0]
    assert isinstance(result, ToolResult)
    assert result.files == [File("image/png", name="chart.png", file_id=stored.id, size=len(png))]
    sent = model.calls[-1].messages[-1].blocks[0]
    assert isinstance(sent, ToolResult)
    assert sent.files == [File("image/png", name="chart.png", data=png)]
    await chat.delete()
    assert await harness.app.files() == []


@pytest.mark.may_log("a file of a tool could not be stored")
async def test_a_file_of_a_tool_that_cannot_be_stored_is_named_with_the_reason(
    harness: AppHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chart() -> bytes:
        return draw()

    async def fail(*_given: Any, **_more: Any) -> None:
        raise StoreFailed("the disk is on fire")

    monkeypatch.setattr("indelible.files.bytes.DatabaseWriter.write", fail)
    model = ScriptedModel([[parts.tool_call("c", "chart", "{}"), parts.finish("tool_calls")], DONE])
    await harness.start_worker(model, tools=[chart])
    chat = await harness.app.create_chat()
    assert (await chat.send("Draw")).text == "Done"
    result = (await chat.messages())[2].blocks[0]
    assert isinstance(result, ToolResult)
    assert result.output.endswith("\n[chart-1.png was not stored: the file storage failed]")
    assert result.files == []


@pytest.mark.parametrize(
    ("wire", "model", "pictures", "documents"),
    [
        ("anthropic", "claude-sonnet-4-5", True, True),
        ("anthropic", "claude-2.1", False, False),
        ("openai", "gpt-5", True, True),
        ("openai", "o3-mini", False, False),
        ("openai-chat", "gpt-4o", True, True),
        ("openai-chat", "gpt-3.5-turbo", False, False),
        ("openai-chat", "deepseek-chat", False, False),
        ("openai-chat", "qwen2.5-vl-72b", True, False),
        ("openai-chat", "qwen3-32b", False, False),
        ("openai-chat", "llama-3.3-70b", False, False),
        ("openai-chat", "llama-4-scout", True, False),
        ("openai-chat", "google/gemini-2.5-pro", True, True),
        ("openai-chat", "something-new", True, False),
    ],
)
def test_what_a_model_takes_is_known_by_its_name(wire: str, model: str, pictures: bool, documents: bool) -> None:
    profile = find_profile(wire, model, provider_id=None)
    assert (profile.accepts_images, profile.accepts_pdfs) == (pictures, documents)
