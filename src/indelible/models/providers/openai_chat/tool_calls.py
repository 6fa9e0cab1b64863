"""Assembling the tool calls of Chat Completions from pieces, and what OpenRouter needs back with them.

Pieces are told apart by an index, which some servers omit and some set to 0 for every call; ids are missing, empty, or
different in every piece. `Calls` decides which piece belongs to which call. A call ends when another one begins, if its
arguments are complete by then (otherwise they may continue), and at the end of the reply.

LiteLLM puts Gemini's signature of a call into its id, which is then thousands of characters long, and would stand in
every piece of the call. Such an id is kept once, in the call's metadata, and only its own server gets it back.

Must stay true (tests/models/test_openai_chat.py): each dialect's pieces give the same calls as OpenAI's would.
response.py reads the rest of a chunk.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from indelible.content import Metadata, Part, ToolCall, ToolInputDelta, ToolInputEnd, ToolInputStart, encode

_LONGEST_ID: Final = 200
"""Longer ones do not become the id of a call. The loop refuses what is much longer (loop/normalize.py)."""
_LONGEST_KEPT_ID: Final = 16 * 1024
GIVEN_ID: Final = "given_id"
"""The key of a call's metadata for an id of its server that is too long for one of ours."""
_MOST_CALLS: Final = 129
"""One more than the loop takes: nothing after it counts, and looking for the call of each piece stays cheap."""
_LONGEST_NAME: Final = 1000
_HELD_CHARACTERS: Final = 16 * 1024
"""How long arguments wait for a name. What is handed on counts in the limit of the reply, and what is held does not."""
THOUGHTS: Final = ("text", "summary")
"""The fields of a detail that contain text."""


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class CallPiece(msgspec.Struct, gc=False):
    index: int | str | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: Any = None


class _OpenCall(msgspec.Struct):
    """An unfinished call. `id` is ours; `given_id` is the server's, which may be empty."""

    id: str
    given_id: str
    name: str = ""
    chunks: list[str] = []
    extra_content: Any = None
    held: int = 0
    announced: bool = False
    ended: bool = False

    def add(self, name: str, arguments: str, parts: list[Part]) -> None:
        """A name arrives whole, in pieces, with every piece again, or late. Until then, arguments are held back."""
        if name and len(self.name) <= _LONGEST_NAME:
            self.name = name if name.startswith(self.name) else self.name + name
        if arguments:
            self.chunks.append(arguments)
        if not self.announced:
            self.held += len(arguments)
            if self.name or self.held > _HELD_CHARACTERS:
                self._announce(parts)
        elif arguments:
            parts.append(ToolInputDelta(self.id, arguments))

    def is_whole(self) -> bool:
        """Whether the arguments are a complete JSON object. Nothing can follow one."""
        if not self.chunks or not self.chunks[-1].rstrip().endswith("}"):
            return False
        try:
            return isinstance(msgspec.json.decode("".join(self.chunks)), dict)
        except (ValueError, RecursionError):
            return False

    def end(self, parts: list[Part], *, metadata: Metadata) -> None:
        if not self.announced:
            self._announce(parts)
        self.ended = True
        arguments = "".join(self.chunks)
        if isinstance(self.extra_content, dict):
            metadata = {"extra_content": self.extra_content, **metadata}
        if _is_kept(self.given_id):
            metadata = {GIVEN_ID: self.given_id, **metadata}
        parts.append(ToolInputEnd(self.id))
        parts.append(
            ToolCall(
                id=self.id,
                name=self.name,
                arguments=arguments if arguments.strip() else "{}",
                metadata=metadata or None,
            )
        )

    def _announce(self, parts: list[Part]) -> None:
        self.announced = True
        parts.append(ToolInputStart(self.id, self.name))
        parts += [ToolInputDelta(self.id, chunk) for chunk in self.chunks]


class Calls:
    """Which piece belongs to which call.

    The index decides; without one the id; without either it is the last call. But the piece starts a new call if it
    names a tool under a new id, or without an id while the call found is complete: Gemini and Ollama number every call
    0. A new id alone proves nothing: older vLLM servers invent one for every piece.
    """

    def __init__(self) -> None:
        self._all: list[_OpenCall] = []
        self._at: dict[int | str, _OpenCall] = {}
        self._ids: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, piece: CallPiece, parts: list[Part]) -> None:
        name = (piece.function and piece.function.name) or ""
        arguments = _write_arguments(piece.function.arguments) if piece.function else ""
        call = self._find(piece, name)
        if call is None:
            if not (name or arguments or piece.id) or len(self._all) == _MOST_CALLS:
                return
            call = self._begin(piece, parts)
        elif call.ended or (piece.id and name and call.is_whole()):
            return  # the whole call again
        call.given_id = call.given_id or piece.id or ""
        call.extra_content = piece.extra_content or call.extra_content
        call.add(name, arguments, parts)

    def end(self, parts: list[Part], *, cut: bool, details: list[dict[str, Any]]) -> None:
        """End the open calls; if the reply was `cut`, only the complete ones. `details` go with the last call."""
        for call in self._all:
            if not call.ended and (not cut or call.is_whole()):
                call.end(parts, metadata={"reasoning_details": details} if details and call is self._all[-1] else {})

    def _find(self, piece: CallPiece, name: str) -> _OpenCall | None:
        if piece.index is not None:
            found = self._at.get(piece.index)
        elif piece.id:
            found = next((call for call in self._all if call.given_id == piece.id), None)
        else:
            found = self._all[-1] if self._all else None
        if found is None or not name:
            return found
        is_other = piece.id != found.given_id if piece.id and found.given_id else not piece.id and found.is_whole()
        return None if is_other else found

    def _begin(self, piece: CallPiece, parts: list[Part]) -> _OpenCall:
        self.end(parts, cut=True, details=[])
        id_ = "" if _is_kept(piece.id or "") else piece.id or ""
        number = len(self._all)
        while not id_ or id_ in self._ids:
            id_ = f"call_{number}"
            number += 1
        call = _OpenCall(id_, piece.id or "")
        self._ids.add(id_)
        self._all.append(call)
        if piece.index is not None:
            self._at[piece.index] = call
        return call


def _is_kept(given_id: str) -> bool:
    """Whether a server's id is too long for one of ours, and short enough to be kept beside it."""
    return _LONGEST_ID < len(given_id) <= _LONGEST_KEPT_ID


def _write_arguments(arguments: Any) -> str:
    """The arguments as text; some servers send an object."""
    if isinstance(arguments, dict):
        return encode(arguments).decode()
    return arguments if isinstance(arguments, str) else ""


# --- what OpenRouter needs back ----------------------------------------------------------


class Details:
    """The `reasoning_details` of a reply. Adjacent pieces with one index form one detail and are signed as one."""

    def __init__(self) -> None:
        self._all: list[tuple[dict[str, Any], dict[str, list[str]]]] = []

    def add(self, pieces: Any) -> None:
        for piece in list_dicts(pieces):
            place = piece.get("type"), piece.get("index")
            if not self._all or place != (self._all[-1][0].get("type"), self._all[-1][0].get("index")):
                self._all.append(({}, {}))
            fields, texts = self._all[-1]
            for key, value in piece.items():
                if key in THOUGHTS and isinstance(value, str):
                    texts.setdefault(key, []).append(value)
                elif value is not None:
                    fields[key] = value

    def build(self) -> list[dict[str, Any]]:
        return [{**fields, **{key: "".join(chunks) for key, chunks in texts.items()}} for fields, texts in self._all]


def list_dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
