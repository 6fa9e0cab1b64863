"""One exchange: what is kept of it, whether it was complete, and how it reads without secrets.

At most 256 KiB of a body are kept: the first 128 KiB and the last, so that a reader sees how it began and ended.
Pieces are copied into two growing buffers, and nothing refers to a piece afterwards: the memory is bounded whatever the
body's size and its chunks. A body that fits is kept whole. Half a JSON document is useless. A request is complete in
memory already: it is referenced until it is redacted, which makes a shorter document of it (redaction/redact.py). Of a
response, the first 4 MiB are kept until then. `ExchangeRecord.size_bytes` is the memory that this takes meanwhile.

A record holds what was exchanged as it came, and shows it only redacted: there is no other access. Redacting takes
milliseconds and most exchanges are forgotten unread, so it happens when the text is read, in the reader's thread
(recorder.py has one), and never while the exchange is under way.

Whether a body is complete is a pure function (`find_fault`, rule 7.1) of what its head promised, what arrived, and
whether its end was seen. A document without a length is judged by parsing it, which needs all of it: one over 256 KiB
counts as complete if its end was seen, and as incomplete if it was closed before. A compressed body cannot
be judged by its length, which is not that of the decoded bytes, so only its end counts.

Must stay true (tests/recording/test_recorded_bodies.py): a body of any size costs a bounded amount of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from indelible.api.records import AttemptStatus
from indelible.models.http.hooks import HttpRequest, HttpResponse
from indelible.redaction.redact import (
    KEPT_BYTES,
    MAX_WHOLE_BYTES,
    begins_like_document,
    redact_body,
    redact_headers,
    redact_line,
)
from indelible.redaction.secrets import NO_SECRETS, KnownSecrets

HEAD_BYTES: Final = KEPT_BYTES // 2
TAIL_BYTES: Final = KEPT_BYTES // 2
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""A JSON response up to this size is kept until it is redacted, which makes a shorter document of it."""

UNEXPECTED_END: Final = "unexpected end"


class Kept(NamedTuple):
    """The kept parts of a body. If nothing is missing, all of it is in `head`."""

    head: bytes
    tail: bytes
    missing_bytes: int

    def redact(self, headers: Mapping[str, str], known: KnownSecrets = NO_SECRETS) -> str:
        """The text of a body that came with these headers."""
        if not self.head:
            return ""
        return redact_body(self.head, find_header(headers, "content-type"), self.tail, self.missing_bytes, known)


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

    @property
    def held_bytes(self) -> int:
        return len(self._head) + len(self._tail)

    @property
    def is_judged(self) -> bool:
        return self.size_bytes <= KEPT_BYTES

    def keep(self) -> Kept:
        head, tail = bytes(self._head), bytes(self._tail[-TAIL_BYTES:])
        if self.size_bytes <= self.head_bytes + TAIL_BYTES:
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


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a response, and what it says about the body. `length_bytes` is None if it is unknown."""

    status: int
    method: str
    headers: dict[str, str]
    media_type: str
    length_bytes: int | None
    is_encoded: bool

    @property
    def is_stream(self) -> bool:
        """Whether its readers stop at the end of the stream, and may never close it."""
        return self.media_type == "text/event-stream"

    @property
    def has_no_body(self) -> bool:
        return self.method.upper() == "HEAD" or self.status < 200 or self.status in {204, 304}

    @property
    def is_json(self) -> bool:
        return self.media_type in {"application/json", "text/json"} or self.media_type.endswith("+json")

    @property
    def is_unsized_json(self) -> bool:
        """Whether only the document itself shows that it is complete."""
        return self.is_json and self.length_bytes is None


def find_header(headers: Mapping[str, str], name: str) -> str:
    """A header's value, or an empty text. Names are case-insensitive, in any kind of mapping."""
    return next((value for given, value in headers.items() if given.lower() == name), "").strip()


def read_head(response: HttpResponse) -> ResponseHead:
    headers = dict(response.headers.items())
    is_encoded = find_header(headers, "content-encoding").lower() not in {"", "identity"}
    length = find_header(headers, "content-length")
    is_length = length.isascii() and length.isdigit() and len(length) < 20
    return ResponseHead(
        status=response.status,
        method=response.method,
        headers=headers,
        media_type=find_header(headers, "content-type").partition(";")[0].strip().lower(),
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


class ExchangeRecord(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One exchange that has been counted. Its texts are redacted when they are read, which may take milliseconds.

    `_request` (without its body, which is `_sent`) is None if only a response was recorded, `_head` if none came.
    """

    number: int
    status: AttemptStatus
    error: str | None
    started_at: datetime | None
    answered_at: datetime | None
    ended_at: datetime
    _secrets: KnownSecrets
    _request: HttpRequest | None
    _sent: Kept
    _head: ResponseHead | None
    _received: BodyCapture

    def __repr__(self) -> str:
        """It may be logged: without what was exchanged."""
        return f"<exchange {self.number}: {self.method}, {self.status_code}, {self.status}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("number", self.number), ("status", self.status)]

    @cached_property
    def _known(self) -> KnownSecrets:
        """The secrets that it may repeat."""
        return self._secrets.sent_with(self._request.headers) if self._request else self._secrets

    @property
    def size_bytes(self) -> int:
        """The memory that its bodies take."""
        return len(self._sent.head) + len(self._sent.tail) + self._received.held_bytes

    @property
    def method(self) -> str:
        return self._request.method if self._request else self._head.method if self._head else ""

    @property
    def status_code(self) -> int | None:
        return self._head.status if self._head else None

    @property
    def url(self) -> str:
        return redact_line(self._request.url, self._known) if self._request else ""

    @property
    def request_headers(self) -> dict[str, str]:
        return redact_headers(self._request.headers, self._known) if self._request else {}

    @property
    def response_headers(self) -> dict[str, str]:
        return redact_headers(self._head.headers, self._known) if self._head else {}

    @property
    def request_body(self) -> str:
        return self._sent.redact(self._request.headers if self._request else {}, self._known)

    @property
    def response_body(self) -> str:
        return self._received.keep().redact(self._head.headers if self._head else {}, self._known)
