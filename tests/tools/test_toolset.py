"""Which tools are advertised, and what becomes of each call (rule 1.3)."""

from __future__ import annotations

import pytest

from indelible.content import ToolCall, ToolSpec
from indelible.tools import tool
from indelible.tools.toolset import DeferToClient, RejectCall, RunHere, ToolPlan, Toolset


@tool
async def read_file(path: str) -> str:
    return path


@tool
async def write_file(path: str) -> str:
    return path


@tool(exclusive=True)
async def deploy() -> str:
    return "done"


def call(name: str, arguments: str = '{"path": "a"}', id: str = "c1") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


def plan(toolset: Toolset, *calls: ToolCall, whole: bool = True) -> list[ToolPlan]:
    return toolset.plan(calls, lambda _: whole)


def test_all_tools_are_advertised_when_no_whitelist_is_given() -> None:
    assert [spec.name for spec in Toolset([read_file, write_file]).advertised] == ["read_file", "write_file"]


def test_a_whitelist_limits_what_is_advertised_and_what_is_run() -> None:
    toolset = Toolset([read_file, write_file], active=["read_file"])
    assert [spec.name for spec in toolset.advertised] == ["read_file"]
    assert isinstance(plan(toolset, call("read_file"))[0], RunHere)
    refused = plan(toolset, call("write_file"))[0]
    assert isinstance(refused, RejectCall)
    assert refused.result.output == "The tool write_file is not available now. Available: read_file."


def test_a_provider_tool_is_advertised_whatever_the_whitelist_says() -> None:
    search = ToolSpec(name="web_search", provider_executed=True)
    assert [spec.name for spec in Toolset([read_file, write_file, search], active=["read_file"]).advertised] == [
        "read_file",
        "web_search",
    ]


def test_a_typed_function_becomes_a_tool() -> None:
    def plain(city: str) -> str:
        return city

    assert [spec.name for spec in Toolset([plain]).advertised] == ["plain"]


def test_two_different_tools_of_one_name_are_an_error_at_once() -> None:
    @tool(name="read_file")
    async def another() -> str:
        return ""

    with pytest.raises(ValueError, match="two tools named 'read_file'"):
        Toolset([read_file, another])


def test_an_unknown_tool_is_answered_with_what_there_is() -> None:
    answer = plan(Toolset([read_file, write_file]), call("rm_rf"))[0]
    assert isinstance(answer, RejectCall)
    assert answer.result.output == "There is no tool named 'rm_rf'. Available: read_file, write_file."


def test_without_any_tool_the_answer_says_so() -> None:
    answer = plan(Toolset(), call("x"))[0]
    assert isinstance(answer, RejectCall)
    assert answer.result.output == "There is no tool named 'x'. There are no tools."


def test_half_received_arguments_are_never_run_even_if_they_parse() -> None:
    answer = plan(Toolset([read_file]), call("read_file"), whole=False)[0]
    assert isinstance(answer, RejectCall)
    assert "cut off" in answer.result.output
    assert (answer.result.outcome, answer.result.reason) == ("not_run", "invalid")


@pytest.mark.parametrize("arguments", ['{"path": ', "[1]", '"x"', "nonsense", "\x00", "{" * 100_000])
def test_bad_json_is_answered_for_local_and_client_tools_alike(arguments: str) -> None:
    toolset = Toolset([read_file], client=["ask"])
    for name in ("read_file", "ask"):
        assert isinstance(plan(toolset, call(name, arguments))[0], RejectCall)


def test_a_client_tool_may_be_given_by_name_or_by_spec_and_only_a_spec_is_advertised() -> None:
    toolset = Toolset([read_file], client=["ask", ToolSpec(name="pick")])
    assert [spec.name for spec in toolset.advertised] == ["read_file", "pick"]
    assert plan(toolset, call("ask"), call("pick")) == [DeferToClient(call("ask")), DeferToClient(call("pick"))]


def test_a_tool_that_is_named_as_the_clients_is_advertised_but_not_run_here() -> None:
    toolset = Toolset([read_file], client=["read_file"])
    assert [spec.name for spec in toolset.advertised] == ["read_file"]
    assert isinstance(plan(toolset, call("read_file"))[0], DeferToClient)


@pytest.mark.parametrize("other", ["read_file", "ask", "unknown", "deploy"])
def test_an_exclusive_tool_with_any_other_call_runs_nothing(other: str) -> None:
    toolset = Toolset([read_file, deploy], client=["ask"])
    verdicts = plan(toolset, call("deploy", "{}"), call(other, id="c2"))
    assert [type(verdict) for verdict in verdicts] == [RejectCall, RejectCall]


def test_an_exclusive_tool_alone_is_run() -> None:
    assert isinstance(plan(Toolset([deploy]), call("deploy", "{}"))[0], RunHere)


def test_a_tool_can_be_made_exclusive_for_one_turn() -> None:
    toolset = Toolset([read_file, write_file], exclusive=["write_file"])
    assert all(
        isinstance(verdict, RejectCall) for verdict in plan(toolset, call("read_file"), call("write_file", id="c2"))
    )


def test_a_name_the_model_made_up_is_no_metrics_label() -> None:
    toolset = Toolset([read_file], client=["ask"])
    assert [toolset.label(name) for name in ("read_file", "ask", "made_up")] == ["read_file", "ask", "unknown"]
