"""Move names, or whole modules, to other modules, and rewrite every import of them: `python -m scripts.rooms PLAN`.

A plan has a line for each move, and `#` begins a comment:

    machine.events -> api.events           a module becomes another one, which does not exist yet
    service.files: FilePage -> api.shapes  names become part of a module, in the order of the plan
    service.results: * -> api.shapes       all its other names; a module without any goes, and its docstring is printed

No statement changes: a definition moves with its decorators, the comment above and the docstring below it, and takes
along the imports that it needs. Imports are rewritten in source, tests, benchmarks and scripts, dotted names in strings
and paths in documents too. Ruff sorts imports and removes those that are not used any more; the import linter and mypy
say whether the layers still hold. What cannot be rewritten (a module used as a value, a name imported from somewhere
that only passes it on) is printed.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "indelible"
TREES = ("src", "tests", "bench", "scripts", "compat")
TEXTS = ("docs", "tests", "src", "bench", "compat", "CONTRIBUTING.md", "README.md", "pyproject.toml")


def find_path(module: str) -> Path:
    """The file of a module, named without `indelible.`."""
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@dataclass
class Source:
    """A module as text, and what is bound at its top level."""

    module: str
    text: str
    tree: ast.Module = field(init=False)
    lines: list[str] = field(init=False)
    spans: dict[str, tuple[int, int]] = field(init=False, default_factory=dict)
    imports: dict[str, tuple[str | None, str, bool]] = field(init=False, default_factory=dict)
    """What a local name is: (module or None for `import x`, name, whether only for type checkers)."""

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        self.lines = self.text.splitlines(keepends=True)
        body = self.tree.body
        for at, node in enumerate(body):
            self._note_imports(node, checking=False)
            names = list_bound(node)
            if names:
                start = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", []))])
                while start > 1 and self.lines[start - 2].startswith("#"):
                    start -= 1
                end = node.end_lineno or node.lineno
                after = body[at + 1] if at + 1 < len(body) else None
                if isinstance(node, ast.Assign | ast.AnnAssign) and is_text(after):
                    assert after is not None
                    end = after.end_lineno or end
                for name in names:
                    self.spans[name] = (start, end)

    def _note_imports(self, node: ast.stmt, *, checking: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for inner in node.body:
                self._note_imports(inner, checking=True)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                self.imports[alias.asname or alias.name] = (node.module, alias.name, checking)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                self.imports[(alias.asname or alias.name).partition(".")[0]] = (None, alias.name, checking)

    def cut(self, names: list[str]) -> tuple[str, set[str]]:
        """The definitions of these names, in the order of the file, and the names that they use."""
        spans = sorted({self.spans[name] for name in names})
        used: set[str] = set()
        pieces = []
        for start, end in spans:
            piece = "".join(self.lines[start - 1 : end])
            used |= {node.id for node in ast.walk(ast.parse(piece)) if isinstance(node, ast.Name)}
            pieces.append(piece)
        drop = {line for start, end in spans for line in range(start, end + 1)}
        self.text = "".join(line for number, line in enumerate(self.lines, 1) if number not in drop)
        return "\n\n".join(pieces), used


def list_bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [item.id for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)]


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def list_other(text: str) -> list[str]:
    """The statements at the top level that bind no name and import nothing."""
    found = []
    for number, node in enumerate(ast.parse(text).body):
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        known = isinstance(node, ast.Import | ast.ImportFrom) or checking or list_bound(node) == ["__all__"]
        if not known and not (number == 0 and is_text(node)):
            found.append(ast.unparse(node))
    return found


def drop_twins(target: str, old: str, texts: list[str]) -> list[str]:
    """Without definitions that the module already has, word for word. Others of the same name are printed."""
    known: dict[str, str] = {}
    kept = []
    for text in [old, *texts]:
        source = Source(target, text)
        drop: set[int] = set()
        for name, (start, end) in source.spans.items():
            definition = "".join(source.lines[start - 1 : end]).strip()
            if name in known and known[name] == definition:
                drop |= set(range(start, end + 1))
            elif name in known:
                print(f"COLLISION in {target}: {name}")
            known.setdefault(name, definition)
        kept.append("".join(line for number, line in enumerate(source.lines, 1) if number not in drop))
    return kept[1:]


def read_plan(path: Path) -> list[tuple[str, list[str] | None, str]]:
    """(module, names, target); no names: the module as a whole."""
    plan = []
    for line in path.read_text().splitlines():
        line = line.partition("#")[0].strip()  # noqa: PLW2901
        if line:
            left, target = (part.strip() for part in line.split("->"))
            module, colon, names = (part.strip() for part in left.partition(":"))
            plan.append((module, names.split() if colon else None, target))
    return plan


def spell_import(module: str | None, name: str, local: str) -> str:
    if module is None:
        return f"import {name}" if local == name.partition(".")[0] else f"import {name} as {local}"
    return f"from {module} import {name}" + ("" if name == local else f" as {local}")


def insert_imports(text: str, lines: set[str], checking: set[str]) -> str:
    """Put import lines below the `__future__` import, those for type checkers in a block of their own."""
    added = sorted(lines) + (["if TYPE_CHECKING:", *(f"    {line}" for line in sorted(checking))] if checking else [])
    if checking:
        added.insert(0, "from typing import TYPE_CHECKING")
    at = 0
    for node in ast.parse(text).body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not (future or (at == 0 and is_text(node))):
            break
        at = node.end_lineno or at
    rows = text.splitlines(keepends=True)
    return "".join(rows[:at]) + "\n" + "\n".join(added) + "\n" + "".join(rows[at:])


def move(plan: list[tuple[str, list[str] | None, str]]) -> None:
    moved: dict[tuple[str, str], str] = {}
    whole = {module: target for module, names, target in plan if names is None}
    for module, target in whole.items():
        path, new = find_path(module), find_path(target)
        new.parent.mkdir(parents=True, exist_ok=True)
        (new.parent / "__init__.py").touch()
        subprocess.run(["git", "mv", path, new], check=True, cwd=ROOT)
    dissolved: dict[str, str] = {}
    sources: dict[str, Source] = {}
    pieces: dict[str, list[str]] = defaultdict(list)
    needs: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)
    wanted: dict[str, list[tuple[list[str], str]]] = defaultdict(list)
    order: list[tuple[str, list[str], str]] = []
    for module, names, target in plan:
        if names is None:
            continue
        source = sources.setdefault(module, Source(module, find_path(module).read_text()))
        if names == ["*"]:
            left = source.spans.keys() - {"__all__"}
            names = [name for name in source.spans if name in left and (module, name) not in moved]  # noqa: PLW2901
        for name in names:
            moved[module, name] = target
        wanted[module].append((names, target))
        order.append((module, names, target))
    for module, names, target in order:
        piece, used = Source(module, find_path(module).read_text()).cut(names)
        pieces[target].append(piece)
        needs[target].append((module, used))
    for module, source in sources.items():
        source.cut([name for names, _ in wanted[module] for name in names])
        path = find_path(module)
        if {name for names, _ in wanted[module] for name in names} >= source.spans.keys() - {"__all__"}:
            print(f"--- the docstring of {module}:\n{ast.get_docstring(source.tree)}\n")
            for lost in list_other(source.text):
                print(f"LOST with {module}: {lost}")
            dissolved[module] = wanted[module][-1][1]
            subprocess.run(["git", "rm", "-q", "-f", "--cached", path], check=True, cwd=ROOT)
            path.unlink()
            continue
        left = {node.id for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Name)}
        back = {
            spell_import(f"indelible.{target}", name, name)
            for names, target in wanted[module]
            for name in names
            if name in left
        }
        path.write_text(insert_imports(source.text, back, set()) if back else source.text)
    for target, texts in pieces.items():
        path = find_path(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        old = path.read_text() if path.exists() else f'"""TODO: {target}."""\n\nfrom __future__ import annotations\n'
        text = old.rstrip("\n") + "\n\n\n" + "\n\n".join(drop_twins(target, old, texts))
        lines, checking = set[str](), set[str]()
        defined = set(Source(target, text).spans)
        for module, used in needs[target]:
            source = sources[module]
            for name in used - defined:
                if name in source.imports:
                    where, original, only = source.imports[name]
                    short = (where or "").removeprefix("indelible.")
                    where = f"indelible.{moved[short, original]}" if (short, original) in moved else where
                    if where != f"indelible.{target}":
                        (checking if only else lines).add(spell_import(where, original, name))
                elif (module, name) in moved:
                    lines.add(spell_import(f"indelible.{moved[module, name]}", name, name))
                elif name in source.spans:
                    lines.add(spell_import(f"indelible.{module}", name, name))
                    print(f"{target} needs {name}, which stays in {module}")
        path.write_text(insert_imports(text, lines, checking))
    rewrite(moved, whole, dissolved)


def rewrite_public_names(text: str, moved: dict[tuple[str, str], str], whole: dict[str, str]) -> str:
    """The package's own `__init__.py` names the modules of the public names without `indelible.`."""
    for (module, name), target in moved.items():
        text = text.replace(f'"{name}": "{module}"', f'"{name}": "{target}"').replace(
            f'"{module}:{name}"', f'"{target}:{name}"'
        )
    for module, target in whole.items():
        text = re.sub(rf'": "{re.escape(module)}([":])', rf'": "{target}\1', text)
    return text


def rewrite(moved: dict[tuple[str, str], str], whole: dict[str, str], dissolved: dict[str, str]) -> None:
    modules = {module for module, _ in moved}
    homes = {name: target for (_, name), target in moved.items()}
    for path in [path for tree in TREES for path in (ROOT / tree).rglob("*.py")]:
        text = path.read_text()
        rows = text.splitlines(keepends=True)
        for node in reversed([node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]):
            module = (node.module or "").removeprefix("indelible.")
            if node.module is None or not node.module.startswith("indelible"):
                continue
            parts: dict[str, list[str]] = defaultdict(list)
            for alias in node.names:
                spelled = alias.name + (f" as {alias.asname}" if alias.asname else "")
                inner = f"{module}.{alias.name}"
                if (module, alias.name) in moved:
                    parts[f"indelible.{moved[module, alias.name]}"].append(spelled)
                elif module in whole:
                    parts[f"indelible.{whole[module]}"].append(spelled)
                elif inner in whole:
                    package, _, last = whole[inner].rpartition(".")
                    parts[f"indelible.{package}"].append(last + (f" as {alias.asname or alias.name}"))
                else:
                    parts[node.module].append(spelled)
                    if inner in modules:
                        print(f"{path.relative_to(ROOT)}:{node.lineno}: uses {inner} as a value")
                    elif alias.name in homes and homes[alias.name] != module and path.name != "__init__.py":
                        print(f"{path.relative_to(ROOT)}:{node.lineno}: {alias.name} through {module}?")
            indent = " " * node.col_offset
            own = path.relative_to(ROOT).as_posix().removeprefix("src/").removesuffix(".py").replace("/", ".")
            new = [f"{indent}from {home} import ({', '.join(names)})\n" for home, names in parts.items() if home != own]
            if parts.keys() != {node.module}:
                rows[node.lineno - 1 : node.end_lineno] = new
        new_text = "".join(rows)
        if new_text != text:
            path.write_text(new_text)
    for path in [
        path for tree in TEXTS for path in ([ROOT / tree] if (ROOT / tree).is_file() else (ROOT / tree).rglob("*"))
    ]:
        if path.suffix in {".py", ".md", ".toml", ".js", ".ts"} and "vendor" not in path.parts:
            text = new_text = path.read_text()
            for module, target in whole.items():
                new_text = re.sub(rf"\bindelible\.{re.escape(module)}\b", f"indelible.{target}", new_text)
                old = module.replace(".", "/")
                new_text = re.sub(rf"\b{re.escape(old)}\.py\b", target.replace(".", "/") + ".py", new_text)
            for module, target in dissolved.items():
                old = module.replace(".", "/")
                new_text = re.sub(rf"(?<![\w/]){re.escape(old)}\.py\b", target.replace(".", "/") + ".py", new_text)
            for (module, name), target in moved.items():
                new_text = new_text.replace(f"indelible.{module}.{name}", f"indelible.{target}.{name}")
            if path == PACKAGE / "__init__.py":
                new_text = rewrite_public_names(new_text, moved, whole)
            if new_text != text:
                path.write_text(new_text)


if __name__ == "__main__":
    move(read_plan(Path(sys.argv[1])))
    ruff = ROOT / ".venv" / "bin" / "ruff"
    subprocess.run([ruff, "check", "--quiet", "--select", "I,F401,F811", "--fix", *TREES], cwd=ROOT, check=False)
    subprocess.run([ruff, "format", "--quiet"], cwd=ROOT, check=False)
