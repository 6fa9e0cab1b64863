"""The names of responses, conversations and items. They are derived, so none is stored.

A conversation is a chat: `conv_…` and `chat_…` have the same end. A response is a turn from where it started or was
resumed: `resp_`, the end of the chat's id, and the number of the event there (service/turns.py). A turn that
waited for results is two responses, as it is two requests.

An item of a response has the end of the response's name and its place in the output; an item of a conversation has the
ends of the chat's and the message's ids and the place of its block. So an item that a client only refers to is found
again, in the user's own chats and without a search (responses/stored.py).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from indelible.errors import NotFound
from indelible.ids import ULID

_RESPONSE: Final = re.compile(rf"resp_({ULID})([1-9][0-9]{{0,15}})")
_CONVERSATION: Final = re.compile(rf"conv_({ULID})")
_ITEM: Final = re.compile(rf"[a-z]{{2,4}}_({ULID})(?:([1-9][0-9]{{0,15}})_([0-9]{{1,6}})|({ULID})([0-9]{{2,6}}))")


class ResponseName(NamedTuple):
    chat_id: str
    seq: int

    def __str__(self) -> str:
        return f"resp_{self.chat_id.rpartition('_')[2]}{self.seq}"


class ItemName(NamedTuple):
    """Where an item stands: at a place in the output of a response, or in a message."""

    parent: ResponseName | MessageName
    place: int


class MessageName(NamedTuple):
    chat_id: str
    message_id: str


def find_response_name(text: str) -> ResponseName | None:
    found = _RESPONSE.fullmatch(text)
    return None if found is None else ResponseName(f"chat_{found[1]}", int(found[2]))


def read_response_name(text: str) -> ResponseName:
    found = find_response_name(text)
    if found is None:
        raise NotFound(f"Response with id {text[:100]!r} not found.")
    return found


def name_response_item(prefix: str, response_id: str, place: int) -> str:
    return f"{prefix}_{response_id.rpartition('_')[2]}_{place}"


def name_message_item(prefix: str, chat_id: str, message_id: str, place: int) -> str:
    return f"{prefix}_{chat_id.rpartition('_')[2]}{message_id.rpartition('_')[2]}{place:02d}"


def find_item_name(text: str) -> ItemName | None:
    found = _ITEM.fullmatch(text)
    if found is None:
        return None
    chat_id = f"chat_{found[1]}"
    if found[2] is not None:
        return ItemName(ResponseName(chat_id, int(found[2])), int(found[3]))
    return ItemName(MessageName(chat_id, f"message_{found[4]}"), int(found[5]))


def name_conversation(chat_id: str) -> str:
    return f"conv_{chat_id.rpartition('_')[2]}"


def read_conversation_name(text: str) -> str:
    """The id of its chat."""
    found = _CONVERSATION.fullmatch(text)
    if found is None:
        raise NotFound(f"Conversation with id {text[:100]!r} not found.")
    return f"chat_{found[1]}"
