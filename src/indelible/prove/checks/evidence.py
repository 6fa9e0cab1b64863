"""What is compared at the end of a proof: all that is known about one chat, and what a fault is.

For every chat there are the transcripts of its live readers, over all their reconnects; the transcript of a new reader
who reads everything afterwards; the conversation, the snapshot, the tree and every branch as the server shows them; the
event numbers and the faults of the stored rows, if the database is accessible; and what its user did. For all chats
together there are the files: what was uploaded, and what the server has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from indelible.prove.clients.transcript import ReaderTranscript
from indelible.prove.files import Kind, ProofFile, make_file


class Deeds(msgspec.Struct, kw_only=True):
    """What a user did, as far as the server accepted it.

    `sent` are messages, edits included. `stops`, `edits` and `again` count the requests to stop a reply, to go on
    elsewhere while one may be running, and to answer a question again. `models` are the names of the models that a
    message, by its text, or a turn was to be answered by. `submitted` are the notes of the client's calls that got a
    result, by turn. `counts` are for the report.
    """

    sent: list[str] = []
    stops: int = 0
    edits: int = 0
    again: int = 0
    models: dict[str, str] = {}
    turn_models: dict[str, str] = {}
    submitted: dict[str, list[str]] = {}
    counts: dict[str, int] = {}

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class BranchVisit(msgspec.Struct, frozen=True):
    """A branch that was gone back to: its last message, and the conversation that was shown there."""

    end_id: str
    messages: Sequence[dict[str, Any]]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about one chat. `seqs` are the stored numbers of its events, if the database is accessible."""

    chat_id: str
    deeds: Deeds
    live: Sequence[ReaderTranscript]
    stored: ReaderTranscript
    messages: Sequence[dict[str, Any]]
    snapshot: dict[str, Any]
    tree: dict[str, Any] | None = None
    branches: Sequence[BranchVisit] = ()
    seqs: Sequence[int] | None = None
    row_faults: Sequence[str] = ()


class UploadLog(msgspec.Struct, kw_only=True):
    """What became of the uploads of all users. `accepted` are the keys of files by the ids that the server gave them.

    `broken_off` are keys of uploads that the client ended in the middle.
    """

    accepted: dict[str, str] = {}
    broken_off: list[str] = []
    last_number: int = 0

    def name_another(self, kind: Kind) -> ProofFile:
        """A file of this kind that belongs to no message."""
        while True:
            self.last_number += 1
            file = make_file(f"0.{self.last_number}")
            if file.kind == kind:
                return file

    def count(self) -> dict[str, int]:
        """How many files of each kind were uploaded, for the report."""
        counts = Counter[str](make_file(key).kind for key in self.accepted.values())
        return dict(counts + Counter({"broken off": len(self.broken_off)}))


class StoredCopy(NamedTuple):
    """A file that the server lists. `brought` is the hash of the downloaded bytes, or why there were none."""

    id: str
    name: str
    media_type: str
    sha256: str
    brought: str


class Fault(msgspec.Struct, frozen=True):
    """A broken promise, and its chat, if it has one."""

    sentence: str
    chat_id: str | None = None


_CONTEXT: Final = 30


def describe_difference(one: str, other: str) -> str:
    """The first difference between two texts, with some context."""
    if one == other:
        return "the texts are the same, their rows are not"
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, at - _CONTEXT)
    pieces = [text[begin : at + _CONTEXT] for text in (one, other)]
    return f"after {at} characters …{pieces[0]!r} and …{pieces[1]!r}"
