"""What kind of file this is, by its first bytes, and what it may be called.

The type that a client claims is no evidence: a page that is called a picture would be run by a browser that believes
it. So the type comes from a table of first bytes, the only one (tools/output.py asks it about what a tool returned).
Text has no such mark: text is what decodes as UTF-8 without control characters, and only then do the name and the
client's claim say which kind of text it is. The rest is `application/octet-stream`. A table of ours and no library: the
widely used ones detect hundreds of kinds that nobody here treats differently.

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

_OFFICE: Final = "application/vnd.openxmlformats-officedocument."
_MAGIC: Final = tuple(
    (re.compile(mark, re.DOTALL), media_type)
    for mark, media_type in (
        (rb"\x89PNG\r\n\x1a\n", "image/png"),
        (rb"\xff\xd8\xff", "image/jpeg"),
        (rb"GIF8[79]a", "image/gif"),
        (rb"II\*\x00|MM\x00\*", "image/tiff"),
        (rb"\x00\x00\x01\x00", "image/vnd.microsoft.icon"),
        (rb"ID3|\xff\xfb", "audio/mpeg"),
        (rb"fLaC", "audio/flac"),
        (rb"OggS", "audio/ogg"),
        (rb"\x1aE\xdf\xa3", "video/webm"),
        (rb"%PDF-", "application/pdf"),
        (rb"\x1f\x8b", "application/gzip"),
        (rb"BZh", "application/x-bzip2"),
        (rb"\xfd7zXZ\x00", "application/x-xz"),
        (rb"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
        (rb"Rar!\x1a\x07", "application/vnd.rar"),
        (rb"\x7fELF", "application/x-executable"),
        (rb"MZ", "application/vnd.microsoft.portable-executable"),
        (rb"SQLite format 3\x00", "application/vnd.sqlite3"),
        (rb"\x00asm", "application/wasm"),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
        (rb"RIFF.{4}WEBP", "image/webp"),
        (rb"RIFF.{4}WAVE", "audio/wav"),
        (rb"RIFF.{4}AVI ", "video/x-msvideo"),
        (rb"RIFF", OTHER),
        (rb".{4}ftypavif", "image/avif"),
        (rb".{4}ftyphei[cx]", "image/heic"),
        (rb".{4}ftypmif1", "image/heif"),
        (rb".{4}ftypM4A ", "audio/mp4"),
        (rb".{4}ftypqt  ", "video/quicktime"),
        (rb".{4}ftyp", "video/mp4"),
        (rb"PK(?:\x03\x04|\x05\x06).*word/", f"{_OFFICE}wordprocessingml.document"),
        (rb"PK(?:\x03\x04|\x05\x06).*xl/", f"{_OFFICE}spreadsheetml.sheet"),
        (rb"PK(?:\x03\x04|\x05\x06).*ppt/", f"{_OFFICE}presentationml.presentation"),
        (rb"PK(?:\x03\x04|\x05\x06)", "application/zip"),
        (rb"BM.{4}\x00{4}", "image/bmp"),
    )
)
"""How files begin: the first one that matches counts."""
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
    known = find_magic(start)
    if known is not None:
        return known
    return _find_text_type(start, name=name, hint=hint) if _is_text(start) else OTHER


def find_magic(start: bytes) -> str | None:
    """The type that the first bytes alone show; None for text, and for what is not known."""
    return next((media_type for mark, media_type in _MAGIC if mark.match(start)), None)


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
