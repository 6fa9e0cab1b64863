"""What a guest sees of an event (tests/server/test_shared_reading.py has whole routes)."""

from __future__ import annotations

import msgspec

from indelible.content import encode
from indelible.machine.events import KINDS, EventBody, EventKind, FeedEvent
from indelible.service.guests import show_event

WITH_MORE = frozenset({"snapshot", "chat"})
"""Kinds of which a guest sees a part; tests/server/test_shared_reading.py says which."""


def make_event(kind: EventKind) -> FeedEvent:
    return FeedEvent(kind=kind, cursor="c", body=EventBody(encode({"id": "message_1"})))


def test_a_guest_sees_every_kind_of_event_except_the_queue() -> None:
    hidden = [kind for kind in KINDS if kind not in WITH_MORE and show_event(make_event(kind)) is None]

    assert hidden == ["queue"]


def test_a_guest_does_not_see_a_kind_of_event_that_nobody_has_thought_about() -> None:
    unknown = msgspec.structs.replace(make_event("status"), kind="notes")

    assert show_event(unknown) is None
