"""One message of a history, as the blocks that a provider accepts; and call ids and tool names that it accepts.

This module sees one message at a time. build.py decides which result answers which local call, and whether
the message is sent at all.

A message is *our own* if the model being called wrote it (unknown counts as yes). Only then is
private content sent back: signed reasoning, metadata, calls that the provider executed itself. The
model counts and not only the provider, because signatures are bound to it: Anthropic responds
"Invalid signature in thinking block" after a switch between two of its own models, and OpenAI ties
its items to the reasoning before them. For other models such calls become a short note in the
text. So do blocks that their role does not allow: only users send files, and only
replies have sources. A system message keeps only text: the output of a tool must not gain its
authority.

Signed reasoning is sent unchanged or not at all. Lone surrogates, which JSON does not allow, are replaced
in text; a private block that contains one is not sent.

Providers disagree about ids: Anthropic accepts only letters, digits, `_` and `-` and rejects an id
that appears twice in a request; OpenAI accepts almost any character, but some of its models no more
than 40 of them. A history ignores that: it holds ids of other providers, and ids that
one provider reused in every step. So ids are made legal for each prompt, never in the store. A legal and unused id does
not change: some models read meaning into their own ids. Others change as little as possible, and the first use keeps
its id, so that the beginning of a growing prompt does not change and stays in the provider's cache. Providers not named
here follow OpenAI's rules, which compatible wire formats share.

Must stay true (tests/loop/test_any_history.py): no text is lost unless it is blank; a clean message
is returned unchanged; cleaning is idempotent; every id is legal and none is given twice.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from indelible.content import Block, File, Message, Metadata, Reasoning, Source, Text, ToolCall, ToolResult, encode
from indelible.content.unicode import clean_text

COMPACTION: Final = "compaction"
"""The metadata key that marks a summary (build.py). It is our own, so it is never sent to a provider."""

MAX_NOTE_CHARS: Final = 2000


def clean_message(message: Message, *, provider: str, model: str | None, ids: CallIds) -> list[Block]:
    """The blocks of this message that may be sent to `model` at `provider`; empty if there are none."""
    own = _is_own(message, provider=provider, model=model)
    match message.role:
        case "assistant":
            return _clean_reply(message.blocks, own=own, provider=provider, ids=ids)
        case "system":
            texts = [block for block in message.blocks if isinstance(block, Text)]
            return list(_clean_given(texts, own=own))
        case _:
            return list(_clean_given(message.blocks, own=own))


def describe_orphan(result: ToolResult) -> Text:
    """A result that answers no call, as text."""
    kind = "error" if result.is_error else "result"
    return Text(f"[An earlier {kind} of the tool {_show_name(result.name)}]\n{_show_output(result)}")


def drop_idle_reasoning(blocks: Sequence[Block]) -> list[Block]:
    """The blocks without trailing reasoning: Anthropic and OpenAI reject reasoning that nothing follows."""
    last_content = next(
        (at for at in reversed(range(len(blocks))) if not isinstance(blocks[at], Reasoning | Source)), -1
    )
    return [block for at, block in enumerate(blocks) if at <= last_content or not isinstance(block, Reasoning)]


# --- messages of users and tools -----------------------------------------------------------


def _clean_given(blocks: Sequence[Block], *, own: bool) -> Iterator[Block]:
    for block in blocks:
        match block:
            case Text():
                yield from _clean_text(block, own=own)
            case File():
                yield _clean_file(block, own=own)
            case Source():
                shown = (line for line in (block.title, block.url, block.quote) if line and line.strip())
                yield from _clean_text(Text("\n".join(shown)), own=own)
            case ToolResult(provider_executed=True):
                yield describe_orphan(block)
            case ToolResult():
                yield _clean_local_result(block, own=own)
            case ToolCall():
                yield _describe_call(block)
            case Reasoning():
                continue


def _clean_text(block: Text, *, own: bool) -> Iterator[Text]:
    if block.text.strip():
        yield Text(clean_text(block.text), metadata=_clean_metadata(block.metadata, own=own))


def _clean_file(block: File, *, own: bool) -> Block:
    sendable = block.file_id or block.url or block.data
    cleaned = replace(block, metadata=_clean_metadata(block.metadata, own=own))
    if sendable and _is_encodable(cleaned):
        return cleaned
    return Text(f"[A file that cannot be sent: {_show_file(block)}]")


def _clean_local_result(block: ToolResult, *, own: bool) -> ToolResult:
    return replace(block, output=_show_output(block), metadata=_clean_metadata(block.metadata, own=own))


# --- messages of a model -------------------------------------------------------------------


def _clean_reply(blocks: Sequence[Block], *, own: bool, provider: str, ids: CallIds) -> list[Block]:
    travelling = _find_travelling(blocks, provider=provider, ids=ids) if own else frozenset[int]()
    cleaned: list[Block] = []
    for at, block in enumerate(blocks):
        match block:
            case Text():
                cleaned += _clean_text(block, own=own)
            case Reasoning():
                cleaned += [block] if own and block.signed and _is_encodable(block) else []
            case Source():
                source = replace(block, metadata=_clean_metadata(block.metadata, own=own))
                cleaned += [source] if _is_encodable(source) else []
            case ToolCall(provider_executed=False):
                cleaned.append(_clean_local_call(block, own=own, provider=provider))
            case ToolResult(provider_executed=False):
                cleaned.append(_clean_local_result(block, own=own))
            case ToolCall() if at in travelling:
                cleaned.append(replace(block, arguments=_clean_arguments(block.arguments)))
            case ToolResult() if at in travelling:
                cleaned.append(block)
            case ToolCall() | ToolResult() | File():
                cleaned = [*drop_idle_reasoning(cleaned), _describe_private(block)]
    return cleaned


def _find_travelling(blocks: Sequence[Block], *, provider: str, ids: CallIds) -> frozenset[int]:
    """The indexes of calls and results of the provider's own tools that may be sent back unchanged.

    Their ids mean something to the provider, so they are never changed.
    """
    found: set[int] = set()
    for at, call in enumerate(blocks):
        if not (isinstance(call, ToolCall) and call.provider_executed):
            continue
        answers = [later for later in range(at + 1, len(blocks)) if _is_private_answer(blocks[later], call.id)][:1]
        complete = bool(answers) or call.standalone
        intact = all(_is_encodable(blocks[i]) for i in (at, *answers))
        if complete and intact and call.name == make_legal_name(call.name, provider=provider) and ids.claim(call.id):
            found.update((at, *answers))
    return frozenset(found)


def _is_private_answer(block: Block, call_id: str) -> bool:
    return isinstance(block, ToolResult) and block.provider_executed and block.call_id == call_id


def _clean_local_call(call: ToolCall, *, own: bool, provider: str) -> ToolCall:
    return replace(
        call,
        name=make_legal_name(call.name, provider=provider),
        arguments=_clean_arguments(call.arguments),
        metadata=_clean_metadata(call.metadata, own=own),
    )


def _clean_arguments(arguments: str) -> str:
    """The arguments if they are a JSON object, else an empty object: truncated arguments are not one."""
    try:
        legal = isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        legal = False
    return arguments if legal else "{}"


# --- replaced by text -----------------------------------------------------------


def _describe_call(call: ToolCall) -> Text:
    return Text(f"[Used the tool {_show_name(call.name)}: {_shorten(clean_text(call.arguments))}]")


def _describe_private(block: ToolCall | ToolResult | File) -> Text:
    """A note for content that only its provider can read. Its results are often encrypted: only plain text is shown."""
    match block:
        case ToolCall():
            return _describe_call(block)
        case ToolResult(output=str()):
            return Text(f"[The tool {_show_name(block.name)} returned: {_shorten(_show_output(block))}]")
        case ToolResult():
            return Text(f"[The tool {_show_name(block.name)} returned something that only its provider can read.]")
        case File():
            return Text(f"[Made a file: {_show_file(block)}]")


def _show_name(name: str) -> str:
    return clean_text(name).strip() or "without a name"


def _show_output(result: ToolResult) -> str:
    """A result's output as text."""
    if isinstance(result.output, str):
        return clean_text(result.output)
    return encode(result.output).decode() if _is_encodable(result.output) else clean_text(str(result.output))


def _show_file(file: File) -> str:
    return clean_text(f"{file.name or 'without a name'} ({file.media_type})")


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_NOTE_CHARS else f"{text[:MAX_NOTE_CHARS]}… (shortened)"


# --- questions ---------------------------------------------------------------------------


def _is_own(message: Message, *, provider: str, model: str | None) -> bool:
    same_provider = message.provider is None or message.provider == provider
    same_model = message.model is None or model is None or message.model == model
    return same_provider and same_model


def _clean_metadata(metadata: Metadata | None, *, own: bool) -> Metadata | None:
    if metadata is None or not own or COMPACTION in metadata or not _is_encodable(metadata):
        return None
    return metadata


def _is_encodable(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError, RecursionError, msgspec.MsgspecError):
        return False
    return True


UNKNOWN_NAME: Final = "unknown_tool"
UNKNOWN_ID: Final = "call"
_ILLEGAL_IN_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


class _Limits(msgspec.Struct, frozen=True):
    illegal_in_id: re.Pattern[str]
    max_id_chars: int
    max_name_chars: int


_ANTHROPIC: Final = _Limits(re.compile(r"[^a-zA-Z0-9_-]"), max_id_chars=sys.maxsize, max_name_chars=128)
_OPENAI: Final = _Limits(re.compile(r"[^!-~]"), max_id_chars=40, max_name_chars=64)


def _limits_of(provider: str) -> _Limits:
    return _ANTHROPIC if provider == "anthropic" else _OPENAI


def make_legal_name(name: str, *, provider: str) -> str:
    """`name` if the provider accepts it, else the nearest legal name."""
    return _ILLEGAL_IN_NAME.sub("_", name)[: _limits_of(provider).max_name_chars] or UNKNOWN_NAME


class CallIds:
    """The call ids of one prompt."""

    def __init__(self, *, provider: str) -> None:
        self._limits = _limits_of(provider)
        self._used: set[str] = set()
        self._copies: Counter[str] = Counter()

    def claim(self, wished: str) -> bool:
        """Reserve `wished` unchanged, if it is legal and free. For ids that may not change."""
        if not wished or wished in self._used or wished != self._make_legal(wished):
            return False
        self._used.add(wished)
        return True

    def give(self, wished: str) -> str:
        """Reserve `wished`, or the nearest id that is legal and free."""
        legal = self._make_legal(wished)
        given = legal
        while given in self._used:
            self._copies[legal] += 1
            ending = f"_{self._copies[legal] + 1}"
            given = legal[: self._limits.max_id_chars - len(ending)] + ending
        self._used.add(given)
        return given

    def _make_legal(self, wished: str) -> str:
        return self._limits.illegal_in_id.sub("_", wished)[: self._limits.max_id_chars] or UNKNOWN_ID
