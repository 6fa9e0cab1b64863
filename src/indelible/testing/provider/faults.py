"""What can go wrong with an answer, on demand.

A fault is a value; one is put into `SimulatedProvider.faults` for each coming request, or None for an answer that is
right. Bytes and events count the body from its beginning: `Cut(0)` leaves only the head. What they do to a body is
bend.py; those that replace the head are read by server.py.

    provider.faults.extend([Status(529), None, Cut(at_byte=200, clean=False)])
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Status(msgspec.Struct, frozen=True):
    """An error answer. `body` is bytes or JSON; if there is none, it is what the provider says with this status."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}


class Hang(msgspec.Struct, frozen=True):
    """No answer, not even a head, until the client goes."""


class SlowHead(msgspec.Struct, frozen=True):
    """No answer until this is set; the model is not asked before."""

    until: asyncio.Event


class ContentType(msgspec.Struct, frozen=True):
    """The answer calls itself something else."""

    value: str


class Cut(msgspec.Struct, frozen=True):
    """The body ends after so many bytes: `clean`, as if it were whole, or by closing the connection.

    A body that is not longer is not cut.
    """

    at_byte: int
    clean: bool = True


class Stall(msgspec.Struct, frozen=True):
    """After so many bytes nothing more is said: until this is set, or until the client goes."""

    at_byte: int
    until: asyncio.Event | None = None


class ErrorEvent(msgspec.Struct, frozen=True):
    """After so many events the stream says that it failed, and ends. `body` is JSON; without one, the wire's own."""

    after_events: int
    body: Any = None


class Malformed(msgspec.Struct, frozen=True):
    """After so many events one comes whose data is half a JSON document; the rest follows as if nothing were wrong."""

    after_events: int


class HalfCharacter(msgspec.Struct, frozen=True):
    """After so many events one comes whose data ends in the middle of a UTF-8 character; the rest follows."""

    after_events: int


class Chunked(msgspec.Struct, frozen=True):
    """The body comes in pieces of these sizes, again and again. What does not fill a piece waits for more."""

    sizes: Sequence[int]


class Crlf(msgspec.Struct, frozen=True):
    """Lines end with CR and LF."""


class Comments(msgspec.Struct, frozen=True):
    """Comments stand between the events and inside them."""


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
