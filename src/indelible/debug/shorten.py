"""Lines as they may be kept: short enough to be redacted while somebody waits for it.

The headers of an exchange, its address and its error are redacted on the event loop. They are a few hundred letters
long, but nobody promises that. So what is longer than 4 KiB is cut before it is searched, at the end of a word, and a
note says how much is missing: a word that is cut could be half a secret, and then nothing would know it. Of an address,
which is one word, whole parts are kept.

Also here is the hiding of what is known to be a secret, however it looks. What was hidden before is left alone, even if
the secret is a part of the word `[redacted]`.

Must stay true (tests/debug/test_shorten.py): the note counts what is missing, no half of a word is left, and doing it
twice is doing it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from indelible.debug.secrets import REDACTED

MAX_LINE_LETTERS: Final = 4096
_ROOM_FOR_NOTE: Final = 64


def shorten_line(text: str) -> str:
    """The line, or as many whole words of it as may be kept."""
    if len(text) <= MAX_LINE_LETTERS:
        return text
    kept = _keep_whole_words(text[: MAX_LINE_LETTERS - _ROOM_FOR_NOTE + 1])
    return f"{kept} {note_missing(len(text) - len(kept), 'letters')}".lstrip()


def _keep_whole_words(text: str) -> str:
    """Without the last word, which may be cut. If there is only one, it may be an address: without its last part."""
    words = text.rsplit(maxsplit=1) if not text[-1].isspace() else [text, ""]
    if len(words) == 2:
        return words[0].rstrip()
    return text[: max(text.rfind(sign) for sign in "/?&#;") + 1]


def note_missing(count: int, what: str) -> str:
    return f"[… {count:,} {what} are missing here …]"


def hide_known(text: str, secrets: Sequence[str]) -> str:
    """The text without these secrets."""
    for secret in secrets:
        if secret in text:
            text = REDACTED.join(part.replace(secret, REDACTED) for part in text.split(REDACTED))
    return text
