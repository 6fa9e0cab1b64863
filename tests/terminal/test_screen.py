"""A reply on a terminal of ten lines, read off as a person would see it in the scrollback."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.markdown import Markdown
from tests.support.examples import count_examples
from tests.terminal.paper import Paper, make_console

from indelible.content import (
    Part,
    ReasoningDelta,
    ResultOutcome,
    Text,
    TextDelta,
    ToolProgress,
    ToolResult,
    ToolStarted,
)
from indelible.models import Call, PromptMessage
from indelible.models.providers.demo import DemoModel
from indelible.terminal.plain import PlainReply
from indelible.terminal.screen import Screen
from indelible.testing import ManualClock, parts

FRAME_S = 1 / 12
EXAMPLES = count_examples(4)
REPLIES: dict[str, list[Part]] = {}
"""The demo model's replies by question: it says the same every time."""


def show(*shown: Part, frame_every: int = 1, leave: bool = True) -> str:
    """What is to be seen after these parts; a frame is drawn after every so many."""
    paper, clock = Paper(), ManualClock()
    screen = Screen(make_console(paper), clock)
    with screen:
        for number, part in enumerate(shown, start=1):
            screen.show(part)
            if number % frame_every == 0:
                clock.advance(FRAME_S)
        if not leave:
            return paper.read_off()
    return paper.read_off()


def words_of(text: str) -> list[str]:
    return text.replace("┆", " ").split()


def render_whole(text: str) -> str:
    paper = Paper()
    make_console(paper).print(Markdown(text, code_theme="ansi_dark"))
    return paper.read_off()


async def ask_demo(question: str) -> list[Part]:
    if question not in REPLIES:
        REPLIES[question] = await stream_demo(question)
    return REPLIES[question]


async def stream_demo(question: str) -> list[Part]:
    call = Call(messages=[PromptMessage(role="user", blocks=[Text(text=question)])])
    return [part async for part in DemoModel(pace_s=0).stream(call)]


@pytest.mark.parametrize("question", ["help", "show me a table", "show me some code", "tell me a long story"])
@given(stop=st.floats(0, 1), frame_every=st.integers(1, 50))
@settings(max_examples=EXAMPLES)
async def test_every_word_is_there_once_wherever_the_reply_is_stopped(
    question: str, stop: float, frame_every: int
) -> None:
    reply = await ask_demo(question)
    seen = reply[: int(stop * len(reply))]
    thinking = "".join(part.delta for part in seen if isinstance(part, ReasoningDelta))
    text = "".join(part.delta for part in seen if isinstance(part, TextDelta))
    assert words_of(show(*seen, frame_every=frame_every)) == words_of(thinking) + words_of(render_whole(text))


async def test_what_is_growing_is_seen_and_never_taller_than_the_window() -> None:
    reply = await ask_demo("show me some code")
    inside_the_fence = next(
        number for number, part in enumerate(reply) if isinstance(part, TextDelta) and "asyncio.run" in part.delta
    )
    screen = show(*reply[: inside_the_fence + 1], leave=False)
    assert screen.splitlines()[-1].strip() == "asyncio.run(main())"
    assert "import asyncio" not in screen  # scrolled out of the little window; printed when the block is finished
    assert "import asyncio" in show(*reply)


def test_a_burst_of_parts_costs_one_frame() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        before = paper.getvalue()
        for _ in range(1000):
            screen.show(parts.text_delta("1", "word "))
        assert paper.getvalue() == before
        assert clock.pending == 1
        clock.advance(FRAME_S)
        assert "word word" in paper.read_off()
        assert clock.pending == 0


def test_a_tool_line_tells_how_the_call_is_getting_on() -> None:
    story: list[tuple[Part, str]] = [
        (parts.tool_input_start("c", "roll_die"), "⚙ roll_die · writing"),
        (parts.tool_input_delta("c", '{"si'), '⚙ roll_die {"si · writing'),
        (parts.tool_call("c", "roll_die", '{"sides": 6}'), '⚙ roll_die {"sides": 6} · waiting'),
        (ToolStarted(call_id="c", name="roll_die"), '⚙ roll_die {"sides": 6} · running'),
        (ToolProgress(call_id="c", message="it rolls"), '⚙ roll_die {"sides": 6} · it rolls'),
        (parts.tool_result("c", "roll_die", "4"), '✓ roll_die {"sides": 6} → 4'),
    ]
    for count, (_, expected) in enumerate(story, start=1):
        assert show(*(part for part, _ in story[:count]), leave=False).splitlines()[0] == expected
    assert show(*(part for part, _ in story[:3])).split("\n")[0] == '■ roll_die {"sides": 6} · stopped'
    failed = parts.tool_result("c", "roll_die", "no\ndice", is_error=True)
    assert show(story[0][0], failed).split("\n")[0] == "✗ roll_die → no dice"


OUTCOMES: dict[ResultOutcome, tuple[str, str]] = {
    "ran": ("✓ pay → Not run: Outcome unknown", "[pay answered: Not run: Outcome unknown]"),
    "failed": ("✗ pay → Not run: Outcome unknown", "[pay failed: Not run: Outcome unknown]"),
    "not_run": ("– pay · not run → Not run: Outcome unknown", "[pay not run: Not run: Outcome unknown]"),
    "unknown": (
        "? pay · outcome unknown → Not run: Outcome unknown",
        "[pay outcome unknown: Not run: Outcome unknown]",
    ),
}


@pytest.mark.parametrize("outcome", get_args(ResultOutcome))
def test_the_outcome_of_a_call_says_what_happened_whatever_the_words_are(outcome: ResultOutcome) -> None:
    result = ToolResult(call_id="c", name="pay", output="Not run: Outcome unknown", outcome=outcome)
    on_screen, in_lines = OUTCOMES[outcome]
    assert show(result).split("\n")[0] == on_screen
    out = io.StringIO()
    PlainReply(out, out).show(result)
    assert out.getvalue().strip() == in_lines


def test_pieces_stay_in_order_when_a_later_tool_is_done_first() -> None:
    seen = show(
        parts.tool_call("a", "slow", "{}"),
        parts.tool_call("b", "quick", "{}"),
        parts.tool_result("b", "quick", "2"),
        parts.tool_result("a", "slow", "1"),
        parts.text_delta("t", "Done."),
    )
    assert " ".join(seen.split()) == "✓ slow {} → 1 ✓ quick {} → 2 Done."


def test_a_note_stands_below_what_was_said() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        screen.show(parts.text_delta("1", "Half a sen"))
        screen.note("Stopped by you.")
    assert paper.read_off().rstrip() == "Half a sen\n\nStopped by you."


@pytest.mark.parametrize("question", ["help", "show me a table", "tell me a long story"])
@given(cuts=st.lists(st.floats(0, 1), max_size=3), frame_every=st.integers(1, 50))
@settings(max_examples=EXAMPLES)
async def test_a_reply_that_is_cut_anywhere_and_goes_on_looks_as_if_it_had_not_been(
    question: str, cuts: list[float], frame_every: int
) -> None:
    text = [part.delta for part in await ask_demo(question) if isinstance(part, TextDelta)]
    places = sorted({1 + int(cut * (len(text) - 2)) for cut in cuts})
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        for number, (start, end) in enumerate(pairwise([0, *places, len(text)])):
            screen.begin_attempt()
            said: list[Part] = [parts.text_delta("t", delta) for delta in text[start:end]]
            if number:
                said = [parts.reasoning_delta("r", "I was cut."), parts.reasoning_end("r"), *said]
            for shown, part in enumerate(said):
                screen.show(part)
                if shown % frame_every == 0:
                    clock.advance(FRAME_S)
            screen.end_attempt(cut=end < len(text))
    assert words_of(paper.read_off()) == words_of(render_whole("".join(text)))


def test_thinking_before_a_cut_text_goes_on_is_seen_while_it_lasts() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        screen.show(parts.text_delta("1", "Half a sen"))
        screen.end_attempt(cut=True)
        screen.begin_attempt()
        screen.show(parts.reasoning_delta("r", "Where was I?"))
        clock.advance(FRAME_S)
        assert paper.read_off().rstrip() == "Half a sen\n\n┆ Where was I?"
        screen.show(parts.reasoning_end("r"))
        screen.show(parts.text_delta("1", "tence."))
        clock.advance(FRAME_S)
        assert paper.read_off().rstrip() == "Half a sentence."


def test_a_cut_text_that_goes_on_with_a_tool_is_over() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        screen.show(parts.text_delta("1", "Half"))
        screen.end_attempt(cut=True)
        screen.begin_attempt()
        screen.show(parts.tool_call("c", "look", "{}"))
        screen.show(parts.tool_result("c", "look", "4"))
        screen.begin_attempt()
        screen.show(parts.text_delta("1", "Done."))
    assert paper.read_off().split() == ["Half", "✓", "look", "{}", "→", "4", "Done."]


def test_thinking_that_came_to_nothing_is_taken_back_while_it_is_drawn() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        screen.show(parts.reasoning_delta("r", "Let me think"))
        clock.advance(FRAME_S)
        assert "Let me think" in paper.read_off()
        screen.drop_attempt()
        screen.begin_attempt()
        screen.show(parts.text_delta("1", "Yes."))
    assert paper.read_off().rstrip() == "Yes."


def test_an_announcement_stands_at_the_bottom_until_the_reply_is_continued() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        screen.show(parts.text_delta("1", "Half a sen"))
        screen.end_attempt(cut=True)
        screen.announce("Overloaded. Trying again in 3 s.")
        clock.advance(FRAME_S)
        assert paper.read_off().rstrip() == "Half a sen\n\nOverloaded. Trying again in 3 s."
        screen.begin_attempt()
        screen.show(parts.text_delta("1", "tence."))
    assert paper.read_off().rstrip() == "Half a sentence."


def test_the_messages_of_the_user_stand_between_the_replies() -> None:
    paper, clock = Paper(), ManualClock()
    with Screen(make_console(paper), clock) as screen:
        screen.quote("How are\x1b[2J you?")
        screen.show(parts.text_delta("1", "Well."))
        screen.quote("Good.")
    assert paper.read_off().rstrip() == "you › How are\ufffd[2J you?\n\nWell.\n\nyou › Good."


def test_the_next_step_may_use_the_same_ids() -> None:
    seen = show(
        parts.text_delta("1", "First."), parts.text_end("1"), parts.text_delta("1", "Second."), parts.text_end("1")
    )
    assert seen.rstrip() == "First.\n\nSecond."


def test_escape_sequences_in_a_reply_do_not_reach_the_terminal() -> None:
    seen = show(
        parts.text_delta("1", "a\x1b[2Jb"),
        parts.text_end("1"),
        parts.tool_call("c", "t\x1b[1A", "\x1b[1A"),
        parts.tool_result("c", "t", "\x1b[2K"),
        parts.warning("w\x1b[1A"),
    )
    assert seen.split() == ["a\ufffd[2Jb", "✓", "t\ufffd[1A", "\ufffd[1A", "→", "\ufffd[2K", "w\ufffd[1A"]
