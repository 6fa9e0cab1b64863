"""Trying patterns only where they can begin finds what a plain search through the whole text finds.

How that plain search goes is written down here (`find_slowly`), with the same patterns. The texts are made of secrets,
of what nearly is one, of code, and of long runs that push them over the edges of what is searched at once.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import inspect
import re
import urllib.request
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.recording.canaries import LOOKS, NAMES, ORDINARY, ORDINARY_NAMES

from indelible.redaction import patterns as secrets
from indelible.redaction.beginnings import WINDOW_LETTERS
from indelible.redaction.names import decode, is_secret_name, is_secret_parameter

Place = tuple[int, int]

PRIVATE_KEYS = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
)


def find_slowly(text: str) -> Iterator[Place]:
    yield from find_secrets_slowly(text)
    for address in secrets._ADDRESS.finditer(text):
        yield from find_in_address_slowly(text, *address.span())


def find_secrets_slowly(text: str) -> Iterator[Place]:
    yield from (found.span() for found in PRIVATE_KEYS.finditer(text))
    yield from (found.span() for found in secrets._LOOK.finditer(text) if not secrets._is_in_blob(found))
    yield from (found.span(found.lastindex or 0) for found in secrets._SCHEME.finditer(text))
    done = 0
    brackets = secrets._Brackets(text)
    for found in secrets._NAMED.finditer(text):
        if found.end() >= done and is_secret_name(found["name"]):
            value = secrets._find_value(found, brackets)
            if value is not None:
                done = value[1]
                yield value
    options = secrets._OPTION.finditer(text)
    yield from (option.span("value") for option in options if is_secret_name(option["name"]))


def find_in_address_slowly(text: str, start: int, end: int) -> Iterator[Place]:
    yield from find_parts_slowly(text, start, end)
    for found in secrets._COMPONENTS.finditer(text, start, end):
        plain = decode(found[0])
        if plain != found[0]:
            places = (*find_secrets_slowly(plain), *find_parts_slowly(plain, 0, len(plain)))
            if any(plain[slice(*place)] != secrets.REDACTED for place in places):
                yield found.span()


def find_parts_slowly(text: str, start: int, end: int) -> Iterator[Place]:
    yield from (found.span("user") for found in secrets._USER_INFO.finditer(text, start, end))
    for query in secrets._QUERY.finditer(text, start, end):
        for parameter in secrets._PARAMETERS.finditer(text, *query.span()):
            if is_secret_parameter(parameter[1]):
                yield parameter.end(), query.end()
                break


NEAR = (
    *("sk-short", "api key", "key", " key", "keys: ", " tokens", "is", "was", " provided", " given", "token token"),
    *("eyJabcdefgh", ".", "..", "bearer", "Basic ", "digest\n", "-----BEGIN ", "-----END ", "PRIVATE KEY-----"),
    *("://", ":\\/\\/", ":/\\/", "@", "u:p@", "?", "?a=", "&key=", "#", ";", "%73", "%2573", "+", "[redacted]", "["),
    *("=", "==", ":", "::", ":=", "=>", " = ", ": ", "\\", '\\"', '"', "'", "`", "]", ")", "}", ",", "\r", "\n\n"),
    *("canary", "canary0", "aB", "İ", "\u212a", "ſecret", "é", "密", " ", "\n", "\t", "    ", "x" * 70, "0" * 40),
    *(
        "{",
        "[",
        "--",
        " --",
        ">",
        "</",
        "os.environ[",
        "self.token",
        "getpass(",
        "${",
        "password",
        "Cookie",
        "Authorization",
        "\\n",
        "\\u0022",
    ),
)
fragments = st.sampled_from((*NEAR, *LOOKS, *NAMES, *ORDINARY, *ORDINARY_NAMES)) | st.text(max_size=3)
paddings = st.integers(WINDOW_LETTERS - 60, WINDOW_LETTERS + 5).map(lambda count: "lorem " * (count // 6) + "." * 5)
texts = st.tuples(st.just("") | paddings, st.lists(fragments, max_size=14).map("".join)).map("".join)


@settings(max_examples=600)
@given(texts)
def test_it_finds_what_a_plain_search_finds(text: str) -> None:
    assert secrets.redact_text(text) == secrets._hide(text, lambda text, _: find_slowly(text))


def test_it_finds_what_a_plain_search_finds_in_source_code() -> None:
    for module in (http.cookiejar, urllib.request, argparse, secrets):
        code = inspect.getsource(module)
        assert secrets.redact_text(code) == secrets._hide(code, lambda text, _: find_slowly(text))


@settings(max_examples=600)
@given(texts, st.data())
def test_what_is_left_has_its_beginnings_where_a_new_search_finds_them(text: str, data: st.DataObject) -> None:
    ends = st.integers(max(0, len(text) - 200), len(text))
    places = [(min(pair), max(pair)) for pair in data.draw(st.lists(st.tuples(ends, ends), min_size=1, max_size=4))]
    hidden = secrets._merge(places)
    shorter, beginnings = secrets._replace(text, hidden, list(secrets.BEGINNINGS.find(text)))

    assert sorted(beginnings) == sorted(secrets.BEGINNINGS.find(shorter))
    for start, end in reversed(hidden):
        text = text[:start] + secrets.REDACTED + text[end:]
    assert shorter == text
