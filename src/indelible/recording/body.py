"""The recorded part of a body, and whether the body was complete.

At most 256 KiB of a body are kept: the first 128 KiB and the last, so that a reader sees how it began and ended.
Pieces are copied into two growing buffers, never joined again, and nothing refers to a piece afterwards: the memory is
bounded whatever the body's size and its chunks. A body that fits is kept whole. Half a JSON document is useless. A
request is complete in memory already: it is referenced until its text is made, which then is a shorter document
(redaction/redact.py). Of a response, the first 4 MiB are kept until then. `RecordedBody.size_bytes` is the memory that
this takes meanwhile.

Redacting a body takes milliseconds, and a body that is never read need not be redacted. So redaction happens when the
text is first read, in the reader's thread, and never during the exchange. There is no other access to the content.

Whether a body is complete is a pure function (`find_fault`, rule 7.1) of what its head promised, what arrived, and
whether its end was seen. A document without a length is judged by parsing it, which needs all of it: one over 256 KiB
counts as complete if its end was seen, and as incomplete if it was closed before. A compressed body cannot
be judged by its length, which is not that of the decoded bytes, so only its end counts.

Must stay true (tests/recording/test_recorded_bodies.py): a body of any size costs a bounded amount of memory. The
marker between head and tail comes from redaction/redact.py; http.py reads and closes bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from indelible.models.http.hooks import HttpResponse
from indelible.redaction.redact import KEPT_BYTES, MAX_WHOLE_BYTES, begins_like_document, redact_body
from indelible.redaction.secrets import NO_SECRETS, KnownSecrets

HEAD_BYTES: Final = KEPT_BYTES // 2
TAIL_BYTES: Final = KEPT_BYTES // 2
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""A JSON response up to this size is kept until its text is made, which then is a shorter document."""

UNEXPECTED_END: Final = "unexpected end"
NOT_REDACTED: Final = "[could not be redacted, so it was not kept]"

_STREAMS: Final = frozenset({
    "text/event-stream",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonl",
    "application/jsonlines",
    "application/x-jsonlines",
    "application/json-seq",
    "application/stream+json",
    "application/x-json-stream",
    "application/vnd.amazon.eventstream",
})  # fmt: skip


class Kept(NamedTuple):
    """The kept parts of a body. If nothing is missing, all of it is in `head`."""

    head: bytes
    tail: bytes
    missing_bytes: int


class BodyCapture:
    """Captures a body piece by piece."""

    __slots__ = ("_head", "_tail", "head_bytes", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.head_bytes = HEAD_BYTES
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, piece: bytes) -> None:
        size_bytes = len(piece)
        self.size_bytes += size_bytes
        room = self.head_bytes - len(self._head)
        if size_bytes <= room:
            self._head += piece
            return
        if room or size_bytes > TAIL_BYTES:
            self._head += piece[:room]
            piece = piece[max(room, size_bytes - TAIL_BYTES) :]
        self._tail += piece
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def release(self) -> None:
        """Free the memory: the body is no longer needed."""
        self._head, self._tail = bytearray(), bytearray()

    @property
    def is_whole(self) -> bool:
        return self.size_bytes <= self.head_bytes + TAIL_BYTES

    @property
    def is_judged(self) -> bool:
        return self.size_bytes <= KEPT_BYTES

    def keep(self) -> Kept:
        head, tail = bytes(self._head), bytes(self._tail[-TAIL_BYTES:])
        if self.is_whole:
            return Kept(head + tail, b"", 0)
        return Kept(head, tail, self.size_bytes - len(head) - len(tail))

    def holds_one_document(self) -> bool:
        """Whether this is exactly one complete JSON document. A large one is not parsed: that takes too long."""
        if not self.is_judged:
            return False
        try:
            msgspec.json.decode(self.keep().head, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


def keep_body(body: bytes) -> Kept:
    """Keep a body that is already in memory. Possible JSON is referenced whole: it will be shortened, not truncated."""
    is_kept_whole = len(body) <= KEPT_BYTES or (len(body) <= MAX_WHOLE_BYTES and begins_like_document(body))
    if is_kept_whole:
        return Kept(body, b"", 0)
    capture = BodyCapture()
    capture.add(body)
    return capture.keep()


class RecordedBody:
    """A body in a record: its redacted text. `on_bug` is called if redaction fails.

    Until its text is read it holds `size_bytes` of memory; that number is constant, so that it can be counted.

    `known` are secrets to redact, whatever they look like.
    """

    def __init__(
        self,
        kept: Kept,
        headers: Mapping[str, str],
        *,
        on_bug: Callable[[Exception], None],
        known: KnownSecrets = NO_SECRETS,
    ) -> None:
        self.size_bytes: Final = len(kept.head) + len(kept.tail)
        self._kept: Kept | None = kept
        self._known = known
        self._content_type = find_header(headers, "content-type")
        self._on_bug = on_bug
        self._lock = Lock()
        self._text = ""

    @property
    def text(self) -> str:
        try:
            with self._lock:
                kept, self._kept = self._kept, None
                if kept is not None and kept.head:
                    self._text = NOT_REDACTED
                    self._text = redact_body(kept.head, self._content_type, kept.tail, kept.missing_bytes, self._known)
        except Exception as bug:
            self._on_bug(bug)
        return self._text


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a response, and what it says about the body. `length_bytes` is None if it is unknown."""

    status: int
    method: str
    headers: dict[str, str]
    content_type: str
    length_bytes: int | None
    is_encoded: bool

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        """Whether its readers stop at the end of the stream, and may never close it."""
        return self.media_type in _STREAMS

    @property
    def has_no_body(self) -> bool:
        return self.method.upper() == "HEAD" or self.status < 200 or self.status in {204, 304}

    @property
    def is_json(self) -> bool:
        named = self.media_type in {"application/json", "text/json"} or self.media_type.endswith("+json")
        return named and not self.is_stream

    @property
    def is_unsized_json(self) -> bool:
        """Whether only the document itself shows that it is complete."""
        return self.is_json and self.length_bytes is None


def find_header(headers: Mapping[str, str], name: str) -> str:
    """A header's value, or an empty text. Names are case-insensitive, in any kind of mapping."""
    return next((value for given, value in headers.items() if given.lower() == name), "").strip()


def read_head(response: HttpResponse) -> ResponseHead:
    headers = response.headers
    is_encoded = find_header(headers, "content-encoding").lower() not in {"", "identity"}
    length = find_header(headers, "content-length")
    is_length = length.isascii() and length.isdigit() and len(length) < 20
    return ResponseHead(
        status=response.status,
        method=response.method,
        headers=dict(headers.items()),
        content_type=find_header(headers, "content-type"),
        length_bytes=int(length) if is_length and not is_encoded else None,
        is_encoded=is_encoded,
    )


def is_short(head: ResponseHead, body: BodyCapture) -> bool:
    """Whether less arrived than was promised (rule 10.17)."""
    return not head.has_no_body and head.length_bytes is not None and body.size_bytes < head.length_bytes


def find_fault(head: ResponseHead, body: BodyCapture, *, end_seen: bool) -> str | None:
    """Why a body that was just closed is incomplete; None if it is complete."""
    if head.has_no_body:
        return None
    if end_seen:
        is_cut = head.is_unsized_json and not head.is_encoded and body.is_judged and not body.holds_one_document()
        return UNEXPECTED_END if is_cut or is_short(head, body) else None
    if head.length_bytes is not None:
        return UNEXPECTED_END if is_short(head, body) else None
    return None if head.is_unsized_json and body.holds_one_document() else UNEXPECTED_END
