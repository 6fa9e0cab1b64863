"""Asks a server, and writes down what it answers: the status, the headers that clients read, and the body.

With `is_shape`, only this is recorded of a success: the fields and types of its JSON, its first and its last
event, the first line of any other text. A problem is always recorded as it is, because its words are for people.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from tests.frozen.recording import Placeholders
from tests.support.running_server import RunningServer
from tests.support.waiting import deadline

_HEADERS: Final = ("allow", "content-type", "location", "retry-after")
_LONGEST: Final = 450
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_EVENT: Final = re.compile(r"^event: (\w+)", re.MULTILINE)

Ask = Callable[..., Coroutine[Any, Any, Any]]


def _show(header: str, value: str) -> str:
    """A file's tag changes with every edit of it."""
    return '"<tag>"' if header == "etag" else value


class Asking:
    def __init__(self, server: RunningServer, more_headers: Sequence[str] = (), *, is_shape: bool = False) -> None:
        self._server = server
        self._headers = sorted({*_HEADERS, *more_headers})
        self._is_shape = is_shape
        self._placeholders = Placeholders()
        self.shown: list[str] = []

    async def ask(self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> Any:
        """The body of the answer; a stream's is its text."""
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        sent = {"content-type": "application/json", **(headers or {})} if data is not None else dict(headers or {})
        more: dict[str, Any] = {"data": data, "headers": sent, "allow_redirects": False}
        async with deadline(f"{method} {path}"), self._server.request(method, f"/{path}", **more) as got:
            text = (await got.read()).decode(errors="backslashreplace")
            lines = [f"{name}: {_show(name, got.headers[name])}" for name in self._headers if name in got.headers]
            status = got.status
        asked = data.decode(errors="backslashreplace") if isinstance(data, bytes) else data or ""
        asked = asked if len(asked) < _LONGEST else f"{asked[:20]}… ({len(asked):,} characters)"
        named = [f"{name}: {value}" for name, value in (headers or {}).items()]
        request = "\n".join([f"=== {method} {path}", *named, *([asked] if asked else [])])
        is_json = got.content_type.endswith("json") and bool(text)
        shown = self._show(text, got.content_type, is_problem=status >= 400)
        head = self._placeholders.put_into("\n".join([request, "", str(status), *lines]))
        self.shown.append(f"{head}\n{_UUID.sub('<uuid>', shown)}".rstrip() + "\n")
        return json.loads(text) if is_json else text

    def _show(self, text: str, content_type: str, *, is_problem: bool) -> str:
        text = text.replace("chatcmpl-", "chatcmpl_")
        is_shape = self._is_shape and not is_problem
        if content_type.endswith("json") and text:
            value = json.loads(text)
            return self._placeholders.write_json(show_shape(value) if is_shape else value)
        if is_shape:
            text = _show_events(text) if content_type == "text/event-stream" else text.partition("\n")[0]
        return self._placeholders.put_into(text)


def _show_events(text: str) -> str:
    """How many there are between is up to the pace of the reader."""
    kinds = _EVENT.findall(text)
    return f"{kinds[0]} … {kinds[-1]}"


def show_shape(value: Any) -> Any:
    """The fields and the types of what they hold; of a list, those of its first item."""
    match value:
        case dict():
            return {name: show_shape(each) for name, each in value.items()}
        case list():
            return [show_shape(each) for each in value[:1]]
        case None:
            return None
        case _:
            return type(value).__name__
