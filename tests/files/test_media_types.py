"""The type of a file by its first bytes, and its name: for the usual ones, and for whatever is made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indelible.files.media_types import (
    MAX_NAME_CHARS,
    OTHER,
    SNIFFED_BYTES,
    clean_name,
    find_media_type,
    is_allowed,
    is_text_type,
)


@pytest.mark.parametrize(
    ("start", "name", "hint", "found"),
    [
        (b"\x89PNG\r\n\x1a\n....", "page.html", "text/html", "image/png"),
        (b"\xff\xd8\xff\xe0", "", None, "image/jpeg"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "", None, "image/webp"),
        (b"RIFF\x10\x00\x00\x00ABCD", "", None, OTHER),
        (b"\x00\x00\x00\x20ftypavif....", "", None, "image/avif"),
        (b"%PDF-1.7\n", "a.png", None, "application/pdf"),
        (b"PK\x03\x04........[Content_Types].xml....word/document.xml", "a.zip", None,
         "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        (b"PK\x03\x04....", "a.docx", None, "application/zip"),
        (b"MZ\x90\x00", "cat.png", "image/png", "application/vnd.microsoft.portable-executable"),
        (b"rain,sun\n1,2\n", "weather.csv", None, "text/csv"),
        (b"# Rain", "rain.md", None, "text/markdown"),
        (b"{}", "data", "application/json; charset=utf-8", "application/json"),
        (b"plain", "a.png", "image/png", "text/plain"),
        (b"plain", "a.html", "text/html", "text/plain"),
        (b"  <!-- x --> <!DOCTYPE HTML><script>", "a.txt", None, "text/html"),
        (b"<?xml version='1.0'?><!-- x --><svg onload='x'>", "a.png", "image/png", "image/svg+xml"),
        (b"<?xml version='1.0'?><a/>", "", None, "application/xml"),
        (b"a" * (SNIFFED_BYTES - 1) + "ß".encode(), "", None, "text/plain"),  # what is looked at is cut within it
        ("Groß".encode()[:-1], "", None, OTHER),  # the whole file is
        (b"caf\xe9 noir", "a.txt", None, OTHER),
        (b"a\x00b", "a.txt", None, OTHER),
        (b"", "", None, OTHER),
    ],
)  # fmt: skip
def test_the_first_bytes_decide_and_not_what_is_claimed(start: bytes, name: str, hint: str | None, found: str) -> None:
    assert find_media_type(start, name=name, hint=hint) == found


@given(start=st.binary(max_size=300), name=st.text(max_size=50), hint=st.none() | st.text(max_size=50))
def test_any_bytes_have_a_type_that_a_header_can_carry(start: bytes, name: str, hint: str | None) -> None:
    found = find_media_type(start, name=name, hint=hint)
    assert found.isascii()
    assert found.count("/") == 1
    assert found.isprintable()


def test_many_comments_take_no_time() -> None:
    """Of a pattern with nested repeats it would take for ever."""
    assert find_media_type(b"<!---->" * 9000) == "text/plain"


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("photo.png", "photo.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ada\\rain.txt", "rain.txt"),
        ("a\x00b\r\nc.txt", "ab c.txt"),
        ("\u202egpj.exe", "gpj.exe"),
        ('a<b>:"|?*.txt', "a_b______.txt"),
        ("  .. ", "file"),
        ("...", "file"),
        ("", "file"),
        ("Ma\u0308rz.txt", "März.txt"),
        ("\ud800x", "x"),
        ("x" * 300 + ".jpeg", "x" * (MAX_NAME_CHARS - 5) + ".jpeg"),
    ],
)
def test_a_name_is_what_every_system_can_save(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


@given(st.text(max_size=400))
def test_any_name_becomes_one_that_stays_as_it_is(name: str) -> None:
    cleaned = clean_name(name)
    assert 0 < len(cleaned) <= MAX_NAME_CHARS
    assert not set(cleaned) & set('/\\<>:"|?*\r\n\0')
    cleaned.encode()
    assert clean_name(cleaned) == cleaned


def test_types_are_allowed_by_pattern_and_without_one_all_are() -> None:
    assert is_allowed("application/zip", [])
    assert is_allowed("image/png", ["IMAGE/*", "application/pdf"])
    assert is_allowed("application/pdf", ("image/*", "application/pdf"))
    assert not is_allowed("application/zip", ["image/*"])
    assert is_text_type("text/csv")
    assert not is_text_type("application/zip")
