"""The house has few rooms and no corridors: sizes of modules, what stands before their code, and no import in a circle.

Every figure has a bound, which is what the tree had when it was last written down. A change may not make one worse; a
change that makes one better writes the new figure here, so that nothing gained is lost again.

How it is counted, in the Python files under src/indelible, as they are:

  * lines: all of a file, the empty ones as well;
  * preamble: the lines up to the end of the last import that stands at the head of a module, so its docstring, its
    imports and those for type checkers. Of a module that has nothing else, every line;
  * an import: of a module, whatever is taken from it, by a statement that is carried out when the module is imported.
    With imports inside functions, and with those for type checkers alone, a circle is one of the design and not of the
    program: those have a bound of their own. The package above a module is no import of that module.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

PACKAGE: Final = Path(__file__).parent.parent / "src" / "indelible"

AT_MOST: Final[Mapping[str, float]] = {
    "modules": 273,
    "lines": 58_850,
    "lines of the largest module": 499,
    "modules under 40 lines": 34,
    "preamble, % of all lines": 13.9,
    "modules in circles, with imports inside functions": 0,
    "modules in circles, with those for type checkers too": 2,
}
"""Rounded a little: a mend of ten lines needs no new figures."""
AT_LEAST: Final[Mapping[str, float]] = {"median of lines": 207}
SLACK: Final = 0.03
"""So much better than its bound a figure may be before somebody has to write it down."""


class Module(NamedTuple):
    """`imports` are carried out with the module; `late` inside a function, `typed` by type checkers alone."""

    lines: int
    preamble: int
    imports: frozenset[str]
    late: frozenset[str]
    typed: frozenset[str]


class _Imports(ast.NodeVisitor):
    """The modules of the package that a module imports, by when it does so."""

    def __init__(self, name: str, known: frozenset[str], *, is_package: bool) -> None:
        self.at_once: set[str] = set()
        self.late: set[str] = set()
        self.typed: set[str] = set()
        self._known = known
        self._package = name if is_package else name.rpartition(".")[0]
        self._depth = 0
        self._for_types = 0

    def visit_Import(self, node: ast.Import) -> None:
        self._note({self._find(alias.name) for alias in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        above = self._package.split(".")
        start = ".".join(above[: len(above) - node.level + 1]) if node.level else ""
        source = ".".join(filter(None, [start, node.module]))
        self._note({self._find(f"{source}.{alias.name}") for alias in node.names})

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef  # noqa: N815  (ast's names)

    def visit_If(self, node: ast.If) -> None:
        is_for_types = "TYPE_CHECKING" in ast.unparse(node.test)
        self._for_types += is_for_types
        for each in node.body:
            self.visit(each)
        self._for_types -= is_for_types
        for each in node.orelse:
            self.visit(each)

    def _find(self, name: str) -> str | None:
        """The module that this name is, or is in. Nothing if it is not ours."""
        while name and name not in self._known:
            name = name.rpartition(".")[0]
        return name or None

    def _note(self, found: set[str | None]) -> None:
        ours = {name for name in found if name is not None}
        if self._for_types:
            self.typed |= ours
        elif self._depth:
            self.late |= ours
        else:
            self.at_once |= ours


@cache
def read_modules() -> Mapping[str, Module]:
    """Every module of the package by its name."""
    paths = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    known = frozenset(paths)
    return {name: _read(name, path, known) for name, path in paths.items()}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, path: Path, known: frozenset[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = _Imports(name, known, is_package=path.stem == "__init__")
    imports.visit(tree)
    own = {name}
    return Module(
        lines=len(text.splitlines()),
        preamble=find_preamble(tree),
        imports=frozenset(imports.at_once - own),
        late=frozenset(imports.late - own),
        typed=frozenset(imports.typed - own),
    )


def find_preamble(tree: ast.Module) -> int:
    """The number of lines before the code."""
    end = 0
    for number, node in enumerate(tree.body):
        is_docstring = number == 0 and ast.get_docstring(tree) is not None
        is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (is_docstring or is_for_types or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        end = node.end_lineno or 0
    return end


def find_circles(imports: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """The groups of modules that import each other (Tarjan's strongly connected components), each in order."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        waiting.append(name)
        for other in sorted(imports.get(name, ())):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in waiting:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            place = waiting.index(name)
            group = waiting[place:]
            del waiting[place:]
            if len(group) > 1 or name in imports.get(name, ()):
                circles.append(sorted(group))

    for name in imports:
        if name not in order:
            visit(name)
    return circles


def measure() -> dict[str, float]:
    modules = [*read_modules().values()]
    lengths = [module.lines for module in modules]
    return {
        "modules": len(modules),
        "lines": sum(lengths),
        "lines of the largest module": max(lengths),
        "modules under 40 lines": sum(length < 40 for length in lengths),
        "median of lines": median(lengths),
        "preamble, % of all lines": round(100 * sum(module.preamble for module in modules) / sum(lengths), 1),
        "modules in circles, with imports inside functions": count_in_circles(is_typed=False),
        "modules in circles, with those for type checkers too": count_in_circles(is_typed=True),
    }


def count_in_circles(*, is_typed: bool) -> int:
    modules = read_modules().items()
    nothing: frozenset[str] = frozenset()
    imports = {name: each.imports | each.late | (each.typed if is_typed else nothing) for name, each in modules}
    return sum(map(len, find_circles(imports)))


def test_no_module_imports_itself_by_way_of_others() -> None:
    circles = find_circles({name: module.imports for name, module in read_modules().items()})

    assert circles == [], (
        "These modules import each other. Move what both need into a module below them, or join them if they are one."
    )


def test_no_size_of_the_tree_is_worse_than_it_was() -> None:
    found = measure()

    worse = {
        **{what: found[what] for what, bound in AT_MOST.items() if found[what] > bound},
        **{what: found[what] for what, bound in AT_LEAST.items() if found[what] < bound},
    }
    assert worse == {}, (
        "Worse than AT_MOST and AT_LEAST in tests/test_rooms.py. Put the code into a room that is there, split a "
        "module that holds two ideas, or take something away. Raise a bound only for new things that people can do, "
        f"and say so in the commit. It is now {found}."
    )


def test_what_became_better_is_written_down() -> None:
    found = measure()

    better = {
        **{what: found[what] for what, bound in AT_MOST.items() if found[what] < bound * (1 - SLACK)},
        **{what: found[what] for what, bound in AT_LEAST.items() if found[what] > bound * (1 + SLACK)},
    }
    assert better == {}, f"Better than the bounds in tests/test_rooms.py. Write the new figures there: {found}."


# --- how it is counted ---


def test_the_preamble_ends_with_the_last_import_at_the_head() -> None:
    lines = ['"""One.', "", 'Two."""', "", "import a", "from b import (", "    c,", ")", "", "D = 1", "import e"]

    assert find_preamble(ast.parse("\n".join(lines))) == 8
    assert find_preamble(ast.parse("\n".join(lines[9:]))) == 0


def test_a_circle_of_three_is_found_and_a_line_is_none() -> None:
    line = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("d")}

    assert find_circles(line) == []
    assert find_circles({**line, "c": frozenset("a")}) == [["a", "b", "c"]]


def test_what_an_import_means_is_found_in_the_tree() -> None:
    known = frozenset(["p", "p.a", "p.a.b", "p.c"])

    def find(text: str) -> tuple[set[str], set[str], set[str]]:
        imports = _Imports("p.a.b", known, is_package=False)
        imports.visit(ast.parse(text))
        return imports.at_once, imports.late, imports.typed

    assert find("from p.c import X, Y") == ({"p.c"}, set(), set())
    assert find("from p import a, c; import os") == ({"p.a", "p.c"}, set(), set())
    assert find("from . import b; from ..c import X") == ({"p.a.b", "p.c"}, set(), set())
    assert find("def f():\n import p.c") == (set(), {"p.c"}, set())
    assert find("if TYPE_CHECKING:\n from p.c import X") == (set(), set(), {"p.c"})
