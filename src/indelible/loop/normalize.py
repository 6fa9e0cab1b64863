"""Normalizing the stream of a model.

Between the model and every consumer (journal, readers, the message) this one place puts a stream in order, so that
no consumer has to:

  * thinking that is written into the text is moved to reasoning (loop/thinking.py);
  * split surrogate pairs are joined, and a lone half is replaced: neither JSON nor a database
    accepts it;
  * a second complete call under an id that was used already gets an id of its own, so that every
    call can have exactly one result;
  * reasoning is stamped with the time it began and ended, and a provider's own call with whether
    that provider accepts it unanswered, so that `finalize` needs nothing but the parts;
  * a number of tokens that cannot be true counts as unknown;
  * ids, names and the number of calls have limits: a part beyond them fails the attempt, which keeps what came before.

An ordinary part passes through as the same object. Text that is held back (the beginning of a possible
tag, the first half of a pair) is emitted with the next part or by `release`, which the loop calls
before it saves, so that the stored text is the published text.

Must stay true (tests/loop/test_normalize.py): no character is lost; the outcome does not depend on
the boundaries of deltas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar, cast, get_args

from msgspec.structs import replace

from indelible import content
from indelible.clock import Clock
from indelible.content.unicode import clean_text
from indelible.errors import ModelFailed
from indelible.loop.thinking import Segment, SplitterState, ThinkingSplitter
from indelible.models.protocol import Model, traits_of

P = TypeVar("P", bound=content.Part)
U = TypeVar("U", bound=content.Finish | content.UsageUpdate)
PART_TYPES: Final[frozenset[type]] = frozenset(get_args(content.Part))
ACCEPTS_UNANSWERED_CALLS: Final = frozenset({"openai"})
"""Providers whose own calls (such as web search) may be in a history without a result."""

MAX_ID_CHARACTERS: Final = 256
"""Of a block or a call. A provider's have at most about 100."""
MAX_NAME_CHARACTERS: Final = 128
"""Of a tool, as a model calls it. A tool that exists has at most 64."""
MAX_CALLS: Final = 128
"""How many calls one model call may make."""
_SAVED_SO_FAR: Final = "What came before is saved. Retry, or choose another model."
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Normalizer:
    """The state of one attempt's stream."""

    def __init__(
        self,
        *,
        provider: str,
        clock: Clock,
        inline_thinking: bool = True,
        thinks_first: bool = False,
        thinking_state: SplitterState | None = None,
    ) -> None:
        self._clock = clock
        self._standalone = provider in ACCEPTS_UNANSWERED_CALLS
        self._inline_thinking = inline_thinking
        self._thinks_first = thinks_first
        self._thinking_state = thinking_state
        self._texts: dict[str, _TextBlock] = {}
        self._last_text: _TextBlock | None = None
        self._halves: dict[tuple[type, str], str] = {}
        self._calls = _CallIds()

    @classmethod
    def of(cls, model: Model, *, clock: Clock, thinking_state: SplitterState | None = None) -> Normalizer:
        """For the streams of this model, with its traits."""
        traits = traits_of(model)
        return cls(
            provider=model.provider,
            clock=clock,
            inline_thinking=traits.inline_thinking,
            thinks_first=traits.thinks_first,
            thinking_state=thinking_state,
        )

    @property
    def thinking_state(self) -> SplitterState | None:
        """The splitter's state after the last text block: a continuing attempt starts there."""
        return self._thinking_state if self._last_text is None else self._last_text.splitter.state

    def feed(self, part: content.Part) -> Sequence[content.Part]:
        """The parts to publish for this part."""
        kind = type(part)
        if kind is content.TextDelta:
            return self._feed_text(cast(content.TextDelta, part))
        if kind not in PART_TYPES:
            raise _reject(part)
        match part:
            case content.ReasoningDelta() | content.ToolInputDelta():
                return self._feed_delta(part)
            case content.TextStart():
                return self._start_text(part)
            case content.TextEnd():
                return self._end_text(part)
            case content.ReasoningStart(at=None):
                return (replace(_clean(part), at=self._clock.now()),)
            case content.ReasoningEnd():
                stamped = replace(_clean(part), at=part.at or self._clock.now())
                return (*self._release_half(content.ReasoningDelta, part.id), stamped)
            case content.ToolInputStart() | content.ToolCall() | content.ToolInputEnd():
                return self._feed_call(part)
            case content.ToolResult(provider_executed=True):
                call_id = self._calls.current(part.call_id)
                return (_clean(part if call_id == part.call_id else replace(part, call_id=call_id)),)
            case content.Finish():
                return (*self.release(), _limit_usage(_clean(part)))
            case content.UsageUpdate():
                return (_limit_usage(_clean(part)),)
            case _:
                return (_clean(part),)

    def release(self) -> list[content.Part]:
        """Emit everything that was held back, because the stream is over."""
        released: list[content.Part] = []
        for kind, id_ in list(self._halves):
            released += self._release_half(kind, id_)
        for text in self._texts.values():
            released += text.release()
        return released

    # --- text ---

    def _feed_text(self, part: content.TextDelta) -> Sequence[content.Part]:
        delta = part.delta
        if type(delta) is not str or type(part.id) is not str:
            raise _reject(part, "its id and its delta have to be text")
        if len(part.id) > MAX_ID_CHARACTERS:
            raise _refuse_length("an id", part.id, MAX_ID_CHARACTERS)
        if not delta.isascii() or self._halves:
            delta = self._join(content.TextDelta, part.id, delta)
        if not self._inline_thinking:
            return (part,) if delta is part.delta else (content.TextDelta(part.id, delta),) if delta else ()
        text = self._texts.get(part.id)
        if text is None:
            text = self._open_text(part.id)
        return text.feed(part, delta)

    def _open_text(self, id_: str) -> _TextBlock:
        if self._last_text is None:
            splitter = ThinkingSplitter(thinks_first=self._thinks_first, state=self._thinking_state)
        else:
            splitter = ThinkingSplitter()
        text = self._last_text = self._texts[id_] = _TextBlock(id_, splitter, self._clock)
        return text

    def _start_text(self, part: content.TextStart) -> Sequence[content.Part]:
        part = _clean(part)
        if self._inline_thinking and part.id not in self._texts:
            self._open_text(part.id)
        return (part,)

    def _end_text(self, part: content.TextEnd) -> Sequence[content.Part]:
        released: list[content.Part] = list(self._release_half(content.TextDelta, part.id))
        text = self._texts.pop(part.id, None)
        if text is None:
            return (*released, _clean(part))
        return (*released, *text.release(), *text.end(_clean(part)))

    # --- surrogates ---

    def _feed_delta(self, part: content.ReasoningDelta | content.ToolInputDelta) -> Sequence[content.Part]:
        if type(part.delta) is not str or type(part.id) is not str:
            raise _reject(part, "its id and its delta have to be text")
        if len(part.id) > MAX_ID_CHARACTERS:
            raise _refuse_length("an id", part.id, MAX_ID_CHARACTERS)
        if isinstance(part, content.ToolInputDelta):
            part = self._calls.rename(part)
        elif part.delta:
            self._thinks_first = False  # the provider itself separates thinking and text
        if part.delta.isascii() and not self._halves:
            return (part,)
        delta = self._join(type(part), part.id, part.delta)
        if delta is part.delta:
            return (part,)
        return (replace(part, delta=delta),)

    def _join(self, kind: type, id_: str, delta: str) -> str:
        """`delta` with pairs joined and lone halves replaced; a half at its end is held back."""
        held = self._halves.pop((kind, id_), "")
        if not held and not _SURROGATE.search(delta):
            return delta
        delta = held + delta
        if delta and "\ud800" <= delta[-1] <= "\udbff":
            self._halves[kind, id_] = delta[-1]
            delta = delta[:-1]
        return clean_text(delta)

    def _release_half(self, kind: type, id_: str) -> Sequence[content.Part]:
        if self._halves.pop((kind, id_), None) is None:
            return ()
        if kind is content.TextDelta and id_ in self._texts:
            return self._texts[id_].feed(None, "\ufffd")
        return (kind(id=id_, delta="\ufffd"),)

    # --- calls ---

    def _feed_call(
        self, part: content.ToolInputStart | content.ToolCall | content.ToolInputEnd
    ) -> Sequence[content.Part]:
        released = self._release_half(content.ToolInputDelta, self._calls.current(part.id))
        part = self._calls.rename(_clean(part))
        if self._standalone and not isinstance(part, content.ToolInputEnd) and part.provider_executed:
            part = replace(part, standalone=True)
        return (*released, part)


class _CallIds:
    """Gives a call that reuses the id of a finished one a new id."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._used: set[str] = set()
        self._closed: set[str] = set()
        self._complete: set[str] = set()

    def current(self, id_: str) -> str:
        return self._names.get(id_, id_)

    def rename(self, part: Any) -> Any:
        given: str = part.id
        id_ = self.current(given)
        finished = self._closed if isinstance(part, content.ToolInputStart) else self._complete
        if isinstance(part, content.ToolInputStart | content.ToolCall) and id_ in finished:
            number = 2
            while f"{given}~{number}" in self._used:
                number += 1
            id_ = self._names[given] = f"{given}~{number}"
        self._used.add(id_)
        if len(self._used) > MAX_CALLS:
            raise ModelFailed(f"The model made more than {MAX_CALLS} tool calls in one reply. {_SAVED_SO_FAR}")
        if isinstance(part, content.ToolCall):
            self._complete.add(id_)
        if isinstance(part, content.ToolCall | content.ToolInputEnd):
            self._closed.add(id_)
        return part if id_ == given else replace(part, id=id_)


class _TextBlock:
    """One text block from the model, which thinking inside it may split into several blocks.

    The first piece keeps the id; the text after thinking is `id.2`, `id.3`…, and thinking is
    `id.thinking.1`, `id.thinking.2`…
    """

    def __init__(self, id_: str, splitter: ThinkingSplitter, clock: Clock) -> None:
        self.splitter = splitter
        self._id = id_
        self._clock = clock
        self._texts = 1
        self._thinkings = 0
        self._thinking = False
        self._open = id_

    def feed(self, part: content.TextDelta | None, delta: str) -> Sequence[content.Part]:
        segments = self.splitter.feed(delta)
        if len(segments) == 1:
            only = segments[0]
            if not only.thinking and not self._thinking:
                if part is not None and only.text is part.delta and self._open is self._id:
                    return (part,)
                return (content.TextDelta(self._open, only.text),)
        return self._emit(segments)

    def release(self) -> list[content.Part]:
        return self._emit(self.splitter.finish())

    def end(self, part: content.TextEnd) -> Sequence[content.Part]:
        if self._thinking:
            return (content.ReasoningEnd(id=self._open, at=self._clock.now()),)
        return (replace(part, id=self._open),)

    def _emit(self, segments: Sequence[Segment]) -> list[content.Part]:
        emitted: list[content.Part] = []
        for segment in segments:
            if segment.thinking != self._thinking:
                emitted += self._switch()
            kind = content.ReasoningDelta if segment.thinking else content.TextDelta
            emitted.append(kind(self._open, segment.text))
        return emitted

    def _switch(self) -> list[content.Part]:
        closed = self._open
        self._thinking = not self._thinking
        if self._thinking:
            self._thinkings += 1
            self._open = f"{self._id}.thinking.{self._thinkings}"
            return [content.TextEnd(closed), content.ReasoningStart(id=self._open, at=self._clock.now())]
        self._texts += 1
        self._open = f"{self._id}.{self._texts}"
        return [content.ReasoningEnd(id=closed, at=self._clock.now()), content.TextStart(self._open)]


def _limit_usage(part: U) -> U:
    limited = None if part.usage is None else part.usage.drop_implausible()
    return part if limited == part.usage else replace(part, usage=limited)


def _clean(part: P) -> P:
    """The part, checked, with text that can be encoded."""
    try:
        decoded = content.decode_part(content.encode(part))
    except (TypeError, ValueError, RecursionError) as error:
        raise _reject(part, str(error)) from error
    if not isinstance(part, content.File | content.Source):  # a file's name or a source's address is of another kind
        _check_lengths(decoded)
    return part if decoded == part else cast(P, decoded)


def _check_lengths(part: content.Part) -> None:
    id_ = getattr(part, "id", "") or getattr(part, "call_id", "")
    if len(id_) > MAX_ID_CHARACTERS:
        raise _refuse_length("an id", id_, MAX_ID_CHARACTERS)
    name = getattr(part, "name", "")
    if len(name) > MAX_NAME_CHARACTERS:
        raise _refuse_length("a tool name", name, MAX_NAME_CHARACTERS)


def _refuse_length(what: str, text: str, limit: int) -> ModelFailed:
    return ModelFailed(f"The model sent {what} of {len(text):,} characters (limit {limit}). {_SAVED_SO_FAR}")


def _reject(part: object, why: str = "") -> ModelFailed:
    detail = f": {why}" if why else ""
    return ModelFailed(f"The model yielded a {type(part).__name__}; expected a part (see indelible.content){detail}.")
