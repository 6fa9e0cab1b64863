"""Files: what was accepted is stored as it was sent, once, and every message and result has its own.

    every accepted upload is there, and a download brings the bytes that were sent
    nothing is there that nobody uploaded, nor an upload that its client broke off
    an upload is one file, however often the client had to repeat it
    a message has the files that were sent with it, a result of `draw` its picture, each a file of its own

A tool may have run, and its picture may be stored, when the server dies before the result is recorded. That picture is
used by nobody, and goes after a day (docs/files.md): so there are as many pictures of a note as the tool has run at
most, and one that the result names.

prompt_files.py checks what models get; ../file_rows.py what is in the database.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

from indelible.prove.checks.evidence import Evidence, Fault, StoredCopy, UploadLog
from indelible.prove.clients.transcript import SeenMessage, SeenResult
from indelible.prove.files import find_key, list_files, make_file
from indelible.prove.script import Wish
from indelible.prove.servers.tools import DRAW, ToolRun, read_report


def check_files(
    log: UploadLog, copies: Sequence[StoredCopy], runs: Sequence[ToolRun], evidence: Sequence[Evidence]
) -> list[Fault]:
    """What is wrong with the files of all chats."""
    keys = {copy.id: find_key(copy.name) for copy in copies}
    faults = [Fault(sentence) for sentence in (*_check_accepted(log, copies), *_check_surplus(log, copies, runs))]
    named: Counter[str] = Counter()
    for one in evidence:
        for message in one.stored.tree.values():
            faults += [Fault(sentence, one.chat_id) for sentence in _check_message(message, keys)]
        for result in one.stored.results:
            faults += [Fault(sentence, one.chat_id) for sentence in _check_result(result, keys)]
            if result.turn_id is not None:
                named.update(file["file_id"] for file in result.block.get("files", ()))
    shared = [file_id for file_id, times in named.items() if times > 1]
    return faults + [Fault(f"the picture {keys.get(file_id)} is that of several results") for file_id in shared]


def _check_accepted(log: UploadLog, copies: Sequence[StoredCopy]) -> Iterator[str]:
    listed = {copy.id: copy for copy in copies}
    for file_id, key in log.accepted.items():
        if file_id not in listed:
            yield f"the upload of {make_file(key).name} was accepted, and it is not stored"
    for copy in copies:
        uploaded = log.accepted.get(copy.id) or find_key(copy.name)
        if uploaded is None:
            continue  # _check_surplus
        sent = make_file(uploaded)
        if copy.brought != hashlib.sha256(sent.data).hexdigest():
            yield f"{sent.name} is stored, but a download does not bring what was uploaded ({copy.brought})"
        elif (copy.name, copy.media_type, copy.sha256) != (sent.name, sent.media_type, copy.brought):
            yield f"{sent.name} is described as {copy.name}, {copy.media_type}, {copy.sha256}"


def _check_surplus(log: UploadLog, copies: Sequence[StoredCopy], runs: Sequence[ToolRun]) -> Iterator[str]:
    """Files that nobody uploaded, or more of them than there were uploads."""
    allowed = Counter(log.accepted.values()) + Counter(run.note for run in runs if run.name == DRAW)
    for copy in copies:
        key = find_key(copy.name)
        if key in log.broken_off:
            yield f"the upload of {copy.name} was broken off, and it is visible"
        elif key is None or not allowed[key]:
            yield f"{copy.name} is stored, and nobody uploaded it"
    for key, times in Counter(find_key(copy.name) for copy in copies).items():
        if key is not None and times > allowed[key] > 0:
            yield f"{make_file(key).name} is stored {times} times, but was uploaded {allowed[key]} times"


def _check_message(message: SeenMessage, keys: dict[str, str | None]) -> Iterator[str]:
    wish = Wish.parse(message.text) if message.role == "user" else None
    if wish is None:
        return
    expected = [file.key for file in list_files(wish)]
    found = [keys.get(file_id) for file_id in message.files]
    if found != expected:
        yield f"{message.id} has the files {found}, but was sent with {expected}"


def _check_result(result: SeenResult, keys: dict[str, str | None]) -> Iterator[str]:
    block = result.block
    note = read_report(str(block.get("output", "")))
    expected = [note] if block["name"] == DRAW and note is not None else []
    found = [keys.get(file["file_id"]) for file in block.get("files", ())]
    if found != expected:
        yield f"the result {note} of {block['name']} has the files {found}, but returned {expected}"
