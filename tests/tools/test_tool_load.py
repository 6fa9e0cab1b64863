"""Tools that are named on the command line: found, made from functions, or refused in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from indelible.content import ToolSpec
from indelible.errors import Invalid
from indelible.tools.toolset import load_tools

MODULE = '''
import indelible
from indelible.content import ToolSpec

def weather(city: str) -> str:
    """Tell the weather."""
    return "rain"

@indelible.tool
async def dice(sides: int = 6) -> int:
    """Roll a die."""
    return 4

search = ToolSpec(name="search", description="Search.")
TOOLS = [weather, dice]
MORE = (search,)
NUMBER = 42

def untyped(city):
    return "rain"
'''


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    (tmp_path / "mytools_here.py").write_text(MODULE)
    (tmp_path / "broken_here.py").write_text("1 / 0\n")
    (tmp_path / "half_here.py").write_text("import nothing_like_this\n")
    (tmp_path / "crooked_here.py").write_text("def (:\n")
    (tmp_path / "odd_here.py").write_text("import os\nos.nothing_like_this\nTOOLS = []\n")
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def list_names(*names: str) -> list[str]:
    return [tool.name for tool in load_tools(names)]


def test_a_function_a_tool_a_description_and_lists_of_them_are_found() -> None:
    assert list_names("mytools_here:weather") == ["weather"]
    assert list_names("mytools_here:dice", "mytools_here:search") == ["dice", "search"]
    assert list_names("mytools_here:TOOLS", "mytools_here:MORE") == ["weather", "dice", "search"]
    assert isinstance(load_tools(["mytools_here:search"])[0], ToolSpec)
    assert load_tools([]) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mytools_here", "write it as package.module:NAME."),
        (":TOOLS", "write it as package.module:NAME."),
        ("mytools_here:", "write it as package.module:NAME."),
        ("nothing_here:TOOLS", "there is no module nothing_here."),
        ("half_here:TOOLS", "there is no module nothing_like_this."),
        (".relative:TOOLS", "the module cannot be imported: TypeError"),
        ("broken_here:TOOLS", "the module cannot be imported: ZeroDivisionError: division by zero"),
        ("crooked_here:TOOLS", "the module cannot be imported: SyntaxError"),
        ("odd_here:TOOLS", "the module cannot be imported: AttributeError"),
        ("mytools_here:NOTHING", "the module mytools_here has no NOTHING."),
        ("mytools_here:NUMBER", "42 is neither a tool nor a function."),
        ("mytools_here:untyped", "city"),
    ],
)
def test_what_is_wrong_is_one_sentence(name: str, expected: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_tools([name])
    assert str(refused.value).startswith(f"--tools {name}: ")
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="there are two tools named dice"):
        load_tools(["mytools_here:dice", "mytools_here:TOOLS"])
