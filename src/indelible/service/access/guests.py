"""What a guest sees of a shared chat: the conversation, and nothing of what its owner keeps beside it.

A guest is a user with a share, or whoever has a link. Everything a guest gets passes through one function here, for
each form it has: the chat, its line in a list, its messages, its feed and its export. Left out are labels, pin, draft,
instructions and the recording of exchanges; the queue, which was not sent yet; rows that only a model sees; and what a
wire noted about a request in the metadata of a block (service/noted_request.py), which has the owner's instructions in
it.

Must stay true (tests/server/test_shared_reading.py): on no route is any of it in what a guest gets, and the owner gets
all of it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from indelible.content import decode_blocks, encode
from indelible.machine.events import ChatSnapshot, EventBody, FeedEvent, MessageAdded, ShownMessage
from indelible.service.noted_request import MARK, strip_request
from indelible.service.results import ChatDetails, MessagePage
from indelible.store.lists.transfer import ChatFile, FileMessage
from indelible.store.queries.listing import ChatSummary

_SHOWN: Final = ("title", "model", "archived")
"""The changes in a `chat` event that a guest sees. All others are for the owner alone."""


def show_chat(details: ChatDetails) -> ChatDetails:
    """The chat as a guest sees it."""
    messages = [replace(message, blocks=strip_request(message.blocks)) for message in details.messages]
    return replace(
        details,
        messages=messages,
        queue=[],
        debug=None,
        labels=[],
        pinned=False,
        unread=False,
        system=None,
        draft=None,
    )


def show_summary(summary: ChatSummary) -> ChatSummary:
    """A line of a list as a guest sees it."""
    return replace(summary, labels=[], pinned=False, unread=False, debug=None)


def show_messages(page: MessagePage) -> MessagePage:
    """A page of messages as a guest sees it."""
    return replace(page, items=[replace(message, blocks=strip_request(message.blocks)) for message in page.items])


def show_event(event: FeedEvent) -> FeedEvent | None:
    """An event of the feed as a guest sees it; None: not at all. A new kind is the owner's until it is listed here."""
    match event.kind:
        case "part" | "head" | "attempt" | "reset" | "status" | "retry" | "action" | "error" | "resync" | "end":
            return event
        case "chat":
            shown = {name: value for name, value in event.data.items() if name in _SHOWN}
            return _rewrite(event, shown) if shown else None
        case "snapshot":
            chat = msgspec.json.decode(event.json, type=ChatSnapshot)
            messages = [_show_message(message) for message in chat.messages]
            return _rewrite(event, replace(chat, queue=[], debug=None, messages=messages))
        case "message" if MARK in event.json:
            added = msgspec.json.decode(event.json, type=MessageAdded)
            return _rewrite(event, replace(added, message=_show_message(added.message)))
        case "message":
            return event
        case _:
            return None


def _rewrite(event: FeedEvent, body: object) -> FeedEvent:
    return replace(event, body=EventBody(encode(body)))


def _show_message(message: ShownMessage) -> ShownMessage:
    blocks = bytes(message.blocks)
    if MARK not in blocks:
        return message
    return replace(message, blocks=msgspec.Raw(encode(strip_request(decode_blocks(blocks)))))


def show_file(file: ChatFile) -> ChatFile:
    """An export for a guest. Below a row that only a model sees, the message above it is the parent."""
    above = {message.id: message.parent_id for message in file.messages if message.visibility == "model"}

    def find_shown(message_id: str | None) -> str | None:
        while message_id in above:
            message_id = above[message_id]
        return message_id

    messages: list[FileMessage] = [
        replace(
            message,
            parent_id=find_shown(message.parent_id),
            continues=find_shown(message.continues),
            blocks=strip_request(message.blocks),
        )
        for message in file.messages
        if message.id not in above
    ]
    return replace(
        file,
        head=find_shown(file.head),
        messages=messages,
        labels=[],
        system=None,
        parameters=None,
        tools=None,
    )
