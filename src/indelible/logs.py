"""Logging: the fields of every line, and the log formats of `serve` and `worker`.

Every line names the chat, turn, attempt and epoch that it is about, if they are known. The worker sets them
once per chat and turn (`log_context`), in a context variable that every task of the turn inherits, so that the loop and
the tools need no ids to log, and a token costs nothing: the fields are read when a line is formatted. Code outside a
turn passes them with `extra={"chat": …}`.

The library installs no handler: `set_up_logging` is for Indelible's own processes. It prints to standard error, as text
(for people) or as one JSON object per line, and so does everything else: uvicorn's loggers, warnings, and an
exception that ends the process. Text from outside cannot forge a line: control characters are replaced, and
continuation lines are indented.

Secrets stay out: URLs lose their query, and every secret that the process knows is replaced, wherever it appears.

A line is formatted where it is logged, which is usually the event loop, and a traceback's source lines would be read
from files there, hundreds of them after the first error. So tracebacks name files, lines and functions and have no
source lines (`write_traceback`), as warnings have none. For loggers of `get_logger` that holds in other people's
processes as well: the text is made before any handler sees the record.

Must stay true (tests/test_logs.py): each line of a server with `--log-format json` is JSON, and one about a chat has
its ids; no token appears in any line; no file is read to log an error or a warning.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal, TextIO

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_SHORTEST_SECRET: Final = 6
_SECRET_NAME: Final = re.compile(r"(_KEY|_TOKEN|_SECRET|PASSWORD)$")
_USER_INFO: Final = re.compile(r"(?<=://)([^\s/:@]*):[^\s/@]+@")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINK_KEY: Final = re.compile(r"(?<=/shared/)[^/\s]+")
_CHAT_IN_PATH: Final = re.compile(r"/chats/(chat_\w+)")
_DUPLICATES: Final = ("Exception in ASGI application", "Traceback (", "Application startup failed")
_COLOURS: Final = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31m"}


@dataclass
class LogFields:
    """The subject of a line. `attempt` changes within a turn, for all its tasks. `call` is a call of a tool."""

    chat: str | None = None
    turn: str | None = None
    attempt: str | None = None
    epoch: int | None = None
    call: str | None = None


_NAMES: Final = tuple(field.name for field in fields(LogFields))
_current: Final[ContextVar[LogFields]] = ContextVar("indelible_log_fields")


@contextmanager
def log_context(**known: str | int | None) -> Iterator[LogFields]:
    """Add these fields to every line of the block, and of the tasks started in it."""
    entered = replace(_current.get(LogFields()), **known)  # type: ignore[arg-type]
    token = _current.set(entered)
    try:
        yield entered
    finally:
        _current.reset(token)


def set_log_attempt(attempt_id: str | None) -> None:
    """Name this attempt on the following lines of this turn."""
    found = _current.get(None)
    if found is not None:
        found.attempt = attempt_id


def get_logger(name: str) -> logging.Logger:
    """The logger of a module that logs errors with their traceback."""
    logger = logging.getLogger(name)
    logger.addFilter(_write_error)
    return logger


def _write_error(record: logging.LogRecord) -> bool:
    """Write the traceback now; formatters use `exc_text` if there is one."""
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = write_traceback(record.exc_info[1])
    return True


def set_up_logging(
    *,
    format: LogFormat = "text",
    level: LogLevel = "warning",
    access_log: bool = False,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Print the logs of this process. Call it once, and only in Indelible's own processes."""
    out = stream or sys.stderr
    redact = Redactor(secrets)
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter(redact) if format == "json" else TextFormatter(redact, colours=out.isatty()))
    handler.addFilter(_should_log)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("indelible").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.INFO if level == "debug" else logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if access_log else logging.CRITICAL)
    warnings.showwarning = _log_warning
    sys.excepthook = _log_crash


class Redactor:
    """Replaces the secrets that the process knows, and passwords in URLs."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        self._known = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True)))) if known else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub("***", text)
        return _USER_INFO.sub(r"\1:***@", text)


def find_secrets(environment: Iterable[tuple[str, str]]) -> list[str]:
    """The values of variables with the name of a secret: keys, tokens, passwords."""
    return [value for name, value in environment if _SECRET_NAME.search(name.upper())]


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message; then chat, turn, attempt, epoch and error, if known."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC).isoformat(timespec='milliseconds')[:-6]}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redact(write_message(record)),
            **find_fields(record),
        }
        if record.exc_info:
            line["error"] = self._redact(_find_traceback(record))
        return json.dumps(line)


class TextFormatter(logging.Formatter):
    """`12:30:01.250 WARNING worker.chat_runner: message  chat=… turn=…`, with the date if it is no terminal."""

    def __init__(self, redact: Redactor, *, colours: bool) -> None:
        super().__init__()
        self._redact = redact
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone()
        time = f"{at:%H:%M:%S}.{at.microsecond // 1000:03}" if self._colours else at.isoformat(timespec="milliseconds")
        text = write_message(record)
        known = "".join(f" {name}={value}" for name, value in find_fields(record).items())
        if record.exc_info:
            known += "\n" + _find_traceback(record)
        rest = _CONTROL.sub("\ufffd", self._redact(f"{text} {known}".rstrip())).replace("\n", "\n    ")
        level = f"{record.levelname:<7}"
        if self._colours and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}\x1b[0m"
        return f"{time} {level} {record.name.removeprefix('indelible.')}: {rest}"


def find_fields(record: logging.LogRecord) -> dict[str, Any]:
    """The known fields of the line: from its `extra`, then from the context."""
    current = _current.get(None)
    found = {name: getattr(record, name, None) or getattr(current, name, None) for name in _NAMES}
    if found["chat"] is None and (in_path := _CHAT_IN_PATH.search(_find_path(record))):
        found["chat"] = in_path[1]
    return {name: value for name, value in found.items() if value is not None}


def write_message(record: logging.LogRecord) -> str:
    """The message. The access log omits the query of a URL and the key of a link, which are secrets."""
    if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, _, _, status = record.args
        return f"{method} {_find_path(record)} {status} from {client}"
    return record.getMessage()


def _find_path(record: logging.LogRecord) -> str:
    if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == 5:
        return _LINK_KEY.sub("***", str(record.args[2]).partition("?")[0])
    return ""


def _should_log(record: logging.LogRecord) -> bool:
    """Drop uvicorn's duplicates of our own reports.

    server/problems.py logs an exception of a request, and server/process.py raises what kept the server from
    starting, or ended it.
    """
    return not (record.name == "uvicorn.error" and str(record.msg).startswith(_DUPLICATES))


def _find_traceback(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return record.exc_text or ("" if error is None else write_traceback(error))


def write_traceback(error: BaseException) -> str:
    """The error, its causes and where each was raised, without source lines: no file is read."""
    found = traceback.TracebackException(type(error), error, error.__traceback__, lookup_lines=False)
    for each in _walk(found):
        frames = [(frame.filename, frame.lineno or 0, frame.name, "") for frame in each.stack]
        each.stack = traceback.StackSummary.from_list(frames)
    return "".join(found.format()).rstrip()


def _walk(found: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An error, what it was raised from or during, and the members of a group."""
    waiting = [found]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += [more for more in (each.__cause__, each.__context__, *(each.exceptions or ())) if more is not None]


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("indelible").critical("the process crashed", exc_info=(kind, error, trace))


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **_more: object
) -> None:
    """As after `logging.captureWarnings`, without the source line: a warning may come from the event loop, too."""
    logging.getLogger("py.warnings").warning("%s:%s: %s: %s", filename, lineno, category.__name__, message)
