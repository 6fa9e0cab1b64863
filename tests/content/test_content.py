"""Values and their JSON: an exact round trip for arbitrary values, and a page that documents all of it.

The strategies are made from the annotations, so a new class or field is tested without being named here,
and a field of a type that nobody thought of fails loudly.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples

from indelible.content import (
    Block,
    File,
    FinishReason,
    Message,
    Metadata,
    Part,
    PartialReason,
    Reasoning,
    Role,
    Source,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    Visibility,
    decode_blocks,
    decode_part,
    decode_parts,
    encode,
    has_visible,
    is_visible,
)

PAGE = (Path(__file__).parents[2] / "docs" / "content.md").read_text()
BLOCKS = get_args(Block)
PARTS = get_args(Part)
TAGGED = tuple(dict.fromkeys((*BLOCKS, *PARTS)))
ALL = {**{cls.__struct_config__.tag: cls for cls in TAGGED}, "message": Message, "usage": Usage}


# --- arbitrary values --------------------------------------------------------------------

texts = st.one_of(
    st.text(),
    st.sampled_from(["\x00", "\u2028\u2029", "\ufeff", "\U0001f600", "\u0301", "\x7f\x80", '"\\/\b\f', "</script>"]),
)
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),  # JSON has neither
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
# RFC 3339 writes offsets in whole minutes; the loop writes none but UTC.
offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))

OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: texts,
    bool: st.booleans(),
    int: st.integers(0, 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bytes: st.binary(),
    datetime: st.datetimes(timezones=offsets),
    Metadata: st.dictionaries(texts, json_values, max_size=2),
    Any: json_values,
    type(None): st.none(),
}


@cache  # hypothesis looks at every new strategy anew, and that takes longer than drawing from it
def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in OF_TYPE:
        return OF_TYPE[annotation]
    if get_origin(annotation) is Literal:
        return st.sampled_from(get_args(annotation))
    if get_origin(annotation) is list:
        return st.lists(values_of(get_args(annotation)[0]), max_size=4)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return st.builds(annotation, **{name: values_of(hint) for name, hint in get_type_hints(annotation).items()})
    return st.one_of(*map(values_of, get_args(annotation)))


blocks = values_of(Block)
parts = values_of(Part)
messages = values_of(Message)


# --- JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*TAGGED, Usage, Message], ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=count_examples(8))
def test_every_class_comes_back_from_its_json_exactly(cls: type[msgspec.Struct], data: st.DataObject) -> None:
    value = data.draw(values_of(cls))
    encoded = encode(value)

    decoded = msgspec.json.decode(encoded, type=cls)

    assert decoded == value
    assert encode(decoded) == encoded


@given(st.lists(parts, max_size=4))
def test_parts_come_back_as_their_own_class(given_parts: list[Part]) -> None:
    assert decode_parts(encode(given_parts)) == given_parts
    assert [decode_part(encode(part)) for part in given_parts] == given_parts
    assert [type(part) for part in decode_parts(encode(given_parts))] == [type(part) for part in given_parts]


@given(st.lists(blocks, max_size=4), st.lists(messages, max_size=2))
def test_blocks_and_messages_come_back_as_their_own_class(
    given_blocks: list[Block], given_messages: list[Message]
) -> None:
    assert decode_blocks(encode(given_blocks)) == given_blocks
    assert msgspec.json.decode(encode(given_messages), type=list[Message]) == given_messages


@given(st.one_of(parts, blocks, messages))
def test_json_holds_the_fields_that_differ_from_their_default_and_no_others(value: Any) -> None:
    plain = json.loads(encode(value))
    tag = value.__struct_config__.tag
    without_default = {
        field.name
        for field in msgspec.structs.fields(value)
        if field.required or getattr(value, field.name) != default_of(field)
    }

    assert plain.pop("type", None) == tag
    # An equal value of another type (0 for False, say) is written too: it is not the default itself.
    assert without_default <= set(plain) <= {field.name for field in msgspec.structs.fields(value)}


@given(st.one_of(parts, messages))
def test_json_is_one_line_of_utf_8(value: Any) -> None:
    encoded = encode(value)

    assert b"\n" not in encoded
    assert json.loads(encoded.decode()) == json.loads(encoded)


def test_every_class_has_a_tag_of_its_own() -> None:
    tags = [cls.__struct_config__.tag for cls in TAGGED]

    assert len(set(tags)) == len(tags) == 22
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", tag) for tag in tags)


def test_what_is_whole_is_the_same_class_as_block_and_as_part() -> None:
    assert set(BLOCKS) & set(PARTS) == {ToolCall, ToolResult, Source, File}


@pytest.mark.parametrize(
    "bad",
    [
        b'{"type": "text_delta", "id": "1"}',
        b'{"type": "text_delta", "id": 1, "delta": ""}',
        b'{"type": "no_such_part"}',
        b'{"id": "1", "delta": ""}',
        b'{"type": "finish", "reason": "bored"}',
    ],
)
def test_what_is_no_part_is_refused(bad: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_part(bad)


def test_values_can_not_be_changed() -> None:
    for value in (Text("a"), Usage(), Message(role="user")):
        with pytest.raises(AttributeError):
            value.text = "b"  # type: ignore[union-attr, misc]


# --- small questions ---------------------------------------------------------------------


@given(values_of(Usage), values_of(Usage))
def test_usage_adds_up_field_by_field(one: Usage, other: Usage) -> None:
    both = msgspec.to_builtins(one + other)

    for name in Usage.__struct_fields__:
        assert both.get(name, 0) == getattr(one, name) + getattr(other, name)


@pytest.mark.parametrize(
    ("old", "outcome"),
    [
        (b"", "ran"),
        (b', "is_error": true', "failed"),
        (b', "is_error": true, "interrupted": true', "unknown"),
        (b', "outcome": "not_run"', "not_run"),
        (b', "is_error": true, "outcome": "unknown"', "unknown"),
    ],
)
def test_is_error_follows_from_the_outcome_and_stands_for_it_where_there_is_none(old: bytes, outcome: str) -> None:
    stored = (
        b'[{"type": "tool_result", "call_id": "1", "name": "pay", "output": "Not run: the server stopped"%b}]' % old
    )
    (result,) = decode_blocks(stored)
    assert isinstance(result, ToolResult)
    assert (result.outcome, result.is_error) == (outcome, outcome != "ran")
    assert decode_blocks(encode([result])) == [result]


def test_text_and_tool_calls_are_visible_and_nothing_else_is() -> None:
    call = ToolCall(id="1", name="weather")
    hidden: list[Block] = [
        Text(""),
        Text(" \n"),
        Reasoning("hm"),
        ToolResult(call_id="1", name="weather", output="rain"),
        Source(url="https://example.org"),
        File(media_type="image/png"),
    ]

    assert is_visible(Text("a"))
    assert is_visible(call)
    assert not any(map(is_visible, hidden))
    assert not has_visible(hidden)
    assert has_visible([*hidden, call])


def test_reasoning_is_signed_by_a_signature_or_by_metadata() -> None:
    assert Reasoning(signature="s").signed
    assert Reasoning(metadata={"encrypted": "e"}).signed
    assert not Reasoning("hm", signature="", metadata={}).signed


def test_the_text_of_a_message_is_its_text_blocks_in_order() -> None:
    said: list[Block] = [Text("a"), Reasoning("no"), ToolCall(id="1", name="weather"), Text("b")]

    assert Message(role="assistant", blocks=said).text == "ab"


# --- the page ----------------------------------------------------------------------------

SECTIONS = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def test_the_page_has_a_section_for_every_class_and_no_other() -> None:
    assert sorted(SECTIONS) == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_the_page_lists_every_field_with_its_default(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", SECTIONS[name], re.MULTILINE)

    documented = [(field, default) for field, default, _ in rows]

    assert documented == [
        (field.name, "required" if field.required else f"`{encode(default_of(field)).decode()}`")
        for field in msgspec.structs.fields(ALL[name])
    ]


@pytest.mark.parametrize("name", ALL)
def test_the_page_has_an_example_that_is_exactly_what_we_write(name: str) -> None:
    examples = re.findall(r"^```json\n(.*?)\n```$", SECTIONS[name], re.MULTILINE | re.DOTALL)

    assert examples
    for example in examples:
        value = msgspec.json.decode(example, type=ALL[name])
        assert json.loads(encode(value)) == json.loads(example)
        assert list(json.loads(encode(value))) == list(json.loads(example))


@pytest.mark.parametrize(
    ("section", "words"),
    [("message", Role), ("message", Visibility), ("message", PartialReason), ("finish", FinishReason)],
)
def test_the_page_names_every_word_of_a_closed_list(section: str, words: Any) -> None:
    for word in get_args(words):
        assert f"`{word}`" in SECTIONS[section]


def test_the_page_says_which_blocks_are_parts_as_well() -> None:
    both = {tag for tag, section in SECTIONS.items() if "Block and part" in section}

    assert both == {cls.__struct_config__.tag for cls in set(BLOCKS) & set(PARTS)}
