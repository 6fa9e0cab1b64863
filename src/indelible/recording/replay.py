"""What was recorded, taken out of the database: a run as a document, and a response replayed.

*As a document.* The result is the JSON of a `WholeRun`, but it is never all in memory: the tree of the run is loaded
first, and its exchanges one by one. So a run of any length takes the memory of one exchange, and a slow reader holds
nothing open in the database. If the run is deleted meanwhile, writing raises `NotFound` at that point, and the pieces
so far are not a complete document: a reader that asks again gets a 404.

*Replayed*, offline, through the same adapter and the same loop.
When a reply looks wrong, the question is whether the provider sent it or we misread it. Here the recorded body is what
comes out of the wire; everything behind it is production code: decoding, the adapter, the splitter, the assembler.
Redacted values stay redacted. A body whose middle is missing ends where the gap begins, because its content is unknown.

A recording is a small JSON document, so it can be saved and become a test fixture (`indelible.testing.RecordedModel`).

Must stay true: a replay gives the same result as the recorded call (tests/recording/test_replay.py); the pieces of a
document together are the run, and no more than an exchange or two of it is in memory (test_reading_records.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from indelible.api.records import AttemptRecord, AttemptSummary, RunTree
from indelible.clock import Clock, SystemClock
from indelible.content import Block, Message, Text, ToolResult, Usage, encode
from indelible.errors import Invalid, ModelFailed, NotFound
from indelible.loop.host import TurnFailed
from indelible.loop.options import TurnOptions
from indelible.loop.run import run
from indelible.models.catalog import make_wire_format
from indelible.models.http.hooks import Answer, HttpRequest
from indelible.models.http.http_model import HttpModel
from indelible.models.profile import find_profile
from indelible.models.retry import RetryPolicy
from indelible.recording.storage import RecordStore
from indelible.redaction.redact import GAP

_WIRES: Final = {"/messages": "anthropic", "/responses": "openai", "/chat/completions": "openai-chat"}
_PIECE_BYTES: Final = 4096
_ONE_TRY: Final = RetryPolicy(max_attempts=1)


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded response, and the wire format to read it with."""

    wire: str
    provider: str
    model: str
    status: int
    headers: dict[str, str]
    body: str

    def save(self, path: Path) -> None:
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        except OSError as error:
            raise Invalid(f"{path} cannot be written: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> Recording:
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error.strerror}.") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{path} is not a recording: {error}.") from error


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay: blocks, and how it ended. `failure` is the text that the user would have seen."""

    blocks: Sequence[Block]
    reason: str | None = None
    usage: Usage | None = None
    failure: str | None = None


def make_recording(attempt: AttemptRecord, *, model: str | None) -> Recording | None:
    """The replayable part of an exchange; None if there was no response, or its wire format is unknown."""
    host, path = _split_address(attempt.url)
    wire = next((wire for ending, wire in _WIRES.items() if path.endswith(ending)), None)
    if wire is None or attempt.status_code is None:
        return None
    provider, _, name = (model or "").partition(":")
    name, at, _ = name.partition("@http")
    return Recording(
        wire=wire,
        provider=host if at and wire == "openai-chat" else provider or wire,
        model=name or "unknown",
        status=attempt.status_code,
        headers=attempt.response_headers or {},
        body=GAP.split(attempt.response_body, maxsplit=1)[0],
    )


def _split_address(url: str) -> tuple[str, str]:
    """Host and path. Split by hand, because a redacted address may no longer parse."""
    authority, slash, rest = url.partition("://")[2].partition("/")
    return authority.rpartition("@")[2], slash + rest.partition("?")[0].partition("#")[0]


class ReplayedModel(HttpModel):
    """Answers every call with the recording."""

    def __init__(self, recording: Recording, *, clock: Clock | None = None) -> None:
        super().__init__(
            make_wire_format(recording.wire, official=False, provider=recording.provider),
            provider=recording.provider,
            name=recording.model,
            base_url="http://recording.invalid",
            headers={},
            profile=find_profile(recording.wire, recording.model, provider_id=None),
            http=_Player(recording),
            clock=clock or SystemClock(),
        )


class RecordedModel(ReplayedModel):
    """A reply that looked wrong, kept as a test: it replays the file on every call. It makes no titles.

    `indelible debug replay RUN --save strange.json` saves one, and a test replays it through the real adapter:

        async with indelible.open("test.db", model=RecordedModel("strange.json")) as app:
            ...
    """

    def __init__(self, path: Path | str, *, clock: Clock | None = None) -> None:
        super().__init__(Recording.load(Path(path)), clock=clock)
        self.traits = replace(self.traits, makes_titles=False)


async def replay(recording: Recording) -> Replayed:
    """Replay a recording. Tools are not run, so there are no tool results."""
    question = Message(role="user", blocks=[Text("(a recording)")])
    end = await run(ReplayedModel(recording), [question], options=TurnOptions(max_steps=1, retry=_ONE_TRY))
    failure: str | None = None
    if isinstance(end, TurnFailed):
        if not isinstance(end.error, ModelFailed):
            raise end.error
        detail = end.error.detail
        failure = end.error.message if detail is None else f"{end.error.message} ({detail})"
    if end.step is None:
        return Replayed(blocks=[], failure=failure)
    step = end.step
    blocks = [block for block in step.blocks if not isinstance(block, ToolResult) or block.provider_executed]
    return Replayed(blocks=blocks, reason=step.finish_reason, usage=step.usage, failure=failure)


class _Player:
    """Takes the place of the network."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    @asynccontextmanager
    async def send(self, request: HttpRequest) -> AsyncIterator[Answer]:
        yield _PlayedResponse(self._recording, request.method)


class _PlayedResponse:
    def __init__(self, recording: Recording, method: str) -> None:
        self.status = recording.status
        self.headers = {name.lower(): value for name, value in recording.headers.items()}
        self.method = method
        self._left = recording.body.encode()

    async def read(self) -> bytes:
        piece, self._left = self._left[:_PIECE_BYTES], self._left[_PIECE_BYTES:]
        return piece

    def settle(self) -> None:
        """Does nothing: no exchange is recorded."""

    async def aclose(self) -> None:
        self._left = b""


# --- a run as a document ---

_OPEN_END: Final = len("]}")
"""The end of a run and of a step, after their empty list of children. Without it, children can be appended."""


async def load_exchange(records: RecordStore, line: AttemptSummary) -> AttemptRecord:
    """The content of an exchange in a tree. Raises `NotFound` if the run was deleted meanwhile."""
    attempt = await records.load_attempt(line.chat_id, line.run_id, line.step, line.number)
    if attempt is None:
        raise NotFound("The run was deleted while it was read.")
    return attempt


async def write_run(records: RecordStore, run: RunTree) -> AsyncIterator[bytes]:
    """The run with all its content: a line for itself, for each step and for each exchange."""
    yield encode(replace(run, steps=[]))[:-_OPEN_END]
    for place, step in enumerate(run.steps):
        yield (b",\n" if place else b"\n") + encode(replace(step, attempts=[]))[:-_OPEN_END]
        for number, line in enumerate(step.attempts):
            yield (b",\n" if number else b"\n") + encode(await load_exchange(records, line))
        yield b"]}"
    yield b"]}\n"
