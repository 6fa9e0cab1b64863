"""Documents that are too large to be kept whole: redacted first, then shortened where it hurts least.

A long chat, or one with images, is sent as one JSON document of megabytes, and half of a document is none. So it is
shortened by its structure and stays one: long texts lose their middle, long lists theirs, and a note stands in its
place. The limits are lowered step by step until the document fits. What is hidden is hidden before anything is cut, so
half a secret is never left beside a note.

Images are letters without a blank, megabytes of them in one text. Those are cut out of the bytes before anybody parses
them, in steps that hold the interpreter for microseconds only, and all that follows has to do with what is left. Only
the first few letters of such a *blob* are kept. Its alphabet has all the letters that tokens are made of, so a token
that runs into one never goes on behind it; and what stands for the middle meanwhile is a word of two private letters
and a number, so that a value that goes on behind a blob is still one value. The last letters of a blob stay until
redaction is done: they may be a name or a scheme, and what it is that follows only they can tell. Then they go, and
with them the rest of that word, which may be the second half of something that began in the middle.

Must stay true (tests/redaction/test_large.py): what comes out is JSON, fits, and holds no canary wherever one was cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from indelible.redaction.json import TOO_DEEP, parse_json, redact_json, to_plain
from indelible.redaction.shorten import hide_known, note_missing

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
MAX_PARSED_BYTES: Final = 6 * 1024 * 1024
"""What is larger is not kept: neither as it came, nor without its blobs."""

_STEPS: Final = (
    *((1 << 30, 1 << 30), (64 * 1024, 1 << 30), (16 * 1024, 1 << 30), (4 * 1024, 1 << 30)),
    *((2048, 512), (2048, 256), (2048, 128), (2048, 64), (2048, 32), (1024, 16), (512, 8)),
)
"""How many letters a text may have, and how many items a list."""

_BLOB: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-.~"
_BLOCK_BYTES: Final = 2048
"""A blob is as long as two of these at least, so that one of them lies within it wherever it begins."""

_KEPT_BYTES: Final = 64
_CUT: Final = re.compile("\ue000(?P<cut>[0-9]{1,12})\ue001(?P<end>[^\\s\"'`&,;)}\\]\\[]*)")


def redact_large(body: bytes, max_bytes: int, secrets: Sequence[str] = ()) -> str | None:
    """A JSON document, redacted and shortened to so many bytes; None if it is none, or can not be shortened so far."""
    if len(body) > MAX_BODY_BYTES:
        return None
    rest = b"".join(_cut_blobs(body, secrets))
    if len(rest) > MAX_PARSED_BYTES:
        return None
    try:
        value = to_plain(redact_json(parse_json(hide_known(rest.decode("utf-8-sig", "replace"), secrets))))
    except ValueError:
        return None
    except RecursionError:
        return json.dumps(TOO_DEEP)
    for max_letters, max_items in _STEPS:
        if _may_fit(value, max_letters, max_items, max_bytes):
            written = json.dumps(_shorten(value, max_letters, max_items), ensure_ascii=False)
            if len(written.encode("utf-8", "surrogatepass")) <= max_bytes:
                return written
    return None


# --- blobs ---


def _cut_blobs(body: bytes, secrets: Sequence[str]) -> Iterator[bytes]:
    """The body, each blob in it replaced by how it begins, how much of it is missing and how it ends.

    No secret that is known goes on behind a blob without being whole: so much of the end is kept.
    """
    margin = max((len(secret.encode()) for secret in secrets), default=0)
    done = 0
    for start, end in _find_blobs(body):
        beginning = hide_known(body[start : start + _KEPT_BYTES + margin].decode(), secrets)[:_KEPT_BYTES]
        kept_from = max(start + _KEPT_BYTES, end - max(_KEPT_BYTES, margin))
        yield body[done:start]
        yield f"{beginning}\ue000{kept_from - start - len(beginning)}\ue001".encode()
        done = kept_from
    yield body[done:]


def _find_blobs(body: bytes) -> Iterator[tuple[int, int]]:
    end = 0
    for block in range(0, len(body), _BLOCK_BYTES):
        if block < end or not _is_in_blob(body[block : block + _BLOCK_BYTES]):
            continue
        before = body[max(end, block - _BLOCK_BYTES) : block]
        start = block - len(before) + len(before.rstrip(_BLOB))
        end = block + _BLOCK_BYTES
        while _is_in_blob(body[end : end + _BLOCK_BYTES]):
            end += _BLOCK_BYTES
        after = body[end : end + _BLOCK_BYTES]
        end += len(after) - len(after.lstrip(_BLOB))
        if end - start >= 2 * _BLOCK_BYTES:
            yield start, end


def _is_in_blob(block: bytes) -> bool:
    """Whether this is a whole block and has no other letters. Most blocks that have show it soon."""
    return len(block) == _BLOCK_BYTES and not block[:16].translate(None, _BLOB) and not block.translate(None, _BLOB)


# --- shortening ---


def _may_fit(value: Any, max_letters: int, max_items: int, max_bytes: int) -> bool:
    """Whether the value, shortened like this, has few enough letters. It gives up as soon as it has too many."""
    left = max_bytes
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            left -= min(len(item), max_letters)
        elif isinstance(item, dict):
            left -= len(item) + sum(map(len, item))
            waiting += item.values() if left > 0 else ()
        elif isinstance(item, list):
            left -= min(len(item), max_items)
            waiting += _keep_ends(item, max_items) if left > 0 else ()
        if left < 0:
            return False
    return True


def _shorten(value: Any, max_letters: int, max_items: int) -> Any:
    if isinstance(value, str):
        return _shorten_text(_CUT.sub(_note_cut, value), max_letters)
    if isinstance(value, dict):
        return {_CUT.sub(_note_cut, key): _shorten(item, max_letters, max_items) for key, item in value.items()}
    if isinstance(value, list):
        kept = [_shorten(item, max_letters, max_items) for item in _keep_ends(value, max_items)]
        if len(kept) < len(value):
            kept.insert(len(kept) // 2, note_missing(len(value) - len(kept), "items"))
        return kept
    return value


def _keep_ends(items: list[Any], max_items: int) -> list[Any]:
    return items if len(items) <= max_items else items[: max_items // 2] + items[-(max_items // 2) :]


def _shorten_text(text: str, max_letters: int) -> str:
    half = max_letters // 2
    if len(text) <= max_letters:
        return text
    return text[:half] + note_missing(len(text) - 2 * half, "letters") + text[-half:]


def _note_cut(cut: re.Match[str]) -> str:
    return note_missing(int(cut["cut"]) + len(cut["end"]), "letters")
