"""The check of files, on evidence that is written by hand: whatever is lost, changed, doubled or foreign is found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from indelible.prove.checks import check_files
from indelible.prove.evidence import Evidence, StoredCopy, UploadLog, UserLog
from indelible.prove.reader import ReaderTranscript, SeenMessage, SeenResult
from indelible.prove.script import Wish, list_files, make_file
from indelible.prove.tools import DRAW, ONCE, ToolRun

WISH = Wish(number=34, words=1, pace_ms=0, files=2)
FIRST, SECOND = (file.key for file in list_files(WISH))
RUN = ToolRun(DRAW, "turn_1/call_2", "34-7")
BROKEN_OFF = "0.5"


def copy(file_id: str, key: str, **changes: Any) -> StoredCopy:
    file = make_file(key)
    sha256 = hashlib.sha256(file.data).hexdigest()
    return StoredCopy(file_id, file.name, file.media_type, sha256, sha256)._replace(**changes)


COPIES = [copy("file_1", FIRST), copy("file_2", SECOND), copy("file_3", RUN.note)]


def tell(files: Sequence[str] = ("file_1", "file_2"), drawn: Sequence[str] = ("file_3",), name: str = DRAW) -> Evidence:
    """A chat with one message and one result, which have these files."""
    transcript = ReaderTranscript()
    transcript.tree["message_1"] = SeenMessage(
        id="message_1",
        parent_id=None,
        role="user",
        text=WISH.to_text(),
        partial=False,
        reason=None,
        model=None,
        usage=None,
        turn_id="turn_1",
        described="",
        files=tuple(files),
    )
    shown = [{"type": "file", "file_id": file_id} for file_id in drawn]
    block = {"name": name, "output": f'["noted {RUN.note}","[file: …]"]', "files": shown}
    transcript.results.append(SeenResult("turn_1", block))
    return Evidence(chat_id="chat_1", log=UserLog(), live=[], stored=transcript, messages=[], snapshot={})


def find(copies: Sequence[StoredCopy], *evidence: Evidence, runs: Sequence[ToolRun] = (RUN,)) -> list[str]:
    log = UploadLog(accepted={"file_1": FIRST, "file_2": SECOND}, broken_off=[BROKEN_OFF])
    return [fault.sentence for fault in check_files(log, copies, runs, evidence or [tell()])]


def test_what_was_sent_and_is_there_has_no_fault() -> None:
    assert find(COPIES) == []


def test_a_picture_whose_result_a_crash_has_prevented_may_be_left() -> None:
    assert find([*COPIES, copy("file_4", RUN.note)], runs=[RUN, RUN]) == []


def test_a_fork_has_the_files_of_what_it_was_forked_from() -> None:
    fork = tell()
    fork.stored.results[0] = fork.stored.results[0]._replace(turn_id=None)

    assert find(COPIES, tell(), fork) == []


@pytest.mark.parametrize(
    ("copies", "evidence", "fault"),
    [
        (COPIES[1:], tell(), "the upload of proof-34.1.txt was accepted, and it is not stored"),
        ([*COPIES[1:], copy("file_1", FIRST, brought="it is truncated")], tell(), "does not bring what was uploaded"),
        ([*COPIES[1:], copy("file_1", FIRST, sha256="00")], tell(), "proof-34.1.txt is described as"),
        ([*COPIES[1:], copy("file_1", FIRST, media_type="text/html")], tell(), "is described as"),
        ([*COPIES, copy("file_4", FIRST)], tell(), "proof-34.1.txt is stored 2 times, but was uploaded 1 times"),
        ([*COPIES, copy("file_4", RUN.note)], tell(), "proof-34-7.png is stored 2 times, but was uploaded 1 times"),
        ([*COPIES, copy("file_4", BROKEN_OFF)], tell(), "was broken off, and it is visible"),
        ([*COPIES, copy("file_4", "0.9")], tell(), "is stored, and nobody uploaded it"),
        ([*COPIES, copy("file_4", "0.9", name="notes.txt")], tell(), "notes.txt is stored, and nobody uploaded it"),
        (COPIES, tell(files=["file_1"]), "message_1 has the files ['34.1'], but was sent with ['34.1', '34.2']"),
        (COPIES, tell(files=["file_2", "file_1"]), "message_1 has the files ['34.2', '34.1']"),
        (COPIES, tell(files=["file_1", "file_9"]), "message_1 has the files ['34.1', None]"),
        (COPIES, tell(drawn=[]), "the result 34-7 of draw has the files [], but returned ['34-7']"),
        (COPIES, tell(drawn=["file_1"]), "the result 34-7 of draw has the files ['34.1']"),
        (COPIES, tell(name=ONCE), "the result 34-7 of jot_once has the files ['34-7'], but returned []"),
    ],
)
def test_a_single_fault_is_found(copies: Sequence[StoredCopy], evidence: Evidence, fault: str) -> None:
    found = find(copies, evidence)

    assert any(fault in sentence for sentence in found), found


def test_two_results_have_no_picture_in_common() -> None:
    assert find(COPIES, tell(), tell()) == ["the picture 34-7 is that of several results"]
