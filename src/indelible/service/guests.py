"""What a guest sees of a shared chat: the conversation as it is now, what comes after, and nothing else of the owner's.

A guest is a user with a share, or whoever has a link. Everything a guest gets passes through one function here, for
each form it has: the chat, its line in a list, its messages, its tree, its feed and its export. Left out are labels,
pin, draft, instructions and the recording of exchanges; the queue, which was not sent yet; and rows that only a model
sees. What a compatible API repeats about a request has the owner's instructions in it: it is in no message, and no
guest can ask for it (service/turns.py).

What was edited away is left out too: a guest sees the active branch alone, neither pages nor names of others. The feed
of a guest begins with a snapshot whatever its cursor (feed/feed.py), because a cursor is no secret and leads anywhere;
a branch that is left while a guest watches was seen already.

Must stay true (tests/server/test_shared_reading.py): on no route is any of it in what a guest gets, and the owner gets
all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from indelible.api.events import ChatSnapshot, EventBody, FeedEvent, MessageTree, ShownMessage
from indelible.api.shapes import ChatDetails, ChatMessage, ChatSummary, MessagePage
from indelible.content import encode
from indelible.store.transfer import ChatFile, FileMessage

_SHOWN: Final = ("title", "model", "archived")
"""The changes in a `chat` event that a guest sees. All others are for the owner alone."""


def show_chat(details: ChatDetails) -> ChatDetails:
    """The chat as a guest sees it."""
    return replace(
        details,
        messages=[_show_chat_message(message) for message in details.messages],
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
    return replace(page, items=[_show_chat_message(message) for message in page.items])


def show_tree(tree: MessageTree) -> MessageTree:
    """The tree as a guest sees it: the active branch."""
    active = _find_active(tree.head, {item.id: item.parent_id for item in tree.items})
    return replace(tree, items=[item for item in tree.items if item.id in active])


def show_event(event: FeedEvent) -> FeedEvent | None:
    """An event of the feed as a guest sees it; None: not at all. A new kind is the owner's until it is listed here."""
    match event.kind:
        case "message" | "part" | "head" | "attempt" | "reset" | "status" | "retry" | "action" | "error" | "end":
            return event
        case "resync":
            return event
        case "chat":
            shown = {name: value for name, value in event.data.items() if name in _SHOWN}
            return _rewrite(event, shown) if shown else None
        case "snapshot":
            chat = msgspec.json.decode(event.json, type=ChatSnapshot)
            messages = [_show_message(message) for message in chat.messages]
            return _rewrite(event, replace(chat, queue=[], debug=None, messages=messages))
        case _:
            return None


def _rewrite(event: FeedEvent, body: object) -> FeedEvent:
    return replace(event, body=EventBody(encode(body)))


def _show_message(message: ShownMessage) -> ShownMessage:
    return message if message.siblings is msgspec.UNSET else replace(message, siblings=[message.id])


def _show_chat_message(message: ChatMessage) -> ChatMessage:
    return replace(message, siblings=[message.id])


def _find_active(head: str | None, parents: Mapping[str, str | None]) -> set[str]:
    """The messages from the head up to the first one."""
    active: set[str] = set()
    while head is not None:
        active.add(head)
        head = parents.get(head)
    return active


def show_file(file: ChatFile) -> ChatFile:
    """An export for a guest: the active branch. Below a row that only a model sees, the message above is the parent."""
    active = _find_active(file.head, {message.id: message.parent_id for message in file.messages})
    above = {message.id: message.parent_id for message in file.messages if message.visibility == "model"}

    def find_shown(message_id: str | None) -> str | None:
        while message_id in above:
            message_id = above[message_id]
        return message_id if message_id in active else None

    messages: list[FileMessage] = [
        replace(message, parent_id=find_shown(message.parent_id), continues=find_shown(message.continues))
        for message in file.messages
        if message.id in active and message.id not in above
    ]
    return replace(
        file, head=find_shown(file.head), messages=messages, labels=[], system=None, parameters=None, tools=None
    )
