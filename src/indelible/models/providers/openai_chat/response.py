"""OpenAI Chat Completions and every server that speaks it: vLLM, Ollama, OpenRouter, Groq, DeepSeek, Mistral, Gemini, …

The format has neither event names nor starts and ends of blocks: a stream is a list of chunks, each with a `delta`. So
the reader keeps one open block, text or reasoning, and ends it when something else arrives. Dialects add fields rather
than change them, and one reader handles them all without knowing which server it is.

*Tool calls* arrive in pieces; tool_calls.py assembles them.

*The end* is a non-empty `finish_reason`: several servers send an empty one with every chunk, and proxies write `[DONE]`
even after a stream that was cut. After the end, only usage is read.

*What goes back* (request.py) is kept as metadata: the name of the reasoning field, if the model needs its reasoning
back; Gemini's signature of a call (`extra_content`); OpenRouter's `reasoning_details` of the reply, on its last call.

Must stay true (tests/models/test_openai_chat.py): each dialect's stream gives the same parts as OpenAI's would; an
arbitrary chunk raises only `ModelFailed` or a decoding error, and after the end nothing at all.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from indelible import content
from indelible.content.parts import MAX_TOKENS
from indelible.errors import ModelFailed
from indelible.models.failures.classify import classify_response
from indelible.models.http.http_model import WireRequest, make_decoder
from indelible.models.http.sse import SseEvent
from indelible.models.profile import Profile
from indelible.models.protocol import Call
from indelible.models.providers.openai_chat.request import write_body
from indelible.models.providers.openai_chat.tool_calls import THOUGHTS, CallPiece, Calls, Details, Function, list_dicts

_KEEP_ALIVE: Final = (content.KeepAlive(),)
_DONE: Final = b"[DONE]"
_UNFINISHED: Final = frozenset({"", "null", "none"})
_ORDINARY: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})

_REASONS: Final[dict[str, content.FinishReason]] = {
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("content_filter", "refusal", "safety", "sensitive", "prohibited_content"), "content_filter"),
}
"""What finish reasons mean. Any other is a `stop`, or `tool_calls` if there were calls."""

_FAILURES: Final = {
    **dict.fromkeys(("error", "abort", "cancelled", "network_error", "malformed_function_call"), "server_error"),
    "insufficient_system_resource": "server_is_overloaded",
}
"""Finish reasons that are failures, each with its code in models/failures/table.py."""


# --- chunks ------------------------------------------------------------------------------
# Every field may be missing or null. Rare fields, and those that differ between dialects, are `Any` and read by hand.


class _Delta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[CallPiece] | None = None
    function_call: Function | None = None
    annotations: Any = None
    images: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    usage: Any = None
    error: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    object: str | None = None
    x_groq: Any = None


_decode_chunk: Final[Callable[[bytes], _Chunk]] = make_decoder(_Chunk)


# --- the wire format ---------------------------------------------------------------------


class ChatWire:
    """`official`: the server is OpenAI itself, not a `provider` that speaks the same format."""

    name = "openai-chat"

    def __init__(self, *, official: bool, provider: str = name) -> None:
        self._official = official
        self._provider = provider

    def write(self, call: Call, model: str, profile: Profile) -> WireRequest:
        body, warnings = write_body(call, model=model, profile=profile, official=self._official)
        return WireRequest(path="/chat/completions", body=body, warnings=warnings)

    def authorise(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    def open_reader(self, call: Call, profile: Profile) -> ChatReader:
        return ChatReader(
            provider=self._provider, returns_reasoning=profile.returns_reasoning, keeps_details=bool(call.tools)
        )


# --- one reply ---------------------------------------------------------------------------


class ChatReader:
    """Turns the chunks of one reply into parts.

    returns_reasoning: the model needs its reasoning back. keeps_details: the call has tools, so OpenRouter's details
    may have to go back, too.
    """

    def __init__(self, *, provider: str, returns_reasoning: bool, keeps_details: bool) -> None:
        self.complete = False
        self.over = False
        self._provider = provider
        self._returns_reasoning = returns_reasoning
        self._keeps_details = keeps_details
        self._open: type[content.TextDelta | content.ReasoningDelta] | None = None
        self._open_id = ""
        self._field: str | None = None
        self._given = 0
        self._calls = Calls()
        self._details = Details()
        self._refused = False
        self._finish_reason = ""
        self._usage: dict[str, Any] | None = None
        self._reported = 0

    def read(self, event: SseEvent) -> Sequence[content.Part]:
        data = event.data.strip()
        if self.complete:
            self._read_rest(data)
            return ()
        if data == _DONE:
            self.over = True
            return ()
        if event.event == "error":
            raise self._fail(data)
        if not data or data == b"null":
            return _KEEP_ALIVE
        chunk = _decode_chunk(data)
        if chunk.error:
            raise self._fail(data)
        parts: list[content.Part] = []
        if self._note_usage(chunk):
            self._report_usage(parts)
        if not chunk.choices:
            return parts or self._read_envelope(chunk, data)
        choice = chunk.choices[0]
        if choice.error:
            raise self._fail({"error": choice.error})
        delta = choice.delta
        if delta is None and not self._given and not self._calls:  # after the pieces, the whole message adds nothing
            delta = choice.message
        if delta is not None:
            self._read_delta(delta, parts)
        if choice.finish_reason is not None:
            self._end(choice.finish_reason, parts)
        return parts or _KEEP_ALIVE

    def finish(self) -> content.Finish:
        raw = self._finish_reason
        reason = _REASONS.get(raw, "stop")
        if self._refused:
            reason = "content_filter"
        elif reason == "stop" and self._calls:
            reason = "tool_calls"
        return content.Finish(
            reason=reason,
            usage=None if self._usage is None else _read_usage(self._usage),
            metadata=None if raw in _ORDINARY else {"finish_reason": raw},
        )

    def resume(self) -> None:
        """Always None: Chat Completions has no pauses."""

    def _read_envelope(self, chunk: _Chunk, data: bytes) -> Sequence[content.Part]:
        """A chunk without choices: a sign of life, unless it is a bare error, or Groq's."""
        if chunk.object == "error":
            raise self._fail(data)
        if error := _get(chunk.x_groq, "error"):
            raise self._fail({"error": error})
        return _KEEP_ALIVE

    def _read_rest(self, data: bytes) -> None:
        """After the end: usage, if there is any. Everything else is ignored."""
        if data == _DONE:
            self.over = True
            return
        try:
            self._note_usage(_decode_chunk(data))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return

    def _note_usage(self, chunk: _Chunk) -> bool:
        """The last one counts: some servers send a running count with every chunk."""
        usage = chunk.usage or _get(chunk.x_groq, "usage") or (chunk.choices and chunk.choices[0].usage)
        if usage and isinstance(usage, dict):
            self._usage = usage
            return True
        return False

    def _report_usage(self, parts: list[content.Part]) -> None:
        """Report a running count when it begins, and then whenever it has grown by a quarter: not with every token."""
        assert self._usage is not None
        usage = _read_usage(self._usage)
        if usage.input_tokens and 4 * usage.total_tokens >= 5 * self._reported:
            self._reported = usage.total_tokens
            parts.append(content.UsageUpdate(usage))

    def _fail(self, body: bytes | dict[str, Any]) -> ModelFailed:
        return classify_response(provider=self._provider, status=None, body=body)

    # --- content ---

    def _read_delta(self, delta: _Delta, parts: list[content.Part]) -> None:
        if delta.reasoning_content:
            self._add_reasoning(delta.reasoning_content, "reasoning_content", parts)
        elif delta.reasoning and isinstance(delta.reasoning, str):
            self._add_reasoning(delta.reasoning, "reasoning", parts)
        elif delta.reasoning_details:
            for detail in list_dicts(delta.reasoning_details):
                for text in filter(None, (_get_text(detail, key) for key in THOUGHTS)):
                    self._add_reasoning(text, None, parts)
        if delta.reasoning_details and self._keeps_details:
            self._details.add(delta.reasoning_details)
        if delta.content:
            if isinstance(delta.content, str):
                self._add_text(delta.content, parts)
            else:
                self._read_pieces(delta.content, parts)
        if delta.refusal:
            self._refused = True
            self._add_text(delta.refusal, parts)
        if delta.tool_calls:
            self._close(parts)
            for piece in delta.tool_calls:
                self._calls.add(piece, parts)
        if delta.function_call is not None:
            self._close(parts)
            self._calls.add(CallPiece(index="function_call", function=delta.function_call), parts)
        if delta.annotations or delta.images:
            self._read_extras(delta, parts)

    def _add_text(self, text: str, parts: list[content.Part]) -> None:
        if self._open is not content.TextDelta:
            self._close(parts)
            self._open, self._open_id = content.TextDelta, self._make_id("text")
            parts.append(content.TextStart(self._open_id))
        parts.append(content.TextDelta(self._open_id, text))

    def _add_reasoning(self, text: str, field: str | None, parts: list[content.Part]) -> None:
        """`field` is the field that it arrived in, if it can go back there."""
        if self._open is not content.ReasoningDelta:
            self._close(parts)
            self._open, self._open_id = content.ReasoningDelta, self._make_id("reasoning")
            self._field = field
            parts.append(content.ReasoningStart(self._open_id))
        parts.append(content.ReasoningDelta(self._open_id, text))

    def _close(self, parts: list[content.Part]) -> None:
        if self._open is content.TextDelta:
            parts.append(content.TextEnd(self._open_id))
        elif self._open is content.ReasoningDelta:
            returned = self._returns_reasoning and self._field is not None
            parts.append(content.ReasoningEnd(self._open_id, metadata={"field": self._field} if returned else None))
        self._open = None

    def _make_id(self, kind: str) -> str:
        self._given += 1
        return f"{kind}_{self._given - 1}"

    def _read_pieces(self, pieces: list[Any], parts: list[content.Part]) -> None:
        """Content as a list (Mistral): pieces of text and of thinking."""
        for piece in pieces:
            if isinstance(piece, dict) and piece.get("type") == "thinking":
                for text in _list_texts(piece.get("thinking")):
                    self._add_reasoning(text, None, parts)
            else:
                for text in _list_texts([piece]):
                    self._add_text(text, parts)

    def _read_extras(self, delta: _Delta, parts: list[content.Part]) -> None:
        for annotation in list_dicts(delta.annotations):
            citation = annotation.get("url_citation")
            url, title, quote = (_get_text(citation, key) for key in ("url", "title", "content"))
            if url:
                parts.append(content.Source(id=self._make_id("source"), url=url, title=title, quote=quote))
        for image in list_dicts(delta.images):
            url = _get_text(image.get("image_url"), "url")
            file = _read_image(url) if url else None
            if file is not None:
                self._given += 1
                parts.append(file)

    def _end(self, finish_reason: str, parts: list[content.Part]) -> None:
        reason = finish_reason.lower().rpartition(":")[2].strip()
        if reason in _UNFINISHED:
            return
        if reason in _FAILURES:
            message = f"The reply ended with the reason {finish_reason}."
            raise self._fail({"error": {"code": _FAILURES[reason], "message": message}})
        self._close(parts)
        self._calls.end(parts, cut=reason in _REASONS, details=self._details.build())
        self._finish_reason = reason
        self.complete = True


# --- reading by hand ---------------------------------------------------------------------


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _get_text(value: Any, key: str) -> str | None:
    text = _get(value, key)
    return text if isinstance(text, str) else None


def _list_texts(value: Any) -> list[str]:
    """The texts in a string, or in a list of strings and of `{"text": …}`."""
    items = value if isinstance(value, list) else [value]
    texts = (item if isinstance(item, str) else _get_text(item, "text") for item in items)
    return [text for text in texts if text]


def _read_image(url: str) -> content.File | None:
    """An image that the model made, in a data URL or at another address."""
    if not url.startswith("data:"):
        return content.File(media_type="image/png", url=url)
    head, _, encoded = url.removeprefix("data:").partition(",")
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError:
        return None
    return content.File(media_type=head.partition(";")[0] or "image/png", data=data) if data else None


def _read_usage(usage: dict[str, Any]) -> content.Usage:
    """The token counts. A total above prompt plus completion is thinking, which xAI and Gemini count separately."""
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    prompt_details, completion_details = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    apart = max(0, _count(usage, "total_tokens") - prompt - completion)
    cached = _count(prompt_details, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens", "cached_tokens")
    return content.Usage(
        input_tokens=prompt,
        output_tokens=completion + apart,
        reasoning_tokens=max(apart, _count(completion_details, "reasoning_tokens")),
        cache_read_tokens=cached,
        cache_write_tokens=_count(prompt_details, "cache_write_tokens"),
    )


def _count(counts: Any, *names: str) -> int:
    """The first of these that is present and a plausible number of tokens."""
    for name in names:
        count = _get(counts, name)
        if isinstance(count, int | float) and 0 < count <= MAX_TOKENS:
            return int(count)
    return 0
