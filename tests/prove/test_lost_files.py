"""Files that are lost or misplaced on purpose: the verdict has a sentence for each of them.

One chat, whose message has a file of each kind and whose reply draws a picture. Nothing is killed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.prove.file_sabotage import SABOTAGES
from tests.prove.quiet_sabotage import Sabotage
from tests.support.app_harness import serve_app
from tests.support.waiting import deadline

from indelible.api.inputs import CreateChat, to_blocks
from indelible.prove.checks import check_chat, check_files
from indelible.prove.evidence import UploadLog, find_left_files, find_row_faults
from indelible.prove.model import ProofModel
from indelible.prove.population import collect_evidence
from indelible.prove.provider import PromptInspector
from indelible.prove.reader import SimulatedReader
from indelible.prove.script import Wish, find_reply
from indelible.prove.tools import CrashPoints, make_tools, read_notebook
from indelible.prove.user import SimulatedUser, load_copies
from indelible.store.database.migrate import open_database

WISH = Wish(number=34, words=4, pace_ms=0, tools=3, files=3)


async def find_faults(directory: Path, *, delete: bool = False) -> list[str]:
    """With `delete`: those of a directory of files, after the chat was deleted and a file appeared from nowhere."""
    prompts, uploads = PromptInspector(), UploadLog()
    address, notebook, bytes_at = str(directory / "chats.db"), directory / "notebook", directory / "files"
    model, tools = ProofModel(on_call=prompts.inspect), make_tools(notebook, CrashPoints())
    place: dict[str, Any] = {"files": f"directory:{bytes_at}"} if delete else {}
    async with deadline(), serve_app(address, model, tools=tools, **place) as running:
        client = running.service
        user = SimulatedUser(client, number=1, seed=1, models=(), phrases=None, uploads=uploads)
        created = await client.create_chat(CreateChat(message=to_blocks(await user.sender.attach(WISH.to_text()))))
        user.log.sent.append(WISH.to_text())
        reader = SimulatedReader(client, created.id)
        reading = asyncio.create_task(reader.read())
        try:
            await reader.wait_until(lambda seen: seen.ended == 1)
            evidence = await collect_evidence(client, created.id, user.log, [reader], at_most_s=60)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        copies = await load_copies(client)
        database = await open_database(address)
        try:
            if delete:
                assert len(await find_row_faults(database, bytes_at)) == 0
                await client.delete_chat(created.id)
                left = await find_left_files(database)
                (bytes_at / ".file_9.part").touch()
                return [*left, *await find_row_faults(database, bytes_at)]
            rows = await find_row_faults(database)
        finally:
            await database.close()
    found = [*check_files(uploads, copies, read_notebook(notebook), [evidence]), *check_chat(evidence, find_reply)]
    return [*prompts.faults, *rows, *(fault.sentence for fault in found)]


async def test_a_build_that_keeps_every_file_has_no_fault(tmp_path: Path) -> None:
    assert await find_faults(tmp_path) == []


async def test_a_deleted_chat_leaves_no_file_and_bytes_without_a_row_are_found(tmp_path: Path) -> None:
    assert await find_faults(tmp_path, delete=True) == [".file_9.part has bytes of a file, and no row"]


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
@pytest.mark.may_log("a download was truncated")
async def test_a_build_that_loses_files_is_caught_by_name(
    sabotage: Sabotage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)

    faults = await find_faults(tmp_path)

    assert any(SABOTAGES[sabotage] in fault for fault in faults), faults
