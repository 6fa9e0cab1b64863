"""The texts that the store itself writes into a conversation or a chat's error.

`NOTICES` are for people, `CONTINUE` is for the model alone, and `ANSWERS` are the results of calls that will never get
one: a model rejects a conversation with an unanswered call. A worker that knows more passes its own text for a
notice or an error (payloads.py).
"""

from __future__ import annotations

from typing import Any, Final

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
