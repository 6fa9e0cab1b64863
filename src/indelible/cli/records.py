"""The recorded runs of a chat in the terminal: a tree of runs, one run in full, and a replay.

Everything here is drawn from values (`draw_…`) and printed by two commands. A run may be long, so its exchanges are
loaded one by one while they are printed: a branch of the tree knows from the run what comes after it, and is printed
before that is there. A slow reader delays nobody: between two exchanges nothing is held open.

Text from a provider or a user is foreign: it is disarmed (terminal/widgets.py) and never read as markup. The JSON that
is printed for other programs is plain ASCII, so that nothing in it can move a cursor, and is otherwise the record
letter by letter.

Must stay true (tests/terminal/test_debugging.py): no control character of a record reaches the terminal; of a long run
no more than an exchange or two is in memory.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text as StyledText
from rich.tree import Tree

from indelible.api.records import AttemptRecord, AttemptSummary, RunTree, StepTree
from indelible.app.app import App
from indelible.app.compose import open_app
from indelible.content import Block, Reasoning, Text, ToolCall, ToolResult
from indelible.errors import Invalid, NotFound
from indelible.recording.replay import Recording, Replayed, load_exchange, make_recording, replay, write_run
from indelible.recording.storage import RecordStore
from indelible.settings import Settings
from indelible.terminal.reports import find_chat
from indelible.terminal.widgets import disarm

_COLOURS: Final = {"completed": "green", "error": "red", "failed": "red", "interrupted": "yellow"}
_SHORT_BODY_CHARS: Final = 1200
_INDENT: Final = "  "
_WIDTH_OF_A_PIPE: Final = 10_000_000
"""More than a body has letters: no line is assembled."""
_NOT_PLAIN: Final = re.compile(r"[^\x20-\x7e\n]+")


# --- the commands ---


def print_records(
    settings: Settings, *, chat_name: str | None, run_id: str | None, limit: int, full: bool, as_json: bool
) -> None:
    """Print the recorded runs of a chat, or one of them."""

    async def show() -> None:
        async with open_app(settings=settings, worker=False) as app:  # another process may run the worker
            if run_id is not None:
                await show_run(app.records, await find_run(app, run_id), full=full, as_json=as_json)
                return
            title, runs = await load_runs(app, chat_name, limit=limit)
            if as_json:
                await _print_json(write_runs(app.records, runs))
            elif runs:
                _print(draw_runs(title, runs))
            else:
                _print(_plain(f"No runs are recorded for {title}. The setting 'debug' is '{settings.debug}'."))

    asyncio.run(show())


async def show_run(records: RecordStore, run: RunTree, *, full: bool, as_json: bool) -> None:
    """Print a run with its exchanges, while it is loaded."""
    if as_json:
        await _print_json(write_run(records, run))
        return
    async for branch in draw_run(records, run, full=full):
        _print(branch)


def print_replay(settings: Settings, target: str, *, place: str | None, save_to: Path | None) -> None:
    """Replay a response: one of a run, or one that was saved in a file."""
    if Path(target).is_file():
        if place is not None:
            raise Invalid("A file holds a single exchange; drop --attempt.")
        title, recording = target, Recording.load(Path(target))
    else:
        title, recording = asyncio.run(_find_recording(settings, target, place))
    if save_to is not None:
        recording.save(save_to)
    _print(draw_replay(title, recording, asyncio.run(replay(recording))))
    if save_to is not None:
        _print(_plain(f"Saved as {save_to}."))


async def _find_recording(settings: Settings, run_id: str, place: str | None) -> tuple[str, Recording]:
    """An exchange of a run, ready to be replayed, and its title."""
    async with open_app(settings=settings, worker=False) as app:
        run = await find_run(app, run_id)
        line = choose_attempt(run, place)
        recording = make_recording(await load_exchange(app.records, line), model=run.model)
    if recording is None:
        raise NotFound(f"Attempt {line.step}.{line.number} has no response to replay.")
    return f"{run.id}, attempt {line.step}.{line.number}", recording


def _print(shown: RenderableType) -> None:
    """On a terminal lines are assembled; a pipe gets them whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_PIPE
    console.print(shown)


async def _print_json(widgets: AsyncIterable[bytes]) -> None:
    console = Console()
    async for widget in widgets:
        console.out(to_ascii_json(widget.decode()), end="", highlight=False)


def to_ascii_json(text: str) -> str:
    """JSON in printable ASCII. Whatever else is in it stands in a string, where it can be escaped."""
    return _NOT_PLAIN.sub(lambda found: re.sub("....", r"\\u\g<0>", found[0].encode("utf-16-be").hex()), text)


async def write_runs(records: RecordStore, runs: Sequence[RunTree]) -> AsyncIterator[bytes]:
    """The JSON of a list of runs, with everything in them."""
    yield b"["
    for run in runs:
        if run is not runs[0]:
            yield b","
        async for widget in write_run(records, run):
            yield widget
    yield b"]\n"


# --- finding ---


async def load_runs(app: App, chat_name: str | None, *, limit: int) -> tuple[str, list[RunTree]]:
    """The title of a chat, and its last runs, oldest first."""
    chat = await find_chat(app, chat_name)
    records = app.records
    found = [await records.load_tree(chat.id, run.id) for run in await records.list_runs(chat.id, limit=limit)]
    title = (await app.store.view(chat.id, limit=1)).title
    return f"{chat.id} {title or ''}".rstrip(), [run for run in reversed(found) if run is not None]


async def find_run(app: App, run_id: str) -> RunTree:
    run = await app.records.find_tree(app.owner_id, run_id)
    if run is None:
        raise NotFound(f"Run '{run_id}' not found. List the runs of a chat with: indelible debug")
    return run


def choose_attempt(run: RunTree, place: str | None) -> AttemptSummary:
    """The attempt at this place, such as `2.1`; without one, the last."""
    attempts = [attempt for step in run.steps for attempt in step.attempts]
    if not attempts:
        raise NotFound(f"{run.id} has no attempts.")
    if place is None:
        return attempts[-1]
    by_place = {f"{attempt.step}.{attempt.number}": attempt for attempt in attempts}
    if place not in by_place:
        raise NotFound(f"Attempt {place} not found in {run.id}. Available: {', '.join(by_place)}.")
    return by_place[place]


# --- the tree ---


class _Branch:
    """Something in a tree, with the lines that lead to it. `is_last`: whether it is, and each that it hangs on."""

    def __init__(self, shown: RenderableType, is_last: Sequence[bool]) -> None:
        self._shown = shown
        self._is_last = is_last

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blank, through, fork, end = Tree.ASCII_GUIDES if options.ascii_only else Tree.TREE_GUIDES[0]
        beside = [blank if is_last else through for is_last in self._is_last]
        leading = [*beside[:-1], *(end if is_last else fork for is_last in self._is_last[-1:])]
        yield from _render_beside("".join(leading), "".join(beside), self._shown, console, options)


class _Indented:
    """Something a little to the right, its lines as long as they are.

    Rich's own padding makes all lines equal, and one long line among thousands would then be thousands of long ones.
    """

    def __init__(self, shown: RenderableType) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _render_beside(_INDENT, _INDENT, self._shown, console, options)


def _render_beside(
    first: str, others: str, shown: RenderableType, console: Console, options: ConsoleOptions
) -> Iterator[Segment]:
    """Its lines, to the right of these, which are equally long."""
    narrower = options.update(width=options.max_width - len(first))
    for number, line in enumerate(console.render_lines(shown, narrower, pad=False)):
        yield Segment(others if number else first)
        yield from line
        yield Segment.line()


def draw_runs(title: str, runs: Sequence[RunTree]) -> RenderableType:
    """Runs, steps and attempts, a line each."""
    branches = [
        _Branch(_head(branch), is_last)
        for run in runs
        for branch, is_last in _list_branches(run, is_last=[run is runs[-1]])
    ]
    return Group(_plain(title), *branches)


async def draw_run(records: RecordStore, run: RunTree, *, full: bool) -> AsyncIterator[RenderableType]:
    """One run with what was sent and what came back, branch by branch, in the order in which they are printed."""
    for branch, is_last in _list_branches(run, is_last=[]):
        shown: RenderableType = _head(branch)
        if isinstance(branch, AttemptSummary):
            shown = Group(shown, *_draw_exchange(await load_exchange(records, branch), full=full))
        yield _Branch(shown, is_last)


def _list_branches(
    run: RunTree, *, is_last: Sequence[bool]
) -> Iterator[tuple[RunTree | StepTree | AttemptSummary, Sequence[bool]]]:
    yield run, is_last
    for step in run.steps:
        step_is_last = [*is_last, step is run.steps[-1]]
        yield step, step_is_last
        for attempt in step.attempts:
            yield attempt, [*step_is_last, attempt is step.attempts[-1]]


def _head(branch: RunTree | StepTree | AttemptSummary) -> StyledText:
    match branch:
        case RunTree():
            return _head_run(branch)
        case StepTree():
            lasted = _last(branch.started_at, branch.ended_at)
            return _line(f"step {branch.step}", branch.status, lasted, error=branch.error)
        case AttemptSummary():
            return _head_attempt(branch)


def _head_run(run: RunTree) -> StyledText:
    when = f"{run.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
    facts = (run.model or "", when, _last(run.started_at, run.ended_at))
    return _line(f"{run.id} {run.kind}", run.status, *facts, error=run.error)


def _head_attempt(attempt: AttemptSummary) -> StyledText:
    answer = "no response" if attempt.status_code is None else f"HTTP {attempt.status_code}"
    lasted = _last(attempt.started_at, attempt.ended_at)
    if attempt.head_at is not None:
        lasted += f" (first byte after {_last(attempt.started_at, attempt.head_at)})"
    sizes = f"kept: {_size(attempt.request_bytes)} sent, {_size(attempt.response_bytes)} received"
    facts = (answer, f"{attempt.method} {attempt.url}", lasted, sizes)
    return _line(f"attempt {attempt.step}.{attempt.number}", attempt.status, *facts, error=attempt.error)


def _draw_exchange(attempt: AttemptRecord, *, full: bool) -> Iterator[RenderableType]:
    yield from _draw_message("sent", attempt.request_headers, attempt.request_body, full=full)
    yield from _draw_message("received", attempt.response_headers or {}, attempt.response_body, full=full)


def _draw_message(title: str, headers: Mapping[str, str], body: str, *, full: bool) -> Iterator[RenderableType]:
    if not headers and not body:
        return
    yield StyledText(title, style="bold")
    if headers:
        lines = [_tidy(f"{name}: {value}") for name, value in headers.items()]
        yield _Indented(StyledText("\n".join(lines), style="dim"))
    if body:
        yield _Indented(StyledText(disarm(body if full else _shorten(_lay_out(body)))))


def _line(name: str, status: str, *facts: str, error: str | None) -> StyledText:
    line = StyledText.assemble((name, "bold"), " · ", (status.replace("_", " "), _COLOURS.get(status, "cyan")))
    for fact in filter(None, facts):
        line.append(f" · {_tidy(fact)}")
    if error:
        line.append(f" · {_tidy(error)}", style="red" if status in ("error", "failed") else "yellow")
    return line


def _last(since: datetime, until: datetime | None) -> str:
    return "" if until is None else f"{(until - since).total_seconds():.2f} s"


def _size(size_bytes: int) -> str:
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


def _plain(text: str) -> StyledText:
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
            kind, text = "text", block.text
        case Reasoning():
            kind, text = "thinking", block.text
        case ToolCall():
            kind, text = "call", f"{block.name} {block.arguments}"
        case ToolResult():
            kind, text = "result", f"{block.name} {block.output}"
        case _:
            kind, text = "block", json.dumps(msgspec.to_builtins(block), ensure_ascii=False)
    return StyledText.assemble((f"{kind}  ", "bold"), disarm(text))


def _count_tokens(replayed: Replayed) -> str:
    usage = replayed.usage
    if usage is None or not usage.total_tokens:
        return ""
    return f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
