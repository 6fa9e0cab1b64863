"""What was recorded of a chat, in the terminal: a tree of runs, one run in full, and a replay.

Everything here is drawn from values (`draw_…`) and printed by two commands. Whatever a provider or a user said is
foreign text: it is disarmed (markdown.py) and never read as markup. The JSON that is printed for other programs is
plain ASCII, so that nothing in it can move a cursor, and is otherwise the record letter by letter.

Must stay true (tests/terminal/test_debugging.py): no control character of a record reaches the terminal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text as StyledText
from rich.tree import Tree

from indelible.app import App, open_app
from indelible.content import Block, Reasoning, Text, ToolCall, ToolResult
from indelible.debug.replay import Recording, Replayed, make_recording, replay
from indelible.errors import Invalid, NotFound
from indelible.settings import Settings
from indelible.store.records import AttemptRecord, WholeRun
from indelible.terminal.listing import find_chat
from indelible.terminal.markdown import disarm

T = TypeVar("T")
_COLOURS: Final = {"completed": "green", "error": "red", "failed": "red", "interrupted": "yellow"}
_SHORT_BODY_CHARS: Final = 1200
_INDENT: Final = (0, 0, 0, 2)
_WIDTH_OF_A_PIPE: Final = 100_000


# --- the commands ---


def print_records(
    settings: Settings, *, chat_name: str | None, run_id: str | None, limit: int, full: bool, as_json: bool
) -> None:
    """Print what was recorded of a chat, or one run of it."""
    if run_id is not None:
        run = _ask(settings, lambda app: find_run(app, run_id))
        _print_json(run) if as_json else _print(draw_run(run, full=full))
        return
    title, runs = _ask(settings, lambda app: load_runs(app, chat_name, limit=limit))
    if as_json:
        _print_json(runs)
    elif runs:
        _print(draw_runs(title, runs))
    else:
        _print(_say(f"Nothing was recorded of {title}. The setting 'debug' is '{settings.debug}'."))


def print_replay(settings: Settings, target: str, *, place: str | None, save_to: Path | None) -> None:
    """Hear an answer again: one of a run, or one that was saved in a file."""
    if Path(target).is_file():
        if place is not None:
            raise Invalid("A file holds one exchange: it goes without --attempt.")
        title, recording = target, Recording.load(Path(target))
    else:
        run = _ask(settings, lambda app: find_run(app, target))
        attempt = choose_attempt(run, place)
        made = make_recording(attempt, model=run.model)
        if made is None:
            raise NotFound(f"Attempt {attempt.step}.{attempt.number} has no answer that could be replayed.")
        title, recording = f"{run.id}, attempt {attempt.step}.{attempt.number}", made
    if save_to is not None:
        recording.save(save_to)
    _print(draw_replay(title, recording, asyncio.run(replay(recording))))
    if save_to is not None:
        _print(_say(f"Saved as {save_to}."))


def _ask(settings: Settings, load: Callable[[App], Awaitable[T]]) -> T:
    """Beside whoever works on the database."""

    async def ask() -> T:
        async with open_app(settings=settings, work=False) as app:
            return await load(app)

    return asyncio.run(ask())


def _print(shown: RenderableType) -> None:
    """On a terminal lines are folded; a pipe gets them whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_PIPE
    console.print(shown)


def _print_json(value: object) -> None:
    Console().out(json.dumps(msgspec.to_builtins(value), indent=2), highlight=False)


# --- finding ---


async def load_runs(app: App, chat_name: str | None, *, limit: int) -> tuple[str, list[WholeRun]]:
    """What a chat is called, and its last runs, the oldest first."""
    chat = await find_chat(app, chat_name)
    records = app.store.records
    found = [await records.load_run(chat.id, run.id) for run in await records.list_runs(chat.id, limit=limit)]
    title = (await app.store.view(chat.id, limit=1)).title
    return f"{chat.id} {title or ''}".rstrip(), [run for run in reversed(found) if run is not None]


async def find_run(app: App, run_id: str) -> WholeRun:
    run = await app.store.records.find_run(app.owner_id, run_id)
    if run is None:
        raise NotFound(f"There is no run '{run_id}'. 'indelible debug' lists those of a chat.")
    return run


def choose_attempt(run: WholeRun, place: str | None) -> AttemptRecord:
    """The attempt at this place, such as `2.1`; without one, the last."""
    attempts = [attempt for step in run.steps for attempt in step.attempts]
    if not attempts:
        raise NotFound(f"Nothing was exchanged in {run.id}.")
    if place is None:
        return attempts[-1]
    by_place = {f"{attempt.step}.{attempt.number}": attempt for attempt in attempts}
    if place not in by_place:
        raise NotFound(f"There is no attempt {place} in {run.id}. There are: {', '.join(by_place)}.")
    return by_place[place]


# --- the tree ---


def draw_runs(title: str, runs: Sequence[WholeRun]) -> Tree:
    """Runs, steps and attempts, a line each."""
    tree = Tree(_say(title))
    for run in runs:
        _draw_steps(tree.add(_head_run(run)), run, _head_attempt)
    return tree


def draw_run(run: WholeRun, *, full: bool) -> Tree:
    """One run with what was sent and what came back."""
    tree = Tree(_head_run(run))
    _draw_steps(tree, run, lambda attempt: _draw_attempt(attempt, full=full))
    return tree


def _draw_steps(tree: Tree, run: WholeRun, draw_attempt: Callable[[AttemptRecord], RenderableType]) -> None:
    for step in run.steps:
        branch = tree.add(
            _line(f"step {step.step}", step.status, _last(step.started_at, step.ended_at), error=step.error)
        )
        for attempt in step.attempts:
            branch.add(draw_attempt(attempt))


def _head_run(run: WholeRun) -> StyledText:
    when = f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
    facts = (run.model or "", when, _last(run.started_at, run.ended_at))
    return _line(f"{run.id} {run.kind}", run.status, *facts, error=run.error)


def _head_attempt(attempt: AttemptRecord) -> StyledText:
    answer = "no answer" if attempt.status_code is None else f"HTTP {attempt.status_code}"
    lasted = _last(attempt.started_at, attempt.ended_at)
    if attempt.head_at is not None:
        lasted += f" (answered after {_last(attempt.started_at, attempt.head_at)})"
    sizes = f"{_size(attempt.request_body)} sent, {_size(attempt.response_body)} received"
    facts = (answer, f"{attempt.method} {attempt.url}", lasted, sizes)
    return _line(f"attempt {attempt.step}.{attempt.number}", attempt.status, *facts, error=attempt.error)


def _draw_attempt(attempt: AttemptRecord, *, full: bool) -> RenderableType:
    sent = _draw_message("sent", attempt.request_headers, attempt.request_body, full=full)
    received = _draw_message("received", attempt.response_headers or {}, attempt.response_body, full=full)
    return Group(_head_attempt(attempt), *sent, *received)


def _draw_message(title: str, headers: Mapping[str, str], body: str, *, full: bool) -> Iterator[RenderableType]:
    if not headers and not body:
        return
    yield StyledText(title, style="bold")
    lines = [f"{name}: {value}" for name, value in headers.items()]
    yield Padding(StyledText("\n".join(map(_tidy, lines)), style="dim"), _INDENT, expand=False)
    if body:
        yield Padding(StyledText(disarm(body if full else _shorten(_lay_out(body)))), _INDENT, expand=False)


def _line(name: str, status: str, *facts: str, error: str | None) -> StyledText:
    line = StyledText.assemble((name, "bold"), " · ", (status.replace("_", " "), _COLOURS.get(status, "cyan")))
    for fact in filter(None, facts):
        line.append(f" · {_tidy(fact)}")
    if error:
        line.append(f" · {_tidy(error)}", style="red" if status in ("error", "failed") else "yellow")
    return line


def _last(since: datetime, until: datetime | None) -> str:
    return "" if until is None else f"{(until - since).total_seconds():.2f} s"


def _size(text: str) -> str:
    size_bytes = len(text.encode())
    return f"{size_bytes} B" if size_bytes < 1000 else f"{size_bytes / 1000:.1f} kB"


def _lay_out(body: str) -> str:
    """JSON with its structure to be seen; anything else as it is."""
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return body


def _shorten(text: str) -> str:
    missing = len(text) - _SHORT_BODY_CHARS
    return text if missing <= 0 else f"{text[:_SHORT_BODY_CHARS]}\n[… {missing:,} more characters: --full shows them …]"


def _say(text: str) -> StyledText:
    return StyledText(_tidy(text))


def _tidy(text: str) -> str:
    """On one line, and harmless."""
    return " ".join(disarm(text).split())


# --- a replay ---


def draw_replay(title: str, recording: Recording, replayed: Replayed) -> RenderableType:
    """The blocks that it gives, and how it ended."""
    head = _line("replay", "completed" if replayed.failure is None else "failed", title, recording.wire, error=None)
    ended = [fact for fact in (replayed.reason, _count_tokens(replayed)) if fact]
    lines = [*map(_draw_block, replayed.blocks)]
    if ended:
        lines.append(StyledText.assemble(("finish  ", "bold"), " · ".join(ended)))
    if replayed.failure is not None:
        lines.append(StyledText.assemble(("failed  ", "bold red"), _tidy(replayed.failure)))
    return Group(head, *lines)


def _draw_block(block: Block) -> StyledText:
    match block:
        case Text():
            kind, said = "text", block.text
        case Reasoning():
            kind, said = "thinking", block.text
        case ToolCall():
            kind, said = "call", f"{block.name} {block.arguments}"
        case ToolResult():
            kind, said = "result", f"{block.name} {block.output}"
        case _:
            kind, said = "block", json.dumps(msgspec.to_builtins(block), ensure_ascii=False)
    return StyledText.assemble((f"{kind}  ", "bold"), disarm(said))


def _count_tokens(replayed: Replayed) -> str:
    usage = replayed.usage
    if usage is None or not usage.total_tokens:
        return ""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
