"""What kind of file this is, by its first bytes, and what it may be called.

The type that a client claims is no evidence: a page that is called a picture would be run by a browser that believes
it. So the type comes from a table of first bytes. Text has no such mark: text is what decodes as UTF-8 without control
characters, and only then do the name and the client's claim say which kind of text it is. The rest is
`application/octet-stream`. A table of ours and no library: the widely used ones detect hundreds of kinds that nobody
here treats differently.

A name is what people see and what a download is saved as. Directories, control characters, characters that turn the
direction of text (`gpj.exe` shown as `exe.jpg`) and characters that some system refuses are removed.

Must stay true (tests/files/test_media_types.py): any bytes and any name give a type and a name that a header can carry.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

SNIFFED_BYTES: Final = 64 * 1024
"""How many bytes at the beginning are looked at."""
MAX_NAME_CHARS: Final = 150
_MAX_PREAMBLE: Final = 20
OTHER: Final = "application/octet-stream"

_STARTS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"\x1f\x8b", "application/gzip"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x00\x00\x01\x00", "image/vnd.microsoft.icon"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/vnd.microsoft.portable-executable"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x00asm", "application/wasm"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_BRANDS: Final = {
    b"avif": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heif",
    b"M4A ": "audio/mp4",
    b"qt  ": "video/quicktime",
}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_IN_ZIP: Final = (
    (b"word/", f"{_OFFICE}wordprocessingml.document"),
    (b"xl/", f"{_OFFICE}spreadsheetml.sheet"),
    (b"ppt/", f"{_OFFICE}presentationml.presentation"),
)
_PAGES: Final = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TEXTS: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml", "application/javascript",
     "application/sql", "application/x-sh", "application/x-ndjson", "image/svg+xml"}
)  # fmt: skip
_BY_SUFFIX: Final = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".py": "text/x-python",
    ".js": "text/javascript",
    ".css": "text/css",
    ".sql": "application/sql",
    ".sh": "application/x-sh",
    ".tex": "text/x-tex",
    ".ics": "text/calendar",
    ".vcf": "text/vcard",
    ".log": "text/plain",
    ".txt": "text/plain",
}
"""Ours, and not the module `mimetypes`: that one reads the tables of the machine, which differ."""
_TYPE: Final = re.compile(r"[a-z0-9!#$&^_.+-]{1,60}/[a-z0-9!#$&^_.+-]{1,100}")
_UNSAFE: Final = re.compile(r'[<>:"|?*\x00-\x1f\x7f]')


def find_media_type(start: bytes, *, name: str = "", hint: str | None = None) -> str:
    """The type of a file that begins with these bytes, of which `SNIFFED_BYTES` are enough."""
    start = start[:SNIFFED_BYTES]
    for mark, media_type in _STARTS:
        if start.startswith(mark):
            return media_type
    if start[:4] == b"RIFF":
        return _RIFF.get(start[8:12], OTHER)
    if start[4:8] == b"ftyp":
        return _BRANDS.get(start[8:12], "video/mp4")
    if start[:4] in {b"PK\x03\x04", b"PK\x05\x06"}:
        return next((media_type for mark, media_type in _IN_ZIP if mark in start), "application/zip")
    if start[:2] == b"BM" and start[6:10] == bytes(4):
        return "image/bmp"
    return _find_text_type(start, name=name, hint=hint) if _is_text(start) else OTHER


def describe_content_type(media_type: str, size: int) -> str:
    """The type for a header. Text has a charset if we have read all of it: a longer one may go on in another."""
    return f"{media_type}; charset=utf-8" if media_type.startswith("text/") and size < SNIFFED_BYTES else media_type


def is_text_type(media_type: str) -> bool:
    """Whether a file of this type can be shown to a model as text."""
    return media_type.startswith("text/") or media_type in _TEXTS


def is_allowed(media_type: str, allowed: object) -> bool:
    """Whether the type matches one of these patterns, such as `image/*`; without patterns every type does."""
    patterns = list(allowed) if isinstance(allowed, list | tuple) else []
    kind = media_type.partition("/")[0]
    return not patterns or bool({"*/*", f"{kind}/*", media_type} & {pattern.lower() for pattern in patterns})


def clean_name(name: str, *, default: str = "file") -> str:
    """A file name without directories, hidden characters, or characters that some system refuses."""
    last = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    kept = "".join(" " if character.isspace() else character for character in last if not _is_hidden(character))
    kept = re.sub(r" +", " ", _UNSAFE.sub("_", kept)).strip(" .")
    if len(kept) > MAX_NAME_CHARS:
        stem, dot, suffix = kept.rpartition(".")
        suffix = dot + suffix if stem and len(suffix) <= 10 else ""
        kept = kept[: MAX_NAME_CHARS - len(suffix)].rstrip() + suffix
    return kept or default


def _is_hidden(character: str) -> bool:
    """Control characters, marks that turn the direction of text, halves of surrogate pairs; not white space."""
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co"} and not character.isspace()


def _is_text(start: bytes) -> bool:
    if start[:2] in {b"\xff\xfe", b"\xfe\xff"} or not start or _CONTROL.search(start):
        return False
    try:
        start.decode()
    except UnicodeDecodeError as error:
        is_cut = len(start) == SNIFFED_BYTES and error.start >= SNIFFED_BYTES - 3  # within a character
        return is_cut and error.reason == "unexpected end of data"
    return True


def _find_text_type(start: bytes, *, name: str, hint: str | None) -> str:
    markup = _find_markup(start)
    if markup is not None:
        return markup
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    claimed = (hint or "").partition(";")[0].strip().lower()
    for candidate in (_BY_SUFFIX.get(suffix), claimed):
        if candidate and is_text_type(candidate) and _TYPE.fullmatch(candidate) and candidate != "text/html":
            return candidate
    return "text/plain"


def _find_markup(start: bytes) -> str | None:
    """The type by the first element, after a few comments and declarations."""
    rest = start.lstrip().lower()
    has_declaration = rest.startswith(b"<?xml")
    for _ in range(_MAX_PREAMBLE):
        if not rest.startswith((b"<!--", b"<?xml", b"<!doctype svg")):
            break
        end = b"-->" if rest.startswith(b"<!--") else b">"
        rest = rest.partition(end)[2].lstrip()
    if rest.startswith(_PAGES):
        return "text/html"
    if rest.startswith(b"<svg"):
        return "image/svg+xml"
    return "application/xml" if has_declaration else None
