"""OpenAI's Responses API: the wire format, and the reader that turns its events into parts.

A response is a list of *items* (a message, reasoning, a function call, a call of one of the provider's own tools), and
almost every event is about one of them. An item is identified by its index in the list, `output_index`, because some
hosts send another item id with every event. The content of an item arrives up to three times: in deltas, whole in a
`….done` event, and whole again when the item is done. Deltas are emitted as they arrive; of the whole, only what no
delta contained. So a host that drops deltas, or sends none, loses nothing.

For the way back (request.py) a block's metadata holds: for text, the message's `id` and `phase`; for reasoning, its
`id` and `encrypted_content`, or nothing if it was not encrypted; for a function call, its `id`, and `custom` if its
input was plain text; for the provider's own calls, the whole `item`. Those calls are shown under ids of at most 40
characters, the maximum in a prompt (loop/prompt/clean.py); the true id is in the item.

A refusal is text and ends the reply as `content_filter`. Every unknown event counts as a sign of life.

Must stay true (tests/models/test_openai_responses.py): the parts of a stream make the same blocks wherever its deltas
stop; an incomplete item is never emitted as complete; for any input, only `ModelFailed` or a decoding error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeVar

import msgspec

from indelible import content
from indelible.content.parts import MAX_TOKENS
from indelible.errors import ModelFailed
from indelible.models.failures.classify import classify_response
from indelible.models.http.http_model import WireRequest, make_decoder
from indelible.models.http.sse import SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call
from indelible.models.providers.openai_responses import items
from indelible.models.providers.openai_responses.request import CUSTOM_INPUT, Item, get_text, write_call

E = TypeVar("E")
_PROVIDER: Final = "openai"
_UNNAMED: Final = "message"
"""The name of an event without an `event:` line."""

_ALIVE: Final = (content.KeepAlive(),)
_MAX_ID_CHARS: Final = 40
_LOCAL_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
_OTHER_OWN_CALLS: Final = frozenset({"mcp_list_tools", "mcp_approval_request", "program"})
"""Calls of the provider's own tools, in addition to every type that ends with `_call`."""

_CUT: Final[Item] = {"status": "incomplete"}
"""The item, or response, that stands for an interrupted one."""


class ResponsesWire:
    """The wire format of OpenAI's Responses API and of compatible servers."""

    name = _PROVIDER

    def write(self, call: Call, model: str, profile: Profile) -> WireRequest:  # noqa: ARG002  (part of the protocol)
        return write_call(call, model)

    def authorise(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def open_reader(self, call: Call, profile: Profile) -> ResponsesReader:  # noqa: ARG002  (part of the protocol)
        return ResponsesReader()


# --- events: the fields that are read ----------------------------------------------------


class _Kind(msgspec.Struct, gc=False):
    type: str | None = None
    error: object = None


class _Place(msgspec.Struct, gc=False):
    """Which item an event is about, and which piece of it. Hosts that omit these have one of each."""

    output_index: int | None = 0
    content_index: int | None = 0
    summary_index: int | None = 0


class _Delta(_Place, gc=False):
    delta: str | None = None


class _Done(_Place, gc=False):
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None


class _ItemEvent(_Place):
    item: Item | None = None


class _AnnotationEvent(_Place):
    annotation: Item | None = None


class _ResponseEvent(msgspec.Struct):
    response: Item | None = None


_decode_kind: Final[Callable[[bytes], _Kind]] = make_decoder(_Kind)
_decode_delta: Final[Callable[[bytes], _Delta]] = make_decoder(_Delta)
_decode_done: Final[Callable[[bytes], _Done]] = make_decoder(_Done)
_decode_item: Final[Callable[[bytes], _ItemEvent]] = make_decoder(_ItemEvent)
_decode_annotation: Final[Callable[[bytes], _AnnotationEvent]] = make_decoder(_AnnotationEvent)
_decode_response: Final[Callable[[bytes], _ResponseEvent]] = make_decoder(_ResponseEvent)


# --- the reader --------------------------------------------------------------------------


class ResponsesReader:
    """Reads one response. `_items` are the open items by index."""

    def __init__(self) -> None:
        self.complete = False
        self.over = False
        self._items: dict[int, items.OpenMessage | items.OpenThought | items.OpenCall] = {}
        self._text: items.OpenText | None = None
        self._own_calls: dict[str, items.OpenCall] = {}
        self._ids_made = 0
        self._ended: set[int] = set()
        self._ended_items = 0
        self._called = False
        self._refused = False
        self._response: Item = {}

    def read(self, event: SseEvent) -> Sequence[content.Part]:
        kind: str | None = event.event
        if kind == "response.output_text.delta":
            return self._read_text(event.data)
        if kind == _UNNAMED:
            kind = _read_kind(event.data)
        read = self._READ.get(kind)
        return _ALIVE if read is None else read(self, event.data)

    def finish(self) -> content.Finish:
        response = self._response
        cut_by = _read_cut(response)
        reason: content.FinishReason = "tool_calls" if self._called else "stop"
        if cut_by == "content_filter" or self._refused:
            reason = "content_filter"
        elif cut_by is not None:
            reason = "length"
        emitted = {
            "model": response.get("model"),
            "service_tier": response.get("service_tier"),
            "incomplete_reason": cut_by,
        }
        return content.Finish(
            reason=reason,
            usage=_read_usage(response.get("usage")),
            response_id=get_text(response, "id"),
            metadata={name: value for name, value in emitted.items() if isinstance(value, str)} or None,
        )

    def resume(self) -> Call | None:
        """Always None: a response does not pause."""
        return None

    # --- text ---

    def _read_text(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_delta(data)
        delta = event.delta
        if not delta:
            return ()
        text = self._text
        if text is not None and text.content_index == event.content_index and text.output_index == event.output_index:
            return (text.emit(delta),)
        parts: list[content.Part] = []
        text = self._find_text(event, parts)
        return (*parts, text.emit(delta))

    def _read_refusal(self, data: bytes) -> Sequence[content.Part]:
        self._refused = True
        return self._read_text(data)

    def _read_text_done(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_done(data)
        whole = event.text or event.refusal
        self._refused = self._refused or bool(event.refusal)
        parts: list[content.Part] = []
        if whole and self._is_message_open(event):
            self._emit_text(event, whole, parts)
        return parts

    def _read_annotation(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_annotation(data)
        parts: list[content.Part] = []
        if event.annotation and self._is_message_open(event):
            self._find_text(event, parts).sources += 1
            parts.append(self._make_source(event.annotation))
        return parts

    def _is_message_open(self, place: _Place) -> bool:
        return isinstance(self._items.get(place.output_index or 0), items.OpenMessage)

    def _emit_text(self, place: _Place, whole: str, parts: list[content.Part]) -> items.OpenText:
        """Emit what no delta contained of this text."""
        text = self._find_text(place, parts)
        if rest := items.find_rest(whole, text.emitted):
            parts.append(text.emit(rest))
        return text

    def _find_text(self, place: _Place, parts: list[content.Part]) -> items.OpenText:
        """The text at this place; a new one is announced in `parts`."""
        index, content_index = place.output_index or 0, place.content_index or 0
        message = self._items.get(index)
        if not isinstance(message, items.OpenMessage):
            parts += self._finish_item(index, _CUT)
            message = self._items[index] = items.OpenMessage()
        text = message.texts.get(content_index)
        if text is None:
            text = message.texts[content_index] = items.OpenText(self._make_id("text"), index, content_index)
            parts.append(content.TextStart(text.id))
        self._text = text
        return text

    # --- reasoning ---

    def _read_summary(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_delta(data)
        return self._think(event, ("summary", event.summary_index or 0))

    def _read_thinking(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_delta(data)
        return self._think(event, ("content", event.content_index or 0))

    def _think(self, event: _Delta, part: tuple[str, int]) -> Sequence[content.Part]:
        index = event.output_index or 0
        thought = self._items.get(index)
        if not event.delta:
            return ()
        if isinstance(thought, items.OpenThought):
            return (thought.emit(part, event.delta),)
        parts = self._finish_item(index, _CUT)
        thought = self._items[index] = items.OpenThought(self._make_id("reasoning"))
        return (*parts, content.ReasoningStart(thought.id), thought.emit(part, event.delta))

    # --- calls ---

    def _read_arguments(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_delta(data)
        call = self._items.get(event.output_index or 0)
        return (call.emit(event.delta),) if isinstance(call, items.OpenCall) and event.delta else ()

    def _read_arguments_done(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_done(data)
        call = self._items.get(event.output_index or 0)
        return list(call.emit_rest(event.arguments)) if isinstance(call, items.OpenCall) and event.arguments else ()

    # --- items ---

    def _read_item_added(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_item(data)
        index = event.output_index or 0
        return [*self._finish_item(index, _CUT), *self._open_item(index, event.item or {})]

    def _read_item_done(self, data: bytes) -> Sequence[content.Part]:
        event = _decode_item(data)
        return self._read_whole_item(event.output_index or 0, event.item or {})

    def _read_whole_item(self, index: int, item: Item) -> list[content.Part]:
        """A complete item, of which deltas may have arrived."""
        opened = () if index in self._items else self._open_item(index, item)
        if index not in self._items:  # it is emitted in one piece, or not at all
            self._note_end(index)
        is_answer = (get_text(item, "type") or "").endswith("_output")  # to one of the provider's own calls
        own_call = self._own_calls.get(get_text(item, "call_id") or "") if is_answer else None
        answered = items.read_results(own_call, item) if own_call is not None else ()
        return [*opened, *self._finish_item(index, item), *answered]

    def _open_item(self, index: int, item: Item) -> Sequence[content.Part]:
        kind = get_text(item, "type") or ""
        if kind == "message":
            self._items[index] = items.OpenMessage()
        elif kind == "reasoning":
            thought = self._items[index] = items.OpenThought(self._make_id("reasoning"))
            return (content.ReasoningStart(thought.id),)
        elif kind in _LOCAL_CALLS:
            self._called = True
            spare = self._make_id("call")
            call = items.OpenCall(
                get_text(item, "call_id") or get_text(item, "id") or spare,
                get_text(item, "name") or "",
                own=False,
                wrapped_in=CUSTOM_INPUT if kind == "custom_tool_call" else None,
            )
            self._items[index] = call
            return (content.ToolInputStart(call.id, call.name),)
        elif kind.endswith("_call") or kind in _OTHER_OWN_CALLS:
            spare = self._make_id("call")
            call = items.OpenCall(
                (get_text(item, "id") or spare)[-_MAX_ID_CHARS:],
                items.name_own_call(kind, item),
                own=True,
                wrapped_in="code" if kind == "code_interpreter_call" else None,
            )
            self._items[index] = call
            return (content.ToolInputStart(call.id, call.name, provider_executed=True, standalone=True),)
        return ()

    def _finish_item(self, index: int, item: Item) -> list[content.Part]:
        """End the open item at this index. `item` is its complete form, or empty if that never arrived."""
        parts: list[content.Part] = []
        if index in self._items:
            self._note_end(index)
        match self._items.get(index):
            case items.OpenMessage() as message:
                self._finish_message(index, item, parts)
                parts += [content.TextEnd(text.id, items.identify_message(item)) for text in message.texts.values()]
                self._text = None
            case items.OpenThought() as thought:
                parts += thought.finish(item)
            case items.OpenCall() as call if item.get("status") != "incomplete":
                parts += call.finish(item)
                if call.own:
                    self._own_calls[get_text(item, "call_id") or call.id] = call
                    parts += items.read_results(call, item)
        self._items.pop(index, None)
        return parts

    def _note_end(self, index: int) -> None:
        self._ended.add(index)
        self._ended_items += 1

    def _finish_message(self, index: int, item: Item, parts: list[content.Part]) -> None:
        for at, piece in enumerate(items.list_objects(item.get("content"))):
            refusal = get_text(piece, "refusal")
            self._refused = self._refused or refusal is not None
            if whole := get_text(piece, "text") or refusal:
                text = self._emit_text(_Place(output_index=index, content_index=at), whole, parts)
                parts += map(self._make_source, items.list_objects(piece.get("annotations"))[text.sources :])

    def _make_source(self, annotation: Item) -> content.Source:
        """A citation: of a page by its URL, of a file by its name. The other fields locate it in the text."""
        url, title, filename = (get_text(annotation, name) for name in ("url", "title", "filename"))
        details = {name: value for name, value in annotation.items() if name not in {"url", "title", "filename"}}
        return content.Source(self._make_id("source"), url=url, title=title or filename, metadata=details or None)

    def _make_id(self, kind: str) -> str:
        self._ids_made += 1
        return f"{kind}-{self._ids_made}"

    # --- the end ---

    def _read_progress(self, data: bytes) -> Sequence[content.Part]:
        """Usage, if the server counts the input first."""
        counted = _read_usage((_decode_response(data).response or {}).get("usage"))
        return (content.UsageUpdate(counted),) if counted is not None and counted.input_tokens else _ALIVE

    def _read_completed(self, data: bytes) -> Sequence[content.Part]:
        response = _decode_response(data).response or {}
        if response.get("status") == "failed":
            raise _fail(response)
        return self._end(response)

    def _read_incomplete(self, data: bytes) -> Sequence[content.Part]:
        return self._end({**(_decode_response(data).response or {}), **_CUT})

    def _end(self, response: Item) -> list[content.Part]:
        """Emit what only the response itself contains: items that no event has ended."""
        parts: list[content.Part] = []
        output = items.list_objects(response.get("output"))
        has_unseen = len(output) > self._ended_items + len(self._items)
        for index, item in enumerate(output):
            if index in self._items or (has_unseen and index not in self._ended):
                parts += self._read_whole_item(index, item)
        for index, left in list(self._items.items()):
            is_known = not isinstance(left, items.OpenCall) or bool(left.emitted)
            parts += self._finish_item(index, {} if _read_cut(response) is None and is_known else _CUT)
        self._response = response
        self.complete = self.over = True
        return parts

    def _read_failed(self, data: bytes) -> Sequence[content.Part]:
        raise _fail(_decode_response(data).response or {})

    def _read_error(self, data: bytes) -> Sequence[content.Part]:
        raise classify_response(provider=_PROVIDER, status=None, body=data)

    _READ: ClassVar[dict[str | None, Callable[[ResponsesReader, bytes], Sequence[content.Part]]]] = {
        "response.output_text.delta": _read_text,
        "response.output_text.done": _read_text_done,
        "response.output_text.annotation.added": _read_annotation,
        "response.refusal.delta": _read_refusal,
        "response.refusal.done": _read_text_done,
        "response.reasoning_summary_text.delta": _read_summary,
        "response.reasoning_text.delta": _read_thinking,
        "response.function_call_arguments.delta": _read_arguments,
        "response.function_call_arguments.done": _read_arguments_done,
        "response.custom_tool_call_input.delta": _read_arguments,
        "response.mcp_call_arguments.delta": _read_arguments,
        "response.code_interpreter_call_code.delta": _read_arguments,
        "response.output_item.added": _read_item_added,
        "response.output_item.done": _read_item_done,
        "response.in_progress": _read_progress,
        "response.completed": _read_completed,
        "response.incomplete": _read_incomplete,
        "response.failed": _read_failed,
        "error": _read_error,
    }


# --- rare events -------------------------------------------------------------------------


def _read_kind(data: bytes) -> str | None:
    """The kind of an event without a name, from its data."""
    if data.strip() == b"[DONE]":
        return None
    event = _decode_kind(data)
    return event.type or ("error" if event.error else None)


def _read_cut(response: Item) -> str | None:
    """Why the response is incomplete; None if it is complete."""
    if response.get("status") != "incomplete":
        return None
    details = response.get("incomplete_details")
    return (get_text(details, "reason") if isinstance(details, dict) else None) or "unknown"


def _read_usage(usage: object) -> content.Usage | None:
    if not isinstance(usage, dict):
        return None
    given, made = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return content.Usage(
        input_tokens=_get_count(usage, "input_tokens"),
        output_tokens=_get_count(usage, "output_tokens"),
        reasoning_tokens=_get_count(made, "reasoning_tokens"),
        cache_read_tokens=_get_count(given, "cached_tokens"),
        cache_write_tokens=_get_count(given, "cache_write_tokens"),
    )


def _fail(response: Item) -> ModelFailed:
    error = response.get("error") or {"code": "server_error", "message": "The response failed without a reason."}
    return classify_response(provider=_PROVIDER, status=None, body={"error": error})


# --- values that may be anything ---------------------------------------------------------


def _get_count(counts: object, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if isinstance(value, int) and 0 < value <= MAX_TOKENS else 0
