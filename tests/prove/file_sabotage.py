"""Ways to lose or misplace a file, one function each, and what a verdict says of them (see quiet_sabotage.py)."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace
from tests.prove.quiet_sabotage import Sabotage

from indelible.api.shapes import StoredFile
from indelible.content import File, Message, ToolResult
from indelible.files.store import FileStore
from indelible.store.commands import chat, history
from indelible.tools.run import ToolRunner
from indelible.worker import attachments
from indelible.worker.attachments import Attachments


def lose_bytes_after_the_response(patch: pytest.MonkeyPatch) -> None:
    finish = FileStore._finish

    async def lose(self: FileStore, *arguments: Any, **named: Any) -> StoredFile:
        stored = await finish(self, *arguments, **named)
        await self._at("database").delete(stored.id)
        return stored

    patch.setattr(FileStore, "_finish", lose)


def show_models_no_files(patch: pytest.MonkeyPatch) -> None:
    async def drop(_self: Any, message: Message) -> Message:
        return replace(message, blocks=[block for block in message.blocks if not isinstance(block, File)])

    patch.setattr(attachments._Loading, "fill", drop)


def store_a_drawing_twice(patch: pytest.MonkeyPatch) -> None:
    keep = Attachments.keep

    async def keep_twice(self: Attachments, file: File) -> File | str:
        await keep(self, file)
        return await keep(self, file)

    patch.setattr(Attachments, "keep", keep_twice)


def forget_drawings(patch: pytest.MonkeyPatch) -> None:
    async def forget(_self: Any, result: ToolResult) -> ToolResult:
        return replace(result, files=[])

    patch.setattr(ToolRunner, "_keep_files", forget)


def lose_the_last_file_of_a_message(patch: pytest.MonkeyPatch) -> None:
    use = history.use_files

    async def lose(*arguments: Any) -> list[Any]:
        return (await use(*arguments))[:-1]

    for module in (history, chat):
        patch.setattr(module, "use_files", lose)


SABOTAGES: Final[dict[Sabotage, str]] = {
    lose_bytes_after_the_response: "a download does not bring what was uploaded",
    show_models_no_files: "a prompt has the question 34 without its file 34.1",
    store_a_drawing_twice: "proof-34-3.png is stored 2 times, but was uploaded 1 times",
    forget_drawings: "the result 34-3 of draw has the files [], but returned ['34-3']",
    lose_the_last_file_of_a_message: "has the files ['34.1', '34.2'], but was sent with ['34.1', '34.2', '34.3']",
}
