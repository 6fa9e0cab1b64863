"""The names of responses and conversations. They are derived, so none is stored.

A conversation is a chat: `conv_…` and `chat_…` have the same end. A response is a turn from where it started or was
resumed: `resp_`, the end of the chat's id, and the number of the event there (service/conversations.py). A turn that
waited for results is two responses, as it is two requests.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from indelible.errors import NotFound
from indelible.ids import ULID

_RESPONSE: Final = re.compile(rf"resp_({ULID})([1-9][0-9]{{0,15}})")
_CONVERSATION: Final = re.compile(rf"conv_({ULID})")


class ResponseName(NamedTuple):
    chat_id: str
    seq: int

    def __str__(self) -> str:
        return f"resp_{self.chat_id.rpartition('_')[2]}{self.seq}"


def read_response_name(text: str) -> ResponseName:
    found = _RESPONSE.fullmatch(text)
    if found is None:
        raise NotFound(f"Response with id {text[:100]!r} not found.")
    return ResponseName(f"chat_{found[1]}", int(found[2]))


def name_conversation(chat_id: str) -> str:
    return f"conv_{chat_id.rpartition('_')[2]}"


def read_conversation_name(text: str) -> str:
    """The id of its chat."""
    found = _CONVERSATION.fullmatch(text)
    if found is None:
        raise NotFound(f"Conversation with id {text[:100]!r} not found.")
    return f"chat_{found[1]}"
