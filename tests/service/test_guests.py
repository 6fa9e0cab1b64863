"""What a guest sees of an event (tests/server/test_shared_reading.py has whole routes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import pytest

from indelible.api.events import (
    KINDS,
    ChatSnapshot,
    EventBody,
    EventKind,
    FeedEvent,
    MessageAdded,
    MessageTree,
    ShownMessage,
    TreeItem,
)
from indelible.api.shapes import ChatDetails, ChatMessage, ChatSummary, MessagePage
from indelible.content import encode
from indelible.service.guests import show_chat, show_event, show_file, show_summary
from indelible.store.transfer import ChatFile, FileMessage

AT: Final = "2026-01-01T00:00:00Z"
MATCH: Final = {"message_id": "message_1", "snippet": {"text": "Rain", "ranges": [[0, 1]]}}
Filled = TypeVar("Filled", bound=msgspec.Struct)

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
MESSAGE_FIELDS: Final = (
    "id parent_id role blocks partial reason continues model usage cost_usd timings created_at siblings"
)
KNOWN: dict[type[msgspec.Struct], str] = {
    ChatSnapshot: SNAPSHOT,
    ChatDetails: SNAPSHOT + "labels pinned unread system draft",
    ShownMessage: MESSAGE_FIELDS,
    ChatMessage: MESSAGE_FIELDS,
    MessageAdded: "message attempt last_n queued",
    MessagePage: "cursor items next previous",
    MessageTree: "head items",
    TreeItem: "id parent_id role model created_at text",
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


HIDDEN: dict[type[msgspec.Struct], dict[str, object]] = {
    ChatSnapshot: {"queue": [], "debug": None},
    ChatDetails: {
        "queue": [], "debug": None, "labels": [], "pinned": False, "unread": False, "system": None, "draft": None,
    },
    ChatSummary: {"labels": [], "pinned": False, "unread": False, "debug": None},
    ChatFile: {"labels": [], "system": None, "parameters": None, "tools": None},
    ShownMessage: {"siblings": ["message_2"]},
    ChatMessage: {"siblings": ["message_2"]},
}  # fmt: skip
"""What a guest gets of the owner's fields. Every other field is what the owner gets."""

QUEUED: Final[dict[str, Any]] = {"id": "queued_1", "if_busy": "queue", "blocks": [], "model": None, "created_at": AT}
MESSAGE: Final = {
    "id": "message_2", "parent_id": "message_1", "role": "assistant", "blocks": [{"type": "text", "text": "Hello"}],
    "partial": True, "reason": "interrupted", "continues": "message_1", "model": "m", "usage": {"input_tokens": 1},
    "cost_usd": 0.5, "timings": {}, "created_at": AT, "siblings": ["message_2", "message_3"],
}  # fmt: skip
BESIDE: Final = {
    "id": "chat_1", "status": "idle", "title": "Rain", "model": "m", "debug": "all", "archived": True,
    "usage": {"input_tokens": 1}, "cost_usd": 0.5, "labels": ["mine"], "pinned": True, "unread": True,
}  # fmt: skip
SEEN: Final = BESIDE | {
    "cursor": "c", "turn": "turn_1", "error": {"kind": "timeout"}, "retry": {"number": 1}, "queue": [QUEUED],
    "live": {"attempt": "attempt_1", "blocks": []}, "action": {"calls": [], "deadline_at": AT}, "messages": [MESSAGE],
    "has_more": True, "system": "Be brief.", "draft": "So far",
}  # fmt: skip
EXPORTED: Final = {
    "format": "indelible.chat", "version": 1, "exported_at": AT, "title": "Rain", "title_is_provisional": True,
    "model": "m", "system": "Be brief.", "parameters": {"temperature": 1}, "labels": ["mine"], "created_at": AT,
    "tools": [{"name": "look", "description": "", "input_schema": {}}], "head": "m1",
    "messages": [
        {
            "id": "m1", "role": "assistant", "blocks": [], "partial": True, "reason": "interrupted", "provider": "p",
            "model": "m", "usage": {"input_tokens": 1}, "cost_nanousd": 1, "timings": {}, "error": {"kind": "timeout"},
            "created_at": AT,
        },
    ],
}  # fmt: skip


def show_snapshot(snapshot: ChatSnapshot) -> ChatSnapshot:
    shown = show_event(FeedEvent(kind="snapshot", cursor="c", body=EventBody(encode(snapshot))))
    assert shown is not None
    return msgspec.json.decode(shown.json, type=ChatSnapshot)


def fill(type_: type[Filled], values: dict[str, Any]) -> Filled:
    """A value in every field that is not its default."""
    filled = msgspec.json.decode(encode({name: values.get(name) for name in KNOWN[type_].split()}), type=type_)
    for field in msgspec.structs.fields(type_):
        assert getattr(filled, field.name) not in (None, [], False, field.default), field.name
    return filled


def differ(of_owner: msgspec.Struct, of_guest: msgspec.Struct) -> dict[str, object]:
    """The fields in which the guest's is not the owner's."""
    return {
        name: value
        for name in of_owner.__struct_fields__
        if encode(value := getattr(of_guest, name)) != encode(getattr(of_owner, name))
    }


@pytest.mark.parametrize(
    ("type_", "values", "show"),
    [
        (ChatSnapshot, SEEN, show_snapshot),
        (ChatDetails, SEEN, show_chat),
        (ChatSummary, BESIDE | {"version": 3, "created_at": AT, "updated_at": AT, "match": MATCH}, show_summary),
        (ChatFile, EXPORTED, show_file),
    ],
)
def test_every_field_is_hidden_from_guests_or_is_what_the_owner_sees(
    type_: type[msgspec.Struct], values: dict[str, Any], show: Callable[[Any], msgspec.Struct]
) -> None:
    of_owner = fill(type_, values)
    of_guest = show(of_owner)
    changed = differ(of_owner, of_guest)
    changed_messages: Any = changed.pop("messages", [])

    assert changed == HIDDEN[type_]
    assert bool(changed_messages) == (type_ in (ChatSnapshot, ChatDetails))
    messages: list[Any] = getattr(of_owner, "messages", [])
    for message in changed_messages:
        assert differ(messages[0], message) == HIDDEN[type(message)]


@pytest.mark.parametrize("shown", KNOWN)
def test_somebody_has_thought_about_every_field_that_a_guest_may_see(shown: type[msgspec.Struct]) -> None:
    """A field that is new here is shown to guests: hide it in service/guests.py, if it is the owner's."""
    assert list(shown.__struct_fields__) == KNOWN[shown].split()
