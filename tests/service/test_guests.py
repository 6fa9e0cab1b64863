"""What a guest sees of an event (tests/server/test_shared_reading.py has whole routes)."""

from __future__ import annotations

import msgspec
import pytest

from indelible.content import encode
from indelible.machine.events import KINDS, ChatSnapshot, EventBody, EventKind, FeedEvent, ShownMessage
from indelible.service.access.guests import show_event
from indelible.service.results import ChatDetails
from indelible.store.lists.transfer import ChatFile, FileMessage
from indelible.store.queries.listing import ChatSummary

WITH_MORE = frozenset({"snapshot", "chat"})
"""Kinds of which a guest sees a part; tests/server/test_shared_reading.py says which."""


def make_event(kind: EventKind) -> FeedEvent:
    return FeedEvent(kind=kind, cursor="c", body=EventBody(encode({"id": "message_1"})))


def test_a_guest_sees_every_kind_of_event_except_the_queue() -> None:
    hidden = [kind for kind in KINDS if kind not in WITH_MORE and show_event(make_event(kind)) is None]

    assert hidden == ["queue"]


def test_a_guest_sees_no_change_of_the_metadata_that_nobody_has_thought_about() -> None:
    changed = {"title": "Rain", "archived": True, "labels": ["mine"], "debug": "all", "notes": "new"}
    event = msgspec.structs.replace(make_event("chat"), body=EventBody(encode(changed)))
    shown = show_event(event)

    assert shown is not None
    assert shown.data == {"title": "Rain", "archived": True}
    of_owner = msgspec.structs.replace(event, body=EventBody(encode({"notes": "new"})))
    assert show_event(of_owner) is None


def test_a_guest_does_not_see_a_kind_of_event_that_nobody_has_thought_about() -> None:
    unknown = msgspec.structs.replace(make_event("status"), kind="notes")

    assert show_event(unknown) is None


SNAPSHOT = """
    id status cursor title model debug archived usage cost_usd turn error retry queue live action messages has_more
    """
KNOWN: dict[type[msgspec.Struct], str] = {
    ChatSnapshot: SNAPSHOT,
    ChatDetails: SNAPSHOT + "labels pinned unread system draft",
    ShownMessage: "id parent_id role blocks partial reason continues model usage cost_usd timings created_at siblings",
    ChatFile: """
        format version exported_at title title_is_provisional model system parameters tools labels created_at head
        messages
        """,
    ChatSummary: """
        id status title model labels pinned archived unread debug version created_at updated_at usage cost_usd match
        """,
    FileMessage: """
        id parent_id role blocks visibility partial reason continues provider model usage cost_nanousd timings error
        created_at
        """,
}


@pytest.mark.parametrize("shown", KNOWN)
def test_somebody_has_thought_about_every_field_that_a_guest_may_see(shown: type[msgspec.Struct]) -> None:
    """A field that is new here is shown to guests: hide it in service/access/guests.py, if it is the owner's."""
    assert list(shown.__struct_fields__) == KNOWN[shown].split()
