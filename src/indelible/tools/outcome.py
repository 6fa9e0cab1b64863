"""Calling a tool's function, and reading what it gave: a text and files, or an error as it may be told.

A value may be large, and an exception too: turning a million numbers into text takes seconds, and an exception's
message may be 100 MB or hold the password of a database. So the event loop only looks at short values. Everything
else is read in a thread, as a part of the tool's run: its time limit and a stop hold for that too.

What people, the model and the log get of an exception is cut first and then redacted: known secrets of the process,
values that look like keys, and user names and passwords in addresses. The tracebacks in the log are the exception's
own, and those of its causes and, if it is a group, of its members.

A plain function runs in a daemon thread of its own, so one that blocks for ever holds up neither the event loop nor the
end of the process.

Must stay true (tests/tools/test_tool_outcome.py): nothing that a tool gives stalls the event loop, or shows a secret;
an iterator that nobody has read is a mistake and no result.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple, cast

from indelible.content import File
from indelible.errors import TestBroken
from indelible.redaction.redact import redact_addresses
from indelible.redaction.secrets import redact_keys
from indelible.tools.output import cut_text, render_output
from indelible.tools.schema import BadArguments

Hide = Callable[[str], str]
"""Hides the secrets that this process knows in a text."""

_READ_AT_ONCE: Final = (bool, int, float)
_SHORT_CHARACTERS: Final = 10_000
_MAX_ERROR_BYTES: Final = 4096
_REDACTED_CHARACTERS: Final = 32 * 1024
"""How much of an exception's message is searched for secrets. Little of it is kept, from its beginning and its end."""
_MAX_LOGGED: Final = 12
"""How many exceptions are logged of one: itself, the members of a group, causes."""
_MAX_NOTES: Final = 3


class Returned(NamedTuple):
    """What a tool's function returned or raised. Never an exception in flight."""

    value: Any = None
    error: BaseException | None = None


class ToolOutcome(NamedTuple):
    """The text of a value and its files; or of an error, with the exception as it may be logged."""

    text: str
    files: list[File]
    error: BaseException | None = None


async def run_tool(work: Callable[[], Any], *, is_async: bool, wants_files: bool, hide: Hide) -> ToolOutcome:
    """Call a tool's function and read its result. Cancel it to stop it."""
    returned = await (_run_async(work) if is_async else _run_in_thread(work))
    if returned.error is None and _is_short(returned.value):
        return _read(returned, wants_files=wants_files, hide=hide)
    read = await _call_in_thread(lambda: _read(returned, wants_files=wants_files, hide=hide))
    if read.error is not None:
        raise read.error
    outcome: ToolOutcome = read.value
    return outcome


async def explain_error(error: BaseException, hide: Hide) -> ToolOutcome:
    """Read an error that was raised before the tool ran."""
    read = await _call_in_thread(lambda: _read(Returned(error=error), wants_files=False, hide=hide))
    if read.error is not None:
        raise read.error
    outcome: ToolOutcome = read.value
    return outcome


def _is_short(value: object) -> bool:
    return value is None or type(value) in _READ_AT_ONCE or (type(value) is str and len(value) < _SHORT_CHARACTERS)


# --- calling -----------------------------------------------------------------------------


async def _run_async(work: Callable[[], Coroutine[Any, Any, Any]]) -> Returned:
    try:
        return Returned(value=await work())
    except (asyncio.CancelledError, TestBroken):
        raise
    except BaseException as error:  # a tool may raise anything, and it ends nothing but its call
        return Returned(error=error)


async def _run_in_thread(work: Callable[[], Any]) -> Returned:
    """Run a plain function; what it leaves to be awaited is awaited here."""
    returned = await _call_in_thread(work)
    if isinstance(returned.error, TestBroken):
        raise returned.error
    if inspect.isawaitable(returned.value):
        return await _run_async(lambda: _await(returned.value))
    return returned


async def _call_in_thread(work: Callable[[], Any]) -> Returned:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Returned] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(returned: Returned) -> None:
        if not done.done():
            done.set_result(returned)

    def target() -> None:
        try:
            returned = Returned(value=context.run(work))
        except BaseException as error:  # a thread has no other way to report it
            returned = Returned(error=error)
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and no task waits any longer
            loop.call_soon_threadsafe(deliver, returned)

    threading.Thread(target=target, name="indelible tool", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        # A thread cannot be cancelled. It may check its scope and return; the task waits for that.
        return await done


async def _await(value: Awaitable[Any]) -> Any:
    return await value


# --- reading -----------------------------------------------------------------------------


def _read(returned: Returned, *, wants_files: bool, hide: Hide) -> ToolOutcome:
    """The outcome of a call, even if looking at what it gave raises anything: that ends nothing but the call."""
    try:
        return _read_carefully(returned, wants_files=wants_files, hide=hide)
    except TestBroken:
        raise
    except BaseException as error:
        unreadable = TypeError(f"What the tool gave cannot be read: looking at it raised {type(error).__name__}.")
        return ToolOutcome(str(unreadable), [], unreadable)


def _read_carefully(returned: Returned, *, wants_files: bool, hide: Hide) -> ToolOutcome:
    value, error = returned
    if error is None and isinstance(value, Iterator | AsyncIterator):
        error = TypeError(
            f"The tool returned a {type(value).__name__}, which nobody has read. Return a list or a text."
        )
    if error is not None:
        return _read_error(error, hide)
    files: list[File] | None = [] if wants_files else None
    text = _render(value, files)
    return ToolOutcome(text, files or [])


def _read_error(error: BaseException, hide: Hide) -> ToolOutcome:
    text = _shorten(error, hide)
    if not isinstance(error, BadArguments):  # those say what is wrong without a name
        kind = type(error).__name__
        text = f"{kind}: {text}" if text else kind
    return ToolOutcome(text, [], _Loggable(hide).copy(error))


def _render(value: object, files: list[File] | None = None) -> str:
    """The text of a value, even if it raises when it is shown; `files` collects the files in it."""
    try:
        return render_output(value, files)
    except TestBroken:
        raise
    except BaseException:
        return f"<a {type(value).__name__} that cannot be shown as text>"


def _shorten(error: object, hide: Hide) -> str:
    """The exception's message, or another text of it, cut and redacted."""
    text = _render(error)
    if len(text) > 2 * _REDACTED_CHARACTERS:
        text = f"{text[:_REDACTED_CHARACTERS]} … {text[-_REDACTED_CHARACTERS:]}"
    return cut_text(redact_addresses(redact_keys(hide(text))), _MAX_ERROR_BYTES).text


class _Loggable:
    """Makes exceptions that may be logged, of one that was raised and of what belongs to it."""

    def __init__(self, hide: Hide) -> None:
        self._hide = hide
        self._left = _MAX_LOGGED

    def copy(self, error: BaseException) -> Exception:
        """An exception of the same name with the shortened message and notes, the same traceback, and copied causes."""
        self._left -= 1
        shown = self._copy_alone(error)
        shown.__traceback__ = error.__traceback__
        notes = getattr(error, "__notes__", None)
        for note in notes[:_MAX_NOTES] if isinstance(notes, list) else ():
            shown.add_note(_shorten(note, self._hide))
        if error.__cause__ is not None and self._left > 0:
            shown.__cause__ = self.copy(error.__cause__)
        elif error.__context__ is not None and self._left > 0:
            shown.__context__ = self.copy(error.__context__)
        shown.__suppress_context__ = error.__suppress_context__
        return shown

    def _copy_alone(self, error: BaseException) -> Exception:
        kind = type(error)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        if isinstance(error, BaseExceptionGroup):
            members = [self.copy(member) for member in error.exceptions if self._left > 0]
            if members:
                group = type(kind.__name__, (ExceptionGroup,), names)
                return cast(Exception, group(_shorten(error.message, self._hide), members))
        return cast(Exception, type(kind.__name__, (Exception,), names)(_shorten(error, self._hide)))
