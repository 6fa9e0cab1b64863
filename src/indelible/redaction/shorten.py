"""Lines as they may be kept: short enough to be redacted while somebody waits for it.

The headers of an exchange, its address and its error are redacted on the event loop. They are a few hundred letters
long, but nobody promises that. So what is longer than 4 KiB is cut before it is searched, at the end of a word, and a
note says how much is missing: a word that is cut could be half a secret, and then nothing would know it. Of an address,
which is one word, whole parts are kept.

Also here is the hiding of what is known to be a secret, however it looks: as it is, or with any of its letters escaped
as JSON and addresses do. Escapes are rare and quick to find, so only around them the slower search is made. What was
hidden before is left alone, even if the secret is a part of the word `[redacted]`.

Must stay true (tests/redaction/test_shorten.py, test_redact.py): the note counts what is missing, no half of a word is
left, doing it twice is doing it once, and a known secret is found however it is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from indelible.redaction.patterns import REDACTED

MAX_LINE_LETTERS: Final = 4096
_ROOM_FOR_NOTE: Final = 64
_LONGEST_ESCAPE: Final = 9
"""What a letter becomes in a text within a text within a text."""


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
    """The text without these secrets, whichever of their letters are escaped."""
    for secret in secrets:
        if secret in text:
            text = REDACTED.join(part.replace(secret, REDACTED) for part in text.split(REDACTED))
    for secret in secrets:
        text = _hide_escaped(text, secret)
    return text


def _hide_escaped(text: str, secret: str) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in _find_around_escapes(text, secret):
        parts = text[start:end].split(REDACTED)
        pieces += text[done:start], REDACTED.join(_spell(secret).sub(REDACTED, part) for part in parts)
        done = end
    return "".join((*pieces, text[done:])) if done else text


def _find_around_escapes(text: str, secret: str) -> list[tuple[int, int]]:
    """Where letters of the secret are escaped, with room for all of it; in order, and those that touch as one."""
    reach = _LONGEST_ESCAPE * len(secret)
    around: list[tuple[int, int]] = []
    escapes = [escape for sign, escape in _list_escapes(secret) if sign in text]
    for place in sorted(found.start() for escape in escapes for found in escape.finditer(text)):
        if around and place - reach <= around[-1][1]:
            around[-1] = around[-1][0], place + reach
        else:
            around.append((max(0, place - reach), place + reach))
    return around


@lru_cache(maxsize=64)
def _list_escapes(secret: str) -> list[tuple[str, re.Pattern[str]]]:
    """How letters of the secret are written in addresses and in JSON; and how that begins, which is quick to find."""
    codes = "|".join(f"{code:02x}" for code in sorted({*secret.encode("utf-8", "replace"), ord("%")}))
    by_sign = {"%": f"%(?i:{codes})", "\\u00": rf"\\u00(?i:{codes})", "\\/": r"\\/"}
    return [(sign, re.compile(escape)) for sign, escape in by_sign.items() if sign[-1] != "/" or "/" in secret]


@lru_cache(maxsize=64)
def _spell(secret: str) -> re.Pattern[str]:
    """The secret, each letter of it as it is or as one of its escapes."""
    return re.compile("".join(map(_spell_letter, secret)))


def _spell_letter(letter: str) -> str:
    encoded = "".join(f"%(?:25){{0,2}}{byte:02x}" for byte in letter.encode("utf-8", "replace"))
    escaped = rf"(?i:\\{{1,4}}u{ord(letter):04x}|{encoded})"
    with_sign = rf"|\\{{1,4}}{re.escape(letter)}" if letter in '/"\\' else ""
    return f"(?:{re.escape(letter)}|{escaped}{with_sign})"
