"""The redacted head of an exchange: headers, the address, and errors.

A header is hidden by its name. Elsewhere the name and password of an address go, and the values of its sensitive
parameters: in the address itself, in a `Location`, and in errors, which like to repeat an address. Known secrets are
hidden everywhere (known.py).

This runs on the event loop, and a header may be long. So text longer than 4 KiB is cut at the end
of a word, and a note says how much is missing; of an address, which is one word, whole parts are kept.

Must stay true (tests/redaction/test_headers.py): no canary survives, counters of rate limits do, redacting twice is
redacting once, and no half of a word is left where a line is cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from indelible.redaction.known import NO_SECRETS, KnownSecrets
from indelible.redaction.patterns import REDACTED, is_secret_header, is_secret_parameter

MAX_LINE_CHARS: Final = 4096
_NOTE_CHARS: Final = 64
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/?#\"<>`\\]{1,1024}(?=@)")
_PARAMETER: Final = re.compile(r"(?P<name>(?<=[?&#;])[^=?&#;\s\"'<>]{1,128}+=)[^&#\s\"<>`\\]++")


def redact_headers(headers: Mapping[str, str], known: KnownSecrets = NO_SECRETS) -> dict[str, str]:
    return {
        redact_line(name, known): REDACTED if value and is_secret_header(name) else redact_line(value, known)
        for name, value in headers.items()
    }


def redact_line(text: str, known: KnownSecrets = NO_SECRETS) -> str:
    """A header's value, an address or an error."""
    return shorten_line(redact_addresses(known.hide(text[: MAX_LINE_CHARS + known.margin])), len(text))


def redact_addresses(text: str) -> str:
    """The text; the addresses in it have neither user-info nor values of sensitive parameters."""
    if "=" in text:
        text = _PARAMETER.sub(_redact_parameter, text)
    return _USER_INFO.sub(REDACTED, text) if "@" in text else text


def _redact_parameter(found: re.Match[str]) -> str:
    return found["name"] + REDACTED if is_secret_parameter(found["name"][:-1]) else found[0]


def shorten_line(text: str, length: int) -> str:
    """As many whole words as may be kept of a text that had this length."""
    if length <= MAX_LINE_CHARS:
        return text
    text = text[: MAX_LINE_CHARS - _NOTE_CHARS]
    words = [text, ""] if text[-1:].isspace() else text.rsplit(maxsplit=1)
    is_one_word = len(words) < 2
    kept = text[: max(text.rfind(sign) for sign in "/?&#;") + 1] if is_one_word else words[0].rstrip()
    return f"{kept} {note_missing(length - len(kept), 'characters')}".lstrip()


def note_missing(count: int, what: str) -> str:
    return f"[… {count:,} {what} are missing here …]"
