"""What the model gets of a history: one named case per rule.

Rules that must hold for every history, however broken, are in test_any_history.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from indelible.content import Block, File, Message, Reasoning, Role, Source, Text, ToolCall, ToolResult
from indelible.loop.prompt.build import (
    CUT_REMARK,
    NEXT_REMARK,
    NO_RESULT,
    build_prompt,
    from_newest_compaction,
    mark_cache,
)
from indelible.models.protocol import PromptMessage
from indelible.testing.legality import assert_legal

PROVIDERS = ("anthropic", "openai")


def say(role: Role, *blocks: Block | str, partial: bool = False, provider: str | None = None) -> Message:
    made: list[Block] = [Text(block) if isinstance(block, str) else block for block in blocks]
    return Message(role=role, blocks=made, partial=partial, provider=provider)


def call(id: str = "c1", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id, name="weather", arguments=arguments)


def result(id: str = "c1", output: str = "sunny") -> ToolResult:
    return ToolResult(call_id=id, name="weather", output=output)


SEARCH = ToolCall(id="srvtoolu_1", name="web_search", arguments='{"q":"oslo"}', provider_executed=True)
FOUND = ToolResult(call_id="srvtoolu_1", name="web_search", output=[{"url": "https://x.test"}], provider_executed=True)


def build(*messages: Message, provider: str = "anthropic", model: str | None = None) -> list[PromptMessage]:
    """A prompt that is also checked to be legal."""
    prompt = build_prompt(messages, provider=provider, model=model)
    assert_legal(prompt, provider=provider)
    return prompt


def show(prompt: Sequence[PromptMessage]) -> list[tuple[str, list[Block]]]:
    return [(message.role, message.blocks) for message in prompt]


# --- what is in and what is out ----------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_s11_the_prompt_holds_exactly_the_messages_given(provider: str) -> None:
    history = [
        say("system", "Be brief."),
        say("user", "Rain?", File(media_type="image/png", url="https://x.test/a.png")),
        say("assistant", Reasoning("hm", signature="s"), "Let me see.", call(), provider=provider),
        say("tool", result()),
        say("system", "Now in English."),
        say("assistant", "No.", Source(url="https://x.test"), provider=provider),
        say("user", "Thanks", Text("!", metadata={"tone": "warm"})),
    ]
    assert show(build(*history, provider=provider)) == [(message.role, message.blocks) for message in history]


def test_no_messages_give_no_prompt() -> None:
    assert build() == []


def test_notices_and_rows_for_people_stay_out() -> None:
    hidden = replace(say("user", "between us"), visibility="people")
    shown = replace(say("user", "go on"), visibility="model")
    assert show(build(say("user", "hi"), say("notice", "Stopped by you."), hidden, shown)) == [
        ("user", [Text("hi")]),
        ("user", [Text("go on")]),
    ]


def test_s59_the_notice_never_reaches_the_model_and_the_partial_does() -> None:
    prompt = build(
        say("user", "count"),
        say("assistant", "one, two", partial=True),
        say("notice", "Stopped by you."),
        say("user", "go on"),
    )
    assert [role for role, _ in show(prompt)] == ["user", "assistant", "user"]
    assert prompt[1].blocks == [Text("one, two")]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("signature", [None, "signed"])
def test_s62_a_message_of_reasoning_alone_is_omitted(provider: str, signature: str | None) -> None:
    thought = Message(role="assistant", blocks=[Reasoning("hm", signature=signature)], reason="interrupted")
    prompt = build(say("user", "why?"), thought, say("notice", "Stopped by you."), provider=provider)
    assert show(prompt) == [("user", [Text("why?")])]


def test_s63_the_next_prompt_has_the_user_message_and_the_partial_but_not_the_notice() -> None:
    prompt = build(
        say("user", "tell me"),
        say("assistant", "Once upon", partial=True),
        say("notice", "Stopped."),
        say("user", "and?"),
    )
    assert [message.blocks for message in prompt] == [[Text("tell me")], [Text("Once upon")], [Text("and?")]]


INSTRUCTION = Message(role="user", blocks=[Text("Go on.")], visibility="model")
STOPPED = Message(role="notice", blocks=[Text("Stopped by you.")], visibility="people")


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        ([], True),
        ([STOPPED], True),
        ([say("assistant", " a time.")], True),
        ([say("assistant", " a time."), STOPPED, say("user", "Next")], True),
        ([say("user", "A steer")], True),
        ([STOPPED, say("user", "Next")], False),
        ([say("assistant", Reasoning("hm")), STOPPED, say("user", "Next")], False),
        ([STOPPED, say("user", "Next"), say("assistant", "Yes.")], False),
    ],
)
def test_s91_an_instruction_holds_until_its_turn_ends_and_the_user_speaks(after: list[Message], holds: bool) -> None:
    prompt = build(say("user", "A story"), say("assistant", "Once upon", partial=True), INSTRUCTION, *after)
    told = [block.text for message in prompt for block in message.blocks if isinstance(block, Text)]
    assert ("Go on." in told) is holds
    assert ("Next" in told) is any(message.text == "Next" for message in after)


def test_s91_a_second_instruction_does_not_revive_the_first() -> None:
    again = Message(role="user", blocks=[Text("Go on again.")], visibility="model")
    cut = say("assistant", "Well", partial=True)
    prompt = build(say("user", "A story"), cut, INSTRUCTION, STOPPED, say("user", "Next"), cut, again)
    told = [block.text for message in prompt for block in message.blocks if isinstance(block, Text)]
    assert told == ["A story", "Well", "Next", "Well", "Go on again."]


def test_blank_text_is_left_out_and_so_are_messages_without_content() -> None:
    prompt = build(say("user", "", "hi", " \n\t"), say("user", "\n"), say("assistant"), say("system", ""))
    assert show(prompt) == [("user", [Text("hi")])]


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    [message] = build(say("user", "a\ud800b \ud83d\ude00"))
    assert message.blocks == [Text("a\ufffdb \U0001f600")]


# --- the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_remark_follows_a_reply_that_was_cut_off_at_the_end(provider: str) -> None:
    prompt = build(
        say("user", "count"), say("assistant", "one, ", partial=True), say("notice", "Restarted."), provider=provider
    )
    assert show(prompt)[1:] == [("assistant", [Text("one, ")]), ("user", [Text(CUT_REMARK)])]


def test_no_remark_follows_a_cut_reply_whose_calls_were_answered() -> None:
    prompt = build(say("user", "rain?"), say("assistant", call(), partial=True), say("tool", result()))
    assert prompt[-1].role == "tool"


def test_a_complete_last_reply_stays_last_for_openai_but_not_for_anthropic() -> None:
    history = [say("user", "hi"), say("assistant", "hello")]
    assert build(*history, provider="openai")[-1].role == "assistant"
    assert build(*history, provider="anthropic")[-1].blocks == [Text(NEXT_REMARK)]


# --- calls and answers -------------------------------------------------------------------


def test_s17_the_second_prompt_holds_the_call_and_a_tool_message_with_its_result() -> None:
    prompt = build(say("user", "rain?"), say("assistant", call()), say("tool", result()))
    assert show(prompt)[1:] == [("assistant", [call()]), ("tool", [result()])]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_s22_provider_calls_stay_with_the_assistant_and_only_local_results_go_to_the_tool_message(
    provider: str,
) -> None:
    prompt = build(say("assistant", SEARCH, FOUND, call(), result(), provider=provider), provider=provider)
    assert show(prompt) == [("assistant", [SEARCH, FOUND, call()]), ("tool", [result()])]


def test_two_tool_messages_may_answer_one_assistant_message() -> None:
    prompt = build(say("assistant", call("a"), call("b")), say("tool", result("a")), say("tool", result("b")))
    assert [message.role for message in prompt] == ["assistant", "tool", "tool"]


def test_a_late_result_moves_up_to_its_call() -> None:
    prompt = build(
        say("assistant", call("a"), call("b")),
        say("tool", result("b")),
        say("user", "quick!"),
        say("tool", result("a")),
    )
    assert show(prompt)[1:] == [("tool", [result("b")]), ("tool", [result("a")]), ("user", [Text("quick!")])]


def test_results_for_two_replies_in_one_row_go_each_to_its_own() -> None:
    prompt = build(say("assistant", call("a")), say("assistant", call("b")), say("tool", result("b"), result("a")))
    assert [message.role for message in prompt] == ["assistant", "tool", "assistant", "tool"]
    assert [prompt[1].blocks, prompt[3].blocks] == [[result("a")], [result("b")]]


def test_results_in_a_user_message_answer_too() -> None:
    prompt = build(say("assistant", call()), say("user", result(), "and tomorrow?"))
    assert show(prompt)[1:] == [("tool", [result()]), ("user", [Text("and tomorrow?")])]


def test_a_call_without_an_answer_gets_an_error() -> None:
    prompt = build(say("assistant", call("a"), call("b")), say("tool", result("b")), say("user", "well?"))
    missing = ToolResult(call_id="a", name="weather", output=NO_RESULT, outcome="unknown")
    assert show(prompt)[1] == ("tool", [result("b"), missing])
    [_, alone] = build(say("assistant", call("a")))
    assert alone.blocks == [missing]


def test_the_first_of_two_answers_stands() -> None:
    prompt = build(say("assistant", call()), say("tool", result(output="1"), result(output="2")), say("tool", result()))
    assert show(prompt)[1:] == [("tool", [result(output="1")])]


def test_a_result_without_a_call_becomes_text_of_the_user() -> None:
    [before, *_] = build(say("tool", result(output="rain")), say("assistant", call()))
    assert before.role == "user"
    assert isinstance(before.blocks[0], Text)
    assert "weather" in before.blocks[0].text
    assert "rain" in before.blocks[0].text


def test_an_empty_result_is_still_a_result() -> None:
    prompt = build(say("assistant", call()), say("tool", result(output="")))
    assert prompt[1].blocks == [result(output="")]


def test_text_in_a_tool_row_is_kept_behind_the_results() -> None:
    prompt = build(
        say("assistant", call("a"), call("b")), say("tool", "by the way", result("a")), say("tool", result("b"))
    )
    assert [message.role for message in prompt] == ["assistant", "tool", "tool", "user"]
    assert prompt[3].blocks == [Text("by the way")]


# --- ids, names, arguments ---------------------------------------------------------------


def test_an_id_that_comes_in_every_step_stays_distinct() -> None:
    step = [say("assistant", call("call_0")), say("tool", result("call_0"))]
    prompt = build(*step, *step, *step)
    ids = [block.id for message in prompt for block in message.blocks if isinstance(block, ToolCall)]
    answers = [block.call_id for message in prompt for block in message.blocks if isinstance(block, ToolResult)]
    assert ids == answers == ["call_0", "call_0_2", "call_0_3"]


def test_a_result_answers_the_nearest_call_of_its_id() -> None:
    prompt = build(say("assistant", call()), say("user", "again"), say("assistant", call()), say("tool", result()))
    assert [getattr(message.blocks[0], "output", None) for message in prompt] == [None, NO_RESULT, None, None, "sunny"]


def test_two_calls_of_one_id_in_one_message_are_answered_in_their_order() -> None:
    prompt = build(say("assistant", call(), call()), say("tool", result(output="1"), result(output="2")))
    assert show(prompt) == [("assistant", [call(), call("c1_2")]), ("tool", [result("c1", "1"), result("c1_2", "2")])]


@pytest.mark.parametrize(
    ("provider", "id_", "legal"),
    [
        ("anthropic", "functions.weather:0", "functions_weather_0"),
        ("openai", "functions.weather:0", "functions.weather:0"),
        ("openai", "x" * 50, "x" * 40),
        ("anthropic", "x" * 50, "x" * 50),
        ("anthropic", "", "call"),
        ("openai", "", "call"),
        ("openai", "a b\n", "a_b_"),
    ],
)
def test_an_id_changes_only_where_the_provider_refuses_it(provider: str, id_: str, legal: str) -> None:
    prompt = build(say("assistant", call(id_)), say("tool", result(id_)), provider=provider)
    assert show(prompt) == [("assistant", [call(legal)]), ("tool", [result(legal)])]


def test_ids_that_become_equal_are_made_distinct() -> None:
    prompt = build(say("assistant", call("a.b"), call("a:b")), say("tool", result("a:b", "2"), result("a.b", "1")))
    assert prompt[1].blocks == [result("a_b_2", "2"), result("a_b", "1")]


@pytest.mark.parametrize(
    "arguments",
    ["", '{"city": "Os', "[1]", '"x"', "null", "NaN", '{"a": NaN}', '{"a": 1} x', '{"a": "\ud800"}', r'{"a":"\ud800"}'],
)
def test_arguments_that_are_no_json_object_become_an_empty_one(arguments: str) -> None:
    prompt = build(say("assistant", call(arguments=arguments)), say("tool", result()))
    assert prompt[0].blocks == [call(arguments="{}")]


def test_arguments_that_are_an_object_stay_as_they_were_written() -> None:
    assert build(say("assistant", call(arguments=' {"b":1, "a":[]}\n')))[0].blocks == [
        call(arguments=' {"b":1, "a":[]}\n')
    ]


@pytest.mark.parametrize(("name", "legal"), [("", "unknown_tool"), ("a.b/ü", "a_b__"), ("x" * 200, "x" * 64)])
def test_tool_names_are_made_legal_on_both_sides(name: str, legal: str) -> None:
    prompt = build(
        say("assistant", ToolCall(id="a", name=name)),
        say("tool", ToolResult(call_id="a", name=name, output="")),
        provider="openai",
    )
    names = [block.name for message in prompt for block in message.blocks if isinstance(block, ToolCall | ToolResult)]
    assert names == [legal, legal]


def test_a_local_result_that_is_no_text_is_sent_as_json() -> None:
    prompt = build(say("assistant", call()), say("tool", ToolResult(call_id="c1", name="weather", output={"rain": 0})))
    assert prompt[1].blocks == [result(output='{"rain":0}')]


# --- reasoning and what is private -------------------------------------------------------

THOUGHT = Reasoning("hm", signature="s")


def test_signed_reasoning_goes_back_to_the_model_that_wrote_it() -> None:
    reply = replace(say("assistant", THOUGHT, "yes", provider="anthropic"), model="claude")
    assert build(reply, say("user", "ok"), model="claude")[0].blocks == [THOUGHT, Text("yes")]


@pytest.mark.parametrize(("provider", "model"), [("openai", "claude"), ("anthropic", "another-claude")])
def test_reasoning_never_goes_to_another_provider_or_model(provider: str, model: str) -> None:
    reply = replace(say("assistant", THOUGHT, "yes", provider="anthropic"), model="claude")
    assert build(reply, provider=provider, model=model)[0].blocks == [Text("yes")]


def test_unsigned_and_trailing_reasoning_is_left_out() -> None:
    reply = say("assistant", Reasoning("unsigned"), "yes", THOUGHT, Source(url="https://x.test"))
    assert build(reply)[0].blocks == [Text("yes"), Source(url="https://x.test")]


def test_reasoning_that_no_json_takes_is_left_out_rather_than_changed() -> None:
    assert build(say("assistant", Reasoning("\ud800", signature="s"), "yes"))[0].blocks == [Text("yes")]


def test_a_provider_switch_turns_private_blocks_into_notes_in_their_place() -> None:
    reply = say(
        "assistant", "See:", THOUGHT, SEARCH, FOUND, Text("dry.", metadata={"item": "msg_1"}), provider="anthropic"
    )
    [message] = build(reply, provider="openai")
    first, used, returned, last = message.blocks
    assert [first, last] == [Text("See:"), Text("dry.")]
    assert isinstance(used, Text)
    assert "web_search" in used.text
    assert '{"q":"oslo"}' in used.text
    assert isinstance(returned, Text)
    assert "x.test" not in returned.text


def test_a_local_call_survives_a_provider_switch_without_its_metadata() -> None:
    private = replace(call(), metadata={"item": "fc_1"})
    prompt = build(say("assistant", private, provider="openai"), say("tool", result()), provider="anthropic")
    assert show(prompt) == [("assistant", [call()]), ("tool", [result()])]


def test_a_provider_call_without_its_result_goes_only_if_the_provider_takes_it_so() -> None:
    [noted, _] = build(say("assistant", THOUGHT, SEARCH, partial=True))
    assert isinstance(noted.blocks[0], Text)
    assert len(noted.blocks) == 1
    standalone = replace(SEARCH, standalone=True)
    assert build(say("assistant", standalone, partial=True))[0].blocks == [standalone]


def test_a_provider_call_whose_id_is_taken_becomes_a_note_for_its_id_may_not_change() -> None:
    prompt = build(say("assistant", SEARCH, FOUND), say("user", "again"), say("assistant", SEARCH, FOUND, "Dry."))
    assert prompt[0].blocks == [SEARCH, FOUND]
    assert all(isinstance(block, Text) for block in prompt[2].blocks)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (replace(SEARCH, name="web.search"), FOUND),
        (replace(SEARCH, id="srv 1"), replace(FOUND, call_id="srv 1")),
        (SEARCH, replace(FOUND, output=["\ud800"])),
        (replace(SEARCH, metadata={"item": "\ud800"}), FOUND),
    ],
)
def test_a_provider_call_that_would_be_refused_becomes_a_note(asked: ToolCall, answer: ToolResult) -> None:
    [message, _] = build(say("assistant", asked, answer))
    assert [type(block) for block in message.blocks] == [Text, Text]


def test_a_provider_result_away_from_its_call_becomes_text() -> None:
    prompt = build(say("assistant", FOUND, SEARCH), say("tool", FOUND), say("user", "ok"))
    assert [message.role for message in prompt] == ["assistant", "user", "user"]
    assert all(isinstance(block, Text) for message in prompt for block in message.blocks)


# --- files and sources -------------------------------------------------------------------


def test_a_file_that_the_model_made_is_named_in_text() -> None:
    [message, _] = build(say("assistant", File(media_type="image/png", name="cat.png", data=b"x")))
    assert message.blocks == [Text("[Made a file: cat.png (image/png)]")]


def test_a_file_without_content_is_named_in_text() -> None:
    [message] = build(say("user", File(media_type="image/png", name="cat.png")))
    assert message.blocks == [Text("[A file that cannot be sent: cat.png (image/png)]")]


def test_a_source_that_a_user_gave_is_read_as_text() -> None:
    [message] = build(say("user", Source(title="Yr", url="https://yr.test", quote="Dry.")))
    assert message.blocks == [Text("Yr\nhttps://yr.test\nDry.")]


def test_a_system_message_keeps_nothing_but_text() -> None:
    [message] = build(say("system", result(), "Be brief.", File(media_type="a/b", url="u"), Source(quote="Obey.")))
    assert message.blocks == [Text("Be brief.")]


# --- cache markers -----------------------------------------------------------------------


def prompt_of(*roles: Role) -> list[PromptMessage]:
    return [PromptMessage(role=role, blocks=[Text("x")]) for role in roles]


def marks(prompt: Sequence[PromptMessage]) -> list[int]:
    return [at for at, message in enumerate(prompt) if message.cache]


def test_s12_anthropic_marks_the_end_of_the_system_run_and_the_last_two() -> None:
    given = prompt_of("system", "system", "user", "assistant", "user")
    assert marks(mark_cache(given, provider="anthropic")) == [1, 3, 4]
    assert marks(given) == []


def test_s44_five_reloaded_messages_are_marked_after_the_whole_preparation() -> None:
    history = [say("system", "a"), say("system", "b"), say("user", "c"), say("assistant", "d"), say("user", "e")]
    assert marks(mark_cache(build(*history), provider="anthropic")) == [1, 3, 4]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ((), []),
        (("user",), [0]),
        (("system",), [0]),
        (("system", "user"), [0, 1]),
        (("user", "system", "user", "assistant", "user"), [3, 4]),
    ],
)
def test_few_messages_are_marked_once_each(roles: tuple[Role, ...], expected: list[int]) -> None:
    assert marks(mark_cache(prompt_of(*roles), provider="anthropic")) == expected


def test_other_providers_get_no_markers() -> None:
    assert marks(mark_cache(prompt_of("system", "user"), provider="openai")) == []


def test_reasoning_alone_carries_no_marker() -> None:
    thought = PromptMessage(role="assistant", blocks=[THOUGHT])
    assert marks(mark_cache([*prompt_of("user"), thought], provider="anthropic")) == [0]


# --- compaction --------------------------------------------------------------------------


def summary(text: str, *, keep_last: int = 0) -> Message:
    mark = {"compaction": {"keep_last": keep_last}}
    return Message(role="user", blocks=[Text(text, metadata=mark)], visibility="model")


def test_without_a_summary_everything_counts() -> None:
    history = [say("system", "s"), say("user", "a")]
    assert from_newest_compaction(history) == history


def test_the_newest_summary_stands_for_what_was_before_it() -> None:
    system, after = say("system", "s"), say("user", "after")
    newest = summary("new")
    assert from_newest_compaction([system, say("user", "a"), summary("old"), say("user", "b"), newest, after]) == [
        system,
        newest,
        after,
    ]


def test_the_last_messages_before_the_summary_stay_verbatim_behind_it() -> None:
    system, kept, reply, after = (
        say("system", "s"),
        say("user", "kept"),
        say("assistant", "reply"),
        say("user", "after"),
    )
    newest = summary("new", keep_last=2)
    shortened = from_newest_compaction([system, say("user", "gone"), kept, reply, newest, after])
    assert shortened == [system, newest, kept, reply, after]


def test_a_second_summary_counts_what_the_first_left_verbatim_and_not_the_first() -> None:
    kept, after = say("user", "kept"), say("assistant", "after")
    newest = summary("new", keep_last=2)
    history = [say("user", "gone"), kept, summary("old", keep_last=1), after, newest]
    assert from_newest_compaction(history) == [newest, kept, after]


def test_system_messages_are_not_doubled_by_a_summary_that_keeps_everything() -> None:
    system, kept = say("system", "s"), say("user", "kept")
    newest = summary("new", keep_last=9)
    assert from_newest_compaction([system, kept, newest]) == [system, newest, kept]


def test_what_people_can_see_is_no_summary() -> None:
    fake = replace(summary("fake"), visibility="both")
    assert from_newest_compaction([say("user", "a"), fake]) == [say("user", "a"), fake]


def test_a_blank_summary_stands_for_nothing() -> None:
    assert from_newest_compaction([say("user", "a"), summary(" ")]) == [say("user", "a"), summary(" ")]


@pytest.mark.parametrize("mark", [True, {}, {"keep_last": -1}, {"keep_last": "2"}])
def test_a_summary_that_does_not_say_what_stays_keeps_nothing_before_it(mark: object) -> None:
    short = Message(role="user", blocks=[Text("so far", metadata={"compaction": mark})], visibility="model")
    assert from_newest_compaction([say("user", "a"), short, say("user", "b")]) == [short, say("user", "b")]


def test_the_prompt_begins_with_the_newest_summary() -> None:
    prompt = build(say("system", "s"), say("user", "gone"), say("user", "kept"), summary("so far", keep_last=1))
    assert [message.blocks for message in prompt] == [[Text("s")], [Text("so far")], [Text("kept")]]


def test_the_mark_of_a_summary_does_not_reach_the_model() -> None:
    assert build(summary("so far"))[0].blocks == [Text("so far")]
