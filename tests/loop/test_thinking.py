"""Thinking inside the text: what is moved, what is code, what waits, and what it costs.

The properties compare the splitter with `split_slowly`, which is given the whole text at once, keeps every
character under a label, and finds out what is code by reading the answer so far from its beginning.
"""

from __future__ import annotations

import re
import sys

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.examples import count_examples, is_thorough
from tests.support.thinking import split_thinking

from indelible.loop.thinking import (
    MAX_MARK_CHARS,
    QUOTE_REACH_CHARS,
    Section,
    Segment,
    SplitterState,
    ThinkingSplitter,
    find_target,
    may_become_mark,
    read_mark,
)

many_examples = settings(max_examples=count_examples(50))

HARMONY = (
    "<|channel|>analysis<|message|>They greet me.<|end|><|start|>assistant<|channel|>final<|message|>Hello!<|return|>"
)


def feed_all(splitter: ThinkingSplitter, chunks: list[str]) -> list[Segment]:
    segments = [segment for chunk in chunks for segment in splitter.feed(chunk)]
    return merge(segments + splitter.finish())


def merge(segments: list[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for segment in segments:
        if merged and merged[-1].thinking == segment.thinking:
            merged[-1] = Segment(segment.thinking, merged[-1].text + segment.text)
        else:
            merged.append(segment)
    return merged


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def answer_of(text: str, *, thinks_first: bool = False) -> str:
    return split_thinking(text, thinks_first=thinks_first)[0]


# --- the marks ---------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning", "reason", "thought", "THINK", "Thought"])
def test_a_tag_of_any_name_and_case_moves_what_it_holds(tag: str) -> None:
    assert split_thinking(f"<{tag}>plan</{tag.lower()}>\n\nAnswer") == ("Answer", "plan")


@pytest.mark.parametrize(
    "opener",
    ['<think budget="3">', "<think a='1' b=2>", '<THINK\n  note = "a > b < c" >', "<think >", '<think x:y.z-w="">'],
)
def test_a_tag_may_have_attributes(opener: str) -> None:
    assert split_thinking(f"{opener}plan</think >Answer") == ("Answer", "plan")


@pytest.mark.parametrize(
    "text",
    [
        "Sorry for <reason for leaving>, see you.",
        "if a <think and b > c",
        "<thinker>x</thinker>",
        "<think",
        "<think/>x",
        "< think>x",
        "a < b, <b>bold</b>, <|end|>, <|return|>, <channel|>, <|end_of_thought|>, </think> are text",
        "<|begin_of_solution|>x<|end_of_solution|>",
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}<|call|>",
        "<thin\u212a>x",  # a Kelvin sign is no K
    ],
)
def test_what_only_looks_like_a_mark_is_text(text: str) -> None:
    assert split_thinking(text) == (text, "")


def test_harmony_channels_are_split() -> None:
    assert split_thinking(HARMONY) == ("Hello!", "They greet me.")


def test_harmony_channels_are_split_when_the_server_strips_the_ends() -> None:
    stripped = HARMONY.replace("<|end|>", "").replace("<|return|>", "")
    assert split_thinking(stripped) == ("Hello!", "They greet me.")


def test_harmony_headers_may_hold_blanks_and_a_constraint() -> None:
    text = (
        "<|channel|> analysis <|message|>hm<|end|>\n<|start|>assistant <|channel|>final <|constrain|>JSON<|message|>{}"
    )
    assert split_thinking(text) == ("{}", "hm")


def test_harmony_commentary_is_for_the_user() -> None:
    text = "<|channel|>commentary<|message|>I will look.<|end|><|channel|>analysis<|message|>hm<|end|>"
    assert split_thinking(text) == ("I will look.", "hm")


def test_gemma_channel_is_split() -> None:
    assert split_thinking("<|channel>thought\nplan\n<channel|>Water is H2O.") == ("Water is H2O.", "\nplan\n")


def test_thought_and_solution_tokens_are_split() -> None:
    text = "<|begin_of_thought|>plan<|end_of_thought|>\n\n<|begin_of_solution|>\n\nAnswer<|end_of_solution|>"
    assert split_thinking(text) == ("Answer", "plan")


def test_thinking_ends_at_the_first_closer_of_its_own_kind() -> None:
    assert split_thinking("<think>a <think> b </thinking> c</think>Answer") == ("Answer", "a <think> b </thinking> c")


def test_a_mark_longer_than_the_limit_is_text() -> None:
    fits = '<think a="' + "x" * (MAX_MARK_CHARS - 12) + '">'
    too_long = '<think a="' + "x" * (MAX_MARK_CHARS - 11) + '">'
    assert split_thinking(fits + "plan") == ("", "plan")
    assert split_thinking(too_long + "plan") == (too_long + "plan", "")


SPELLINGS = [
    "<think>",
    "</Thinking  >",
    "<reason a='1' bc=2 d = \"x>y\" >",
    "<|begin_of_thought|>",
    "<|END_of_solution|>",
    "<|end|>",
    "<|return|>",
    "<|channel>thought",
    "<channel|>",
    "<|channel|>analysis<|message|>",
    "<|start|> assistant <|channel|> final <|constrain|> json <|message|>",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_beginning_of_a_mark_is_waited_for_and_none_is_a_mark(spelling: str) -> None:
    found = read_mark("x" + spelling + "x", 1)
    assert found is not None
    assert found.end == 1 + len(spelling)
    for length in range(1, len(spelling)):
        assert may_become_mark("x" + spelling[:length], 1), spelling[:length]
        assert read_mark(spelling[:length], 0) is None


# --- blanks ------------------------------------------------------------------------------


def test_s61_closed_thinking_then_visible_text_leaves_the_text_alone() -> None:
    assert split_thinking("<think>x</think>\nThe answer is 42") == ("The answer is 42", "x")


@pytest.mark.parametrize("size", range(1, 12))
def test_s62_unclosed_thinking_leaves_no_visible_text(size: int) -> None:
    splitter = ThinkingSplitter()
    assert feed_all(splitter, cut("\n<think>first I look at\n\nthe", size)) == [
        Segment(thinking=True, text="first I look at\n\nthe")
    ]
    assert splitter.thinking


def test_blanks_around_blocks_at_the_start_are_dropped_and_later_ones_kept() -> None:
    text = "\n <think>a</think>\n\n<think>b</think> \tOne <think>c</think> two\n"
    assert split_thinking(text) == ("One  two\n", "abc")


def test_a_block_of_blanks_is_no_thinking() -> None:
    assert split_thinking("<think>\n\n</think>\n\nAnswer") == ("Answer", "")


def test_thinking_keeps_its_own_blanks() -> None:
    assert split_thinking("<think>\n  plan \n</think>Answer") == ("Answer", "\n  plan \n")


def test_blanks_alone_are_kept_where_nothing_was_removed() -> None:
    assert split_thinking(" \n\n") == (" \n\n", "")


# --- a model that thinks first -----------------------------------------------------------


@pytest.mark.parametrize("text", ["plan</think>\nAnswer", "<think>plan</think>\nAnswer", "\n<think>plan</think>Answer"])
def test_a_model_that_thinks_first_needs_no_opener(text: str) -> None:
    assert split_thinking(text, thinks_first=True) == ("Answer", "plan")


def test_elsewhere_a_stray_closer_is_text() -> None:
    assert split_thinking("plan</think>\nAnswer") == ("plan</think>\nAnswer", "")


def test_a_model_that_thinks_first_and_never_closes_has_only_thought() -> None:
    splitter = ThinkingSplitter(thinks_first=True)
    assert feed_all(splitter, ["so ", "far"]) == [Segment(thinking=True, text="so far")]
    assert splitter.state.section is Section.FIRST


def test_a_later_opener_is_a_word_of_the_first_thinking() -> None:
    text = "What is <think>? I know.</think>A tag.</think>"
    assert split_thinking(text, thinks_first=True) == ("A tag.</think>", "What is <think>? I know.")


def test_a_model_that_thinks_first_may_go_straight_to_its_final_channel() -> None:
    assert answer_of("<|channel|>final<|message|>Hello", thinks_first=True) == "Hello"


# --- code --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "```\n<think>x</think>\n```",
        "Look:\n   ~~~~xml\n<think>\n~~~\n```\n</think>\n~~~~",
        "```<think>x</think>\n",
        "````\n```\n<think>\n````",
        "- item\n      ```\n      <think>\n      ```\n",
        "~~~ a`b\n<think>",
        "```\n```\n    <think>",
        "    <think>x</think>",
        "\t<think>",
        "a\n\n    code\n    <think>\n\n    <think>",
        "use `<think>` and `</think>`",
        "`` a ` <think> ``",
        "`` a `<think>` b",
        "```a``` `<think>`",
        "``` a`b <think> ```",
        "`a`` <think> ``",
    ],
)
def test_a_tag_in_code_is_text(text: str) -> None:
    assert split_thinking(text) == (text, "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("```\ncode\n```\n", "\nend"),
        ("```\ncode\n  `````  \n", ""),
        ("~~~\n```\n~~~\n", ""),
        ("```\n      ```\n", ""),  # models indent the end of a fence as they like
        ("```\n``` a\n", ""),  # and write on behind it
        ("```a`b\n", ""),  # no fence: its info string holds a back-tick
        ("``\n", ""),
        ("<```\n", ""),
        ("a `", "``\n"),
        ("a\n    ", "b"),  # no code: it goes on with the paragraph
        ("a\n\n   ", "b"),
        ("a ` b ", " c"),
        ("a ` b ", " c\n`"),
        ("`a` ", " b `"),
        ("a ` b ", "c" * QUOTE_REACH_CHARS + "`"),
    ],
)
def test_a_tag_beside_code_is_a_tag(before: str, after: str) -> None:
    assert split_thinking(f"{before}<think>plan</think>{after}") == (before + after, "plan")


def test_the_answer_alone_decides_what_is_a_fence() -> None:
    text = "<think>```\n</think>```\n<think>\n```\n<think>```</think>done"
    assert split_thinking(text) == ("```\n<think>\n```\ndone", "```\n```")


def test_dropped_blanks_do_not_indent_a_fence() -> None:
    assert split_thinking("  <think>a</think>    ```\n<think>x") == ("```\n<think>x", "a")


def test_a_fence_left_open_in_thinking_does_not_swallow_the_answer() -> None:
    assert split_thinking("<think>```python\nx = 1\n</think>Answer") == ("Answer", "```python\nx = 1\n")


def test_a_quoted_closer_does_not_end_thinking() -> None:
    assert split_thinking("<think>they mean `</think>`, so</think>Yes") == ("Yes", "they mean `</think>`, so")


def test_a_stray_back_tick_in_thinking_does_not_swallow_the_answer() -> None:
    assert split_thinking("<think>a ` b</think>\nUse `x`.") == ("Use `x`.", "a ` b")


# --- streaming ---------------------------------------------------------------------------


def test_plain_text_goes_straight_through() -> None:
    splitter = ThinkingSplitter()
    splitter.feed("Hello")
    chunk = ", world"
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        segments = splitter.feed(chunk)
    finally:
        sys.setprofile(None)
    assert segments == [Segment(thinking=False, text=chunk)]
    assert segments[0].text is chunk
    assert len(calls) <= 2, calls  # the call itself, and the segment


def test_only_what_may_be_a_mark_waits() -> None:
    splitter = ThinkingSplitter()
    assert splitter.feed("if a <") == [Segment(thinking=False, text="if a ")]
    assert splitter.holding
    assert splitter.feed("th") == []
    assert splitter.feed("e b `<") == [Segment(thinking=False, text="<the b `")]
    assert splitter.feed("think>") == []
    assert splitter.feed("x` ") == [Segment(thinking=False, text="<think>x` ")]
    assert not splitter.holding


def test_the_end_of_thinking_is_known_before_the_answer_begins() -> None:
    splitter = ThinkingSplitter()
    assert splitter.feed("<think>plan</think") == [Segment(thinking=True, text="plan")]
    assert splitter.thinking
    assert splitter.feed(">\n\n") == []
    assert not splitter.thinking


def test_a_half_mark_at_the_end_stays_what_it_is() -> None:
    assert split_thinking("Answer <thin") == ("Answer <thin", "")
    assert split_thinking("<think>plan</thi") == ("", "plan</thi")


def test_nothing_fed_gives_nothing() -> None:
    splitter = ThinkingSplitter()
    assert splitter.feed("") == []
    splitter.feed("a")
    assert splitter.feed("") == []
    assert splitter.finish() == []
    assert splitter.finish() == []


# --- the slow and simple one -------------------------------------------------------------

REMOVED = "\ue000"  # stands in the answer where a mark was taken out: it ends a run of back-ticks


def split_slowly(text: str, *, thinks_first: bool) -> list[tuple[str, str]]:
    """Every character of `text` in order, labelled "answer", "thinking", "mark" or "blank"."""
    section = Section.FIRST if thinks_first else Section.ANSWER
    labelled: list[tuple[str, str]] = []
    answer, thought, removed, pos = "", "", False, 0
    block_start = 0
    while pos < len(text):
        said = thought if section.is_thinking else answer
        found = read_mark(text, pos) if text[pos] == "<" else None
        target = found and find_target(section, found.mark, at_start=is_blank(said))
        if found and target and not stands_in_code(said, text[found.end :], thinking=section.is_thinking):
            if is_blank(said):
                labelled[block_start:] = [("blank", piece) for _, piece in labelled[block_start:]]
                said = ""
            if section.is_thinking:
                thought = said
            else:
                answer, thought = (said + REMOVED if said else ""), ""
            labelled.append(("mark", text[pos : found.end]))
            if section.is_thinking != target.is_thinking or is_blank(said):
                block_start = len(labelled)
            section, removed, pos = target, True, found.end
            continue
        if section.is_thinking:
            thought += text[pos]
            labelled.append(("thinking", text[pos]))
        elif removed and not answer and text[pos].isspace():
            labelled.append(("blank", text[pos]))
        else:
            answer += text[pos]
            labelled.append(("answer", text[pos]))
        pos += 1
    if section.is_thinking and is_blank(thought):
        labelled[block_start:] = [("blank", piece) for _, piece in labelled[block_start:]]
    return labelled


def is_blank(said: str) -> bool:
    return not said.replace(REMOVED, "").strip()


def stands_in_code(said: str, rest: str, *, thinking: bool) -> bool:
    *lines, last = said.split("\n")
    if not thinking and stands_in_block(lines, last):
        return True
    ticks: list[int] = []
    for run in re.findall("`+", last):
        ticks = ticks[: ticks.index(len(run))] if len(run) in ticks else [*ticks, len(run)]
    if thinking:
        return len(rest) - len(rest.lstrip("`")) in ticks
    return any(len(run) in ticks for run in re.findall("`+", rest[:QUOTE_REACH_CHARS].split("\n", 1)[0]))


def stands_in_block(lines: list[str], last: str) -> bool:
    fence, may_indent_code = "", True
    for line in lines:
        indent, opening = measure_indent(line), FENCE.fullmatch(line)
        if fence:
            if line.lstrip(BLANKS).startswith(fence):  # whatever follows it, and however it is indented
                fence, may_indent_code = "", True
        elif opening and not (indent >= 4 and may_indent_code):
            fence = opening["ticks"] or opening["tildes"]
        else:
            may_indent_code = not line.strip(BLANKS) or (indent >= 4 and may_indent_code)
    return bool(fence or FENCE.fullmatch(last) or (measure_indent(last) >= 4 and may_indent_code))


BLANKS = " \t\r" + REMOVED
FENCE = re.compile(rf"[{BLANKS}]*(?:(?P<ticks>`{{3,}})[^`]*|(?P<tildes>~{{3,}}).*)", re.DOTALL)


def measure_indent(line: str) -> int:
    blanks = line[: len(line) - len(line.lstrip(BLANKS))]
    return len(blanks.replace("\r", "").replace(REMOVED, "").expandtabs(4))


FRAGMENTS = [
    *SPELLINGS,
    *("<thinking>", "</think>", "</thinking>", "</reason>", "<THOUGHT>", "</Thought>", "<|end_of_thought|>"),
    *("<|begin_of_solution|>", "<|start|>", "<|channel|>final<|message|>", "<|channel|>", "analysis", "<|message|>"),
    *("<", "</", "<thi", "nk>", ">", "|", '<think a="', '"', "<think ", "a=b ", "="),
    *("`", "``", "```", "````", "~~~", "~", "```py\n", "\n```\n", "\n\n    ", "    ", "\t", "   "),
    *("\n", "\n\n", "\r\n", " ", "a", "word ", "é", "🙂", "\u3000", "\u212a", "x" * 120),
]
MARKDOWN = ["<think>", "</think>", "<", "`", "``", "```", "~~~", "\n", "\n\n", "    ", " ", "a"]
texts = st.one_of(
    st.lists(st.sampled_from(MARKDOWN), max_size=16).map("".join),
    st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join),
    st.text(alphabet="<>/|`~ \n\tthink", max_size=60),
    st.text(max_size=30).filter(lambda text: REMOVED not in text),
)


@st.composite
def chunked(draw: st.DrawFn) -> list[str]:
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@many_examples
@given(chunks=chunked(), thinks_first=st.booleans())
@example(chunks=["a `", "x", "`` <think>``"], thinks_first=False)
@example(chunks=["a `<think>x`", "`\n"], thinks_first=False)
def test_every_cutting_gives_the_same_segments(chunks: list[str], thinks_first: bool) -> None:
    text = "".join(chunks)
    whole = feed_all(ThinkingSplitter(thinks_first=thinks_first), [text])
    assert feed_all(ThinkingSplitter(thinks_first=thinks_first), chunks) == whole
    assert feed_all(ThinkingSplitter(thinks_first=thinks_first), list(text)) == whole


@many_examples
@given(text=texts, thinks_first=st.booleans())
@example(text="a ``<think>x\n</think>`\n<think>y", thinks_first=False)
@example(text="</think>```py\n```py\n<think>", thinks_first=True)
def test_no_character_is_lost(text: str, thinks_first: bool) -> None:
    labelled = split_slowly(text, thinks_first=thinks_first)
    assert "".join(piece for _, piece in labelled) == text
    assert all(piece.isspace() for label, piece in labelled if label == "blank")
    expected = [Segment(label == "thinking", piece) for label, piece in labelled if label in {"answer", "thinking"}]
    splitter = ThinkingSplitter(thinks_first=thinks_first)
    segments = splitter.feed(text)
    assert segments == merge(segments)
    assert merge(segments + splitter.finish()) == merge(expected)


@many_examples
@given(chunks=chunked())
def test_text_without_an_angle_is_released_at_once_from_its_first_word_on(chunks: list[str]) -> None:
    splitter = ThinkingSplitter()
    fed = released = ""
    for chunk in (chunk.replace("<", "") for chunk in chunks):
        fed += chunk
        released += "".join(segment.text for segment in splitter.feed(chunk))
        assert released == (fed if fed.strip() else "")
    assert released + "".join(segment.text for segment in splitter.finish()) == fed


@many_examples
@given(chunks=chunked(), thinks_first=st.booleans())
def test_no_word_waits_longer_than_a_mark_and_its_quotes(chunks: list[str], thinks_first: bool) -> None:
    splitter = ThinkingSplitter(thinks_first=thinks_first)
    for char in "".join(chunks):
        splitter.feed(char)
        assert len(splitter._held) <= MAX_MARK_CHARS + QUOTE_REACH_CHARS


@many_examples
@given(text=texts, thinks_first=st.booleans(), data=st.data())
def test_another_splitter_goes_on_where_the_last_one_ended(
    text: str,
    thinks_first: bool,
    data: st.DataObject,
) -> None:
    """What was held back has been released as if the text had ended; where nothing was, no seam shows at all."""
    place = data.draw(st.integers(0, len(text)))
    first = ThinkingSplitter(thinks_first=thinks_first)
    before = first.feed(text[:place])
    held_back = first.holding
    before += first.finish()
    assert not first.holding
    assert merge(before) == feed_all(ThinkingSplitter(thinks_first=thinks_first), [text[:place]])

    state = msgspec.json.decode(msgspec.json.encode(first.state), type=SplitterState)
    assert state == first.state
    second = ThinkingSplitter(state=state)
    assert second.thinking == first.thinking
    after = feed_all(second, [text[place:]])
    if not held_back:
        assert merge(before + after) == feed_all(ThinkingSplitter(thinks_first=thinks_first), [text])


def test_a_continuing_attempt_goes_on_thinking() -> None:
    first = ThinkingSplitter()
    assert feed_all(first, ["<think>one"]) == [Segment(thinking=True, text="one")]
    second = ThinkingSplitter(state=first.state)
    assert feed_all(second, [" two</think>\nAnswer"]) == [
        Segment(thinking=True, text=" two"),
        Segment(thinking=False, text="Answer"),
    ]


def test_a_continuing_attempt_goes_on_in_its_fence() -> None:
    first = ThinkingSplitter()
    feed_all(first, ["```xml\n<a>"])
    second = ThinkingSplitter(state=first.state)
    assert feed_all(second, ["<think>\n```\n<think>x"]) == [
        Segment(thinking=False, text="<think>\n```\n"),
        Segment(thinking=True, text="x"),
    ]


# --- cost --------------------------------------------------------------------------------

MEGABYTE = 1_000_000
LONG_TEXTS = {
    "prose": "A quick `brown` fox <b>jumps</b>.\n\n    code\n```py\nx < y\n```\n<think>hm</think>",
    "angles": "<",
    "back-ticks": "`",
    "openers": "<think>",
    "blocks": "<think>a</think>",
    "attributes": "<think " + 'a="b" ' * 40,
    "quotes": '<think a="<',
    "quoted": "`a ``b <think>c ",
    "headers": "<|start|>assistant ",
    "blanks": " ",
    "lines": "\n",
}


def repeat(name: str, length: int) -> str:
    piece = LONG_TEXTS[name]
    return piece * (length // len(piece))


RUNS = [(name, MEGABYTE, MEGABYTE) for name in LONG_TEXTS]
RUNS += [(name, MEGABYTE // 4, 7) for name in LONG_TEXTS]
RUNS += [("prose", MEGABYTE // 4, 1)]


@pytest.mark.parametrize(("name", "length", "size"), RUNS)
def test_a_long_hostile_text_is_split_as_it_is_in_other_pieces(name: str, length: int, size: int) -> None:
    """bench/growth.py measures what it costs: a megabyte at once, and a quarter of that by a few characters.

    Here it is a thirtieth of that, a tenth in `make nightly`.
    """
    text = repeat(name, length // (10 if is_thorough() else 30))
    assert feed_all(ThinkingSplitter(), cut(text, size)) == feed_all(ThinkingSplitter(), cut(text, 9_000))


def test_a_stray_back_tick_in_thinking_does_not_cost_the_answer() -> None:
    assert split_thinking("<think>use `foo</think>The `bar` answer") == ("The `bar` answer", "use `foo")
    assert split_thinking("<think>a `</think>` tag</think>Yes") == ("Yes", "a `</think>` tag")
