"""The texts that the store itself writes into a conversation or a chat's error.

`NOTICES` are for people, `CONTINUE` is for the model alone, and `ANSWERS` are the results of calls that will never get
one: a model rejects a conversation with an unanswered call. A worker that knows more passes its own text for a
notice or an error (payloads.py). What a notice tells of is a value beside its text, `metadata.notice`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from indelible.content import Block, Text
from indelible.machine import effects

NOTICES: Final[dict[effects.NoticeKind, str]] = {
    "stopped": "Stopped by you.",
    "failed": "The reply failed.",
    "crashed": "The reply failed: the server crashed too often while writing it. The partial reply is saved.",
    "empty": "The model returned nothing.",
    "compacted": "The conversation was summarised for the model. Everything above stays as it is for you.",
    "length": "The reply reached its length limit. Continue resumes it; without any words yet, Retry asks again.",
    "content_filter": "The provider's content filter ended the reply.",
    "max_steps": "The reply reached the maximum number of steps. Retry to continue.",
}
ERRORS: Final[dict[effects.NoticeKind, dict[str, Any]]] = {
    "failed": {"kind": "unknown", "message": NOTICES["failed"]},
    "crashed": {"kind": "crashed", "message": NOTICES["crashed"]},
}
CONTINUE: Final = "Your last message was cut off. Go on exactly where it ends, without repeating any of it."
ANSWERS: Final[dict[effects.AnswerReason, str]] = {
    "cancelled": "Cancelled: the user continued without the result of this call.",
    "expired": "Expired: nobody gave the result of this call in time.",
}


def name_notice(text: Text, kind: effects.NoticeKind) -> Text:
    """The text of a notice, with what it tells of."""
    return replace(text, metadata={"notice": kind})


_OLD_NOTICES: Final[dict[str, effects.NoticeKind]] = {
    "Stopped by you.": "stopped",
    "The reply reached its length limit": "length",
}


def recover_notice(blocks: Sequence[Block], *, has_failed: bool) -> list[Block]:
    """The blocks of a notice from before notices had a kind: some follow from their sentence, once (upgrade 0019)."""
    match blocks:
        case [Text(metadata=None) as first, *rest]:
            found = (kind for known, kind in _OLD_NOTICES.items() if first.text.startswith(known))
            kind = "failed" if has_failed else next(found, None)
            return [first if kind is None else name_notice(first, kind), *rest]
        case _:
            return list(blocks)
