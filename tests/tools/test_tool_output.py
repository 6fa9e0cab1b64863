"""Whatever a tool returns becomes text that encodes, and a long text is cut where rule 1.3 says."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_serializer

from indelible.content import File
from indelible.content.unicode import clean_text
from indelible.tools import cut_text, limit_for, render_output


class Colour(StrEnum):
    RED = "red"


class Size(Enum):
    LARGE = 3


class City(BaseModel):
    name: str
    founded: datetime | None = None
    inside: Any = None


@dataclass
class Point:
    x: int
    inside: Any = None


class Tagged(msgspec.Struct, tag="tagged"):
    data: bytes = b""
    inside: Any = None


class Speechless:
    def __str__(self) -> str:
        raise LookupError("no words")


class Talkative:
    def __str__(self) -> str:
        return "I am \ud800 here"


class Hostile(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise OSError("no")

    def __iter__(self) -> Iterator[str]:
        raise OSError("no")

    def __len__(self) -> int:
        raise OSError("no")


class Endless(list[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, ""),
        (b"caf\xc3\xa9 \xff", "café \ufffd"),
        (bytearray(b"ab"), "ab"),
        (memoryview(b"ab"), "ab"),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        ({"a": [1, None, "ü"], "b": {}}, '{"a":[1,null,"ü"],"b":{}}'),
        ((1, 2), "[1,2]"),
        ({7}, "[7]"),
        (deque([1]), "[1]"),
        ([b"\xff"], '["\ufffd"]'),
        ({1: "a", None: "b", False: "c", (1, 2): "d"}, '{"1":"a","null":"b","false":"c","[1, 2]":"d"}'),
        (Colour.RED, "red"),
        ([Colour.RED, Size.LARGE], '["red",3]'),
        (Decimal("1.10"), "1.10"),
        ([Decimal("1.10"), PurePosixPath("a/b")], '["1.10","a/b"]'),
        (float("nan"), "nan"),
        ([float("inf"), float("-inf")], '["inf","-inf"]'),
        (City(name="Århus"), '{"name":"Århus","founded":null,"inside":null}'),
        ([City(name="x")], '[{"name":"x","founded":null,"inside":null}]'),
        (City(name="x", founded=datetime(1, 2, 3, tzinfo=UTC)).founded, "0001-02-03 00:00:00+00:00"),
        (Point(1, Point(2)), '{"x":1,"inside":{"x":2,"inside":null}}'),
        (Tagged(b"ab", [1]), '{"type":"tagged","data":"ab","inside":[1]}'),
        (int, "<class 'int'>"),
        (Point, f"<class '{__name__}.Point'>"),
    ],
)
def test_a_value_is_shown_as_people_would_expect(value: object, text: str) -> None:
    assert render_output(value) == text


def test_a_pydantic_model_keeps_its_own_way_of_writing_itself() -> None:
    class Secret(BaseModel):
        word: str

        @field_serializer("word")
        def hide(self, word: str) -> str:
            return "*" * len(word)

    assert render_output(Secret(word="abc")) == '{"word":"***"}'


@pytest.mark.parametrize("wrap", [lambda v: City(name="x", inside=v), lambda v: Point(1, v), lambda v: Tagged(b"", v)])
def test_strange_values_inside_a_model_still_give_valid_json(wrap: Callable[[object], object]) -> None:
    for strange in (object, Speechless(), b"\xff", float("nan"), 10**5000, "\ud800", Point(1), {1, 2}):
        assert "inside" in json.loads(render_output(wrap(strange)), parse_constant=pytest.fail)


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert render_output(Speechless()) == "<a Speechless that cannot be shown as text>"
    assert json.loads(render_output([1, Speechless()]))[1] == "<a Speechless that cannot be shown as text>"
    assert render_output(Hostile()) == "<a Hostile that cannot be shown as text>"


def test_numbers_too_long_for_decimal_are_written_in_hexadecimal() -> None:
    assert render_output(10**5000) == hex(10**5000)
    assert json.loads(render_output({"n": -(10**5000)})) == {"n": hex(-(10**5000))}


def test_lone_surrogates_become_replacement_characters_and_pairs_become_characters() -> None:
    assert render_output("a\ud800b\udc00c") == "a\ufffdb\ufffdc"
    assert render_output("\ud83d\ude00") == "😀"
    assert render_output(["\ud800", {"\udfff": 1}]) == '["\ufffd",{"\ufffd":1}]'
    assert render_output(Talkative()) == "I am \ufffd here"
    assert clean_text("\ufeffé\ud800") == "\ufeffé\ufffd"


def test_cycles_end_where_they_close() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert render_output(ring) == '[1,"<this list again>"]'
    point = Point(1)
    point.inside = {"back": point}
    assert render_output(point) == '{"x":1,"inside":{"back":"<this Point again>"}}'
    city = City(name="x")
    city.inside = city
    assert json.loads(render_output(city))["inside"] == "<this City again>"
    tagged = Tagged()
    tagged.inside = [tagged]
    assert json.loads(render_output(tagged))["inside"] == ["<this Tagged again>"]


def test_a_value_met_twice_but_not_inside_itself_is_shown_twice() -> None:
    shared = [1]
    assert render_output([shared, shared]) == "[[1],[1]]"


def test_a_very_deep_nest_is_cut_off_below() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    assert "nested too deeply" in render_output(deep)
    while deep:  # taken apart by hand: freeing it whole is deep as well
        deep = deep.pop()


def test_values_that_unfold_without_end_are_cut_off() -> None:
    doubled: list[Any] = ["x" * 100_000]
    for _ in range(60):
        doubled = [doubled, doubled]
    assert "<more left out>" in render_output(doubled)
    assert "<more left out>" in render_output(Endless())
    assert json.loads(render_output({str(n): "x" * 9_000_000 for n in range(5)}))["..."] == "<more left out>"


def test_one_long_text_is_never_shortened_by_rendering() -> None:
    text = "x" * 20_000_000
    assert render_output(text) == text


_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | st.text(st.characters(exclude_categories=()))
    | st.builds(Speechless)
    | st.datetimes()
    | st.decimals(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=())) | st.integers() | st.none(), inner)
        | st.builds(Point, st.integers(), inner)
        | st.builds(Tagged, st.binary(), inner)
        | st.builds(City, name=st.text(), inside=inner)
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(_ANYTHING)
def test_any_value_becomes_text_that_encodes(value: object) -> None:
    text = render_output(value)
    assert text.encode().decode() == text
    if isinstance(value, dict | list | Point | Tagged | City):
        json.loads(text, parse_constant=pytest.fail)


# --- cutting -----------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=())), st.integers(-5, 400))
def test_a_cut_text_is_a_head_and_a_tail_within_the_limit(text: str, limit_bytes: int) -> None:
    whole = clean_text(text)
    cut = cut_text(text, limit_bytes)
    size = len(whole.encode())
    if size <= limit_bytes:
        assert cut == (whole, 0)
        return
    head, marker, tail = _take_apart(cut.text, cut.missing_bytes)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head.encode()) + len(tail.encode()) + cut.missing_bytes == size
    assert len(cut.text.encode()) <= max(limit_bytes, len(marker))


@settings(deadline=None)
@given(st.sampled_from(["a", "é", "€", "😀"]), st.integers(100, 5000), st.integers(1, 5000))
def test_two_thirds_of_a_cut_text_are_head(letter: str, limit_bytes: int, more: int) -> None:
    text = letter * (limit_bytes + more)
    cut = cut_text(text, limit_bytes)
    head, marker, tail = _take_apart(cut.text, cut.missing_bytes)
    room = limit_bytes - len(marker)
    assert abs(len(head.encode()) - room * 2 / 3) <= 6
    assert abs(len(tail.encode()) - room / 3) <= 6


def _take_apart(text: str, missing_bytes: int) -> tuple[str, str, str]:
    marker = f"\n\n[{missing_bytes} bytes left out here]\n\n"
    head, found, tail = text.partition(marker)
    assert found
    return head, marker, tail


def test_a_text_of_exactly_the_limit_is_whole_and_one_byte_more_is_cut() -> None:
    assert cut_text("é" * 50, 100) == ("é" * 50, 0)
    cut = cut_text("é" * 50 + "x", 100)
    assert cut.missing_bytes > 0
    assert len(cut.text.encode()) <= 100


def test_a_limit_too_small_for_the_marker_leaves_only_the_marker() -> None:
    assert cut_text("x" * 50, 3).text.strip() == "[50 bytes left out here]"
    assert cut_text("", 0) == ("", 0)


def test_the_limit_follows_the_window() -> None:
    assert limit_for(None) == 65_536
    assert limit_for(0) == 16_384
    assert limit_for(16_385) == 16_385
    assert limit_for(200_000) == 200_000


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"BM" + bytes(60), "image/bmp"),
        (b"\x00\x00\x00\x20ftypavif....", "image/avif"),
        (b"PK\x03\x04....word/document.xml", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ],
)
def test_bytes_of_a_known_file_are_collected_with_the_type_that_an_upload_would_have(
    data: bytes, media_type: str
) -> None:
    files: list[File] = []
    assert render_output(data, files) == f"[file: {media_type}, {len(data)} bytes]"
    assert files == [File(media_type, data=data)]


def test_bytes_of_text_that_begins_as_a_program_does_are_text() -> None:
    assert render_output(b"MZ and BZh and ID3 are words here", []) == "MZ and BZh and ID3 are words here"
