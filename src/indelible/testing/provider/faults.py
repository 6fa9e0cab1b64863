"""Failures of a response, on demand.

A fault is a value. `SimulatedProvider.faults` holds one for each coming request, or None for a correct response. Bytes
and events are counted from the beginning of the body: `Cut(0)` leaves only the head. bend.py applies faults to a body;
exchange.py handles those that replace the head.

    provider.faults.extend([Status(529), None, Cut(at_byte=200, clean=False)])
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Status(msgspec.Struct, frozen=True):
    """An error response. `body` is bytes or JSON; by default it is the provider's body for this status."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}


class Hang(msgspec.Struct, frozen=True):
    """No response, not even a head, until the client disconnects."""


class SlowHead(msgspec.Struct, frozen=True):
    """No response until this is set; the model is not called before."""

    until: asyncio.Event


class ContentType(msgspec.Struct, frozen=True):
    """The response has another content type."""

    value: str


class Cut(msgspec.Struct, frozen=True):
    """The body ends after so many bytes: `clean`, as if it were complete, or by closing the connection.

    A shorter body is not cut.
    """

    at_byte: int
    clean: bool = True


class Stall(msgspec.Struct, frozen=True):
    """After so many bytes nothing more is sent until this is set, or until the client disconnects."""

    at_byte: int
    until: asyncio.Event | None = None


class ErrorEvent(msgspec.Struct, frozen=True):
    """After so many events the stream reports an error and ends. `body` is JSON; by default the provider's own."""

    after_events: int
    body: Any = None


class Malformed(msgspec.Struct, frozen=True):
    """After so many events, one has data that is half a JSON document; the rest follows as if nothing were wrong."""

    after_events: int


class HalfCharacter(msgspec.Struct, frozen=True):
    """After so many events, one has data that ends in the middle of a UTF-8 character; the rest follows."""

    after_events: int


class Chunked(msgspec.Struct, frozen=True):
    """The body comes in chunks of these sizes, repeated. A partial chunk waits for more bytes."""

    sizes: Sequence[int]


class Crlf(msgspec.Struct, frozen=True):
    """Lines end with CR and LF."""


class Comments(msgspec.Struct, frozen=True):
    """Comments between the events and inside them."""


Fault = (
    Status
    | Hang
    | SlowHead
    | ContentType
    | Cut
    | Stall
    | ErrorEvent
    | Malformed
    | HalfCharacter
    | Chunked
    | Crlf
    | Comments
)
