"""The legality check itself: it accepts sound prompts, and for every rule it catches a prompt that breaks it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from indelible.content import Block, File, Reasoning, Role, Source, Text, ToolCall, ToolResult
from indelible.models.protocol import PromptMessage
from indelible.testing.legality import assert_legal, check_legality

CALL = ToolCall(id="c1", name="weather", arguments="{}")
RESULT = ToolResult(call_id="c1", name="weather", output="dry")
SEARCH = ToolCall(id="s1", name="web_search", arguments="{}", provider_executed=True)
FOUND = ToolResult(call_id="s1", name="web_search", output=[{"a": 1}], provider_executed=True)
THOUGHT = Reasoning("hm", signature="s")


def entry(role: Role, *blocks: Block | str) -> PromptMessage:
    return PromptMessage(role=role, blocks=[Text(block) if isinstance(block, str) else block for block in blocks])


HI, BYE = entry("user", "hi"), entry("user", "bye")

LEGAL: dict[str, list[PromptMessage]] = {
    "nothing": [],
    "system alone": [entry("system", "Be brief.")],
    "a step with everything": [
        entry("system", "Be brief."),
        entry("user", "Rain?", File(media_type="a/b", url="u")),
        entry("assistant", THOUGHT, "See.", SEARCH, FOUND, CALL, replace(CALL, id="c2"), Source(url="u")),
        entry("tool", RESULT),
        entry("tool", replace(RESULT, call_id="c2", output="", is_error=True)),
        entry("system", "In English."),
        BYE,
    ],
    "neighbours of one role": [HI, BYE, entry("assistant", "a"), entry("assistant", "b"), BYE],
    "a standalone call": [HI, entry("assistant", replace(SEARCH, standalone=True)), BYE],
    "interleaved reasoning": [HI, entry("assistant", "a", THOUGHT, CALL), entry("tool", RESULT)],
    "metadata as a signature": [HI, entry("assistant", Reasoning(metadata={"redacted": "x"}), "a"), BYE],
}

ILLEGAL: dict[str, tuple[str, list[PromptMessage]]] = {
    "notice": ("no provider knows the role", [HI, entry("notice", "Stopped.")]),
    "no blocks": ("no content", [HI, entry("user")]),
    "reasoning and sources alone": ("no content", [HI, entry("assistant", Source(url="u")), BYE]),
    "empty text": ("blank text", [entry("user", "hi", "")]),
    "white text": ("blank text", [entry("user", " \n")]),
    "surrogate in text": ("no JSON in UTF-8", [entry("user", "a\ud800")]),
    "surrogate in metadata": ("no JSON in UTF-8", [entry("user", Text("a", metadata={"b": "\udc00"}))]),
    "output that is no value": (
        "no JSON in UTF-8",
        [HI, entry("assistant", SEARCH, replace(FOUND, output=object())), BYE],
    ),
    "file of the assistant": ("no place", [HI, entry("assistant", "a", File(media_type="a/b", url="u")), BYE]),
    "source of the user": ("no place", [entry("user", "a", Source(url="u"))]),
    "reasoning of the user": ("no place", [entry("user", THOUGHT, "a")]),
    "file in a system message": ("no place", [entry("system", "a", File(media_type="a/b", url="u")), HI]),
    "text in a tool message": ("no place", [HI, entry("assistant", CALL), entry("tool", RESULT, "a")]),
    "call of the user": ("no place", [entry("user", "a", replace(SEARCH, standalone=True))]),
    "local result with the assistant": ("no place", [HI, entry("assistant", "a", RESULT), BYE]),
    "file without content": ("a file without content", [entry("user", File(media_type="a/b"))]),
    "unsigned reasoning": ("without a signature", [HI, entry("assistant", Reasoning("hm"), "a"), BYE]),
    "reasoning last": ("reasoning as the last block", [HI, entry("assistant", "a", THOUGHT), BYE]),
    "reasoning last but for a source": (
        "reasoning as the last block",
        [HI, entry("assistant", "a", THOUGHT, Source(url="u")), BYE],
    ),
    "half arguments": (
        "no JSON object",
        [HI, entry("assistant", replace(CALL, arguments='{"a"')), entry("tool", RESULT)],
    ),
    "array as arguments": (
        "no JSON object",
        [HI, entry("assistant", replace(CALL, arguments="[1]")), entry("tool", RESULT)],
    ),
    "NaN in arguments": (
        "no JSON object",
        [HI, entry("assistant", replace(CALL, arguments='{"a": NaN}')), entry("tool", RESULT)],
    ),
    "a number beyond all numbers in arguments": (
        "no JSON object",
        [HI, entry("assistant", replace(CALL, arguments='{"a": 1e999}')), entry("tool", RESULT)],
    ),
    "surrogate in arguments": (
        "no JSON object",
        [HI, entry("assistant", replace(CALL, arguments=r'{"a": "\ud800"}')), entry("tool", RESULT)],
    ),
    "no name": ("illegal tool name", [HI, entry("assistant", replace(CALL, name="")), entry("tool", RESULT)]),
    "name with a dot": (
        "illegal tool name",
        [HI, entry("assistant", replace(CALL, name="a.b")), entry("tool", RESULT)],
    ),
    "no id": (
        "illegal call id",
        [HI, entry("assistant", replace(CALL, id="")), entry("tool", replace(RESULT, call_id=""))],
    ),
    "an object as local output": (
        "a local result that is no text",
        [HI, entry("assistant", CALL), entry("tool", replace(RESULT, output={}))],
    ),
    "unanswered call": ("is not answered", [HI, entry("assistant", CALL), BYE]),
    "unanswered call at the end": (
        "at the end: the call 'c2' is not answered",
        [HI, entry("assistant", CALL, replace(CALL, id="c2")), entry("tool", RESULT)],
    ),
    "late answer": ("is not answered", [HI, entry("assistant", CALL), BYE, entry("tool", RESULT)]),
    "system between call and answer": (
        "answers no open call",
        [HI, entry("assistant", CALL), entry("system", "a"), entry("tool", RESULT)],
    ),
    "two answers": ("answers no open call", [HI, entry("assistant", CALL), entry("tool", RESULT, RESULT)]),
    "orphan result": ("answers no open call", [HI, entry("tool", RESULT)]),
    "result before its call": ("answers no open call", [HI, entry("tool", RESULT), entry("assistant", CALL), BYE]),
    "one id twice": (
        "was used before",
        [HI, entry("assistant", CALL), entry("tool", RESULT), entry("assistant", CALL), entry("tool", RESULT)],
    ),
    "provider result without its call": ("without its call", [HI, entry("assistant", "a", FOUND), BYE]),
    "provider result before its call": ("without its call", [HI, entry("assistant", FOUND, SEARCH), BYE]),
    "provider result twice": ("without its call", [HI, entry("assistant", SEARCH, FOUND, FOUND), BYE]),
    "provider result in another message": (
        "without its call",
        [HI, entry("assistant", SEARCH), entry("assistant", FOUND), BYE],
    ),
    "provider call without its result": ("without its result", [HI, entry("assistant", SEARCH), BYE]),
}


@pytest.mark.parametrize("provider", ["anthropic", "openai", "anything"])
@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_prompt_is_accepted(name: str, provider: str) -> None:
    assert check_legality(LEGAL[name], provider=provider) == []
    assert_legal(LEGAL[name], provider=provider)


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
@pytest.mark.parametrize("name", ILLEGAL)
def test_a_broken_rule_is_caught(name: str, provider: str) -> None:
    rule, prompt = ILLEGAL[name]
    faults = check_legality(prompt, provider=provider)
    assert any(rule in fault for fault in faults), faults
    with pytest.raises(AssertionError, match=provider):
        assert_legal(prompt, provider=provider)


def paired(id: str = "c1", name: str = "weather") -> list[PromptMessage]:
    made = replace(CALL, id=id, name=name)
    return [HI, entry("assistant", made), entry("tool", replace(RESULT, call_id=id, name=name))]


@pytest.mark.parametrize(
    ("prompt", "anthropic", "openai"),
    [
        (paired(id="functions.a:0"), "illegal call id", None),
        (paired(id="x" * 41), None, "illegal call id"),
        (paired(id="x" * 40), None, None),
        (paired(id="a b"), "illegal call id", "illegal call id"),
        (paired(name="x" * 65), None, "illegal tool name"),
        (paired(name="x" * 129), "illegal tool name", "illegal tool name"),
        ([HI, entry("assistant", "a")], "the last word", None),
        ([HI, entry("assistant", "a"), entry("system", "b")], "the last word", None),
        ([replace(HI, cache=True)] * 5, "more than four cache markers", None),
        ([replace(HI, cache=True)] * 4, None, None),
    ],
)
def test_each_provider_has_rules_of_its_own(
    prompt: list[PromptMessage], anthropic: str | None, openai: str | None
) -> None:
    for provider, rule in (("anthropic", anthropic), ("openai", openai)):
        faults = check_legality(prompt, provider=provider)
        assert len(faults) == (0 if rule is None else 1)
        assert rule is None or rule in faults[0]


def test_a_fault_names_its_place() -> None:
    assert check_legality([HI, entry("user", "a", "")], provider="openai") == ["message 1, block 1: blank text"]
