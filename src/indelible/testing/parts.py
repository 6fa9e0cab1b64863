"""Short builders for parts, so that a script reads like the stream it represents.

    [parts.text_delta("1", "Hel"), parts.text_delta("1", "lo"), parts.finish("stop")]

Two builders are directions for the script: `hang()` waits until the read is cancelled, and `error(exception)` makes the
`error` part for the exception.
"""

from __future__ import annotations

from typing import Any

from indelible.content import (
    Finish,
    FinishReason,
    KeepAlive,
    Metadata,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    StreamError,
    StreamWarning,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    UsageUpdate,
)
from indelible.models.failures.classify import classify, to_error_part


class Hang:
    """Direction: send nothing until the read is cancelled."""


def hang() -> Hang:
    return Hang()


def text_start(id: str) -> TextStart:
    return TextStart(id)


def text_delta(id: str, delta: str) -> TextDelta:
    return TextDelta(id, delta)


def text_end(id: str) -> TextEnd:
    return TextEnd(id)


def reasoning_start(id: str, signature: str | None = None, metadata: Metadata | None = None) -> ReasoningStart:
    return ReasoningStart(id=id, signature=signature, metadata=metadata)


def reasoning_delta(
    id: str, delta: str, signature: str | None = None, metadata: Metadata | None = None
) -> ReasoningDelta:
    return ReasoningDelta(id=id, delta=delta, signature=signature, metadata=metadata)


def reasoning_end(id: str, signature: str | None = None, metadata: Metadata | None = None) -> ReasoningEnd:
    return ReasoningEnd(id=id, signature=signature, metadata=metadata)


def tool_input_start(id: str, name: str, provider_executed: bool = False) -> ToolInputStart:
    return ToolInputStart(id=id, name=name, provider_executed=provider_executed)


def tool_input_delta(id: str, delta: str) -> ToolInputDelta:
    return ToolInputDelta(id, delta)


def tool_input_end(id: str) -> ToolInputEnd:
    return ToolInputEnd(id)


def tool_call(id: str, name: str, arguments: str, provider_executed: bool = False) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments, provider_executed=provider_executed)


def tool_result(id: str, name: str, output: Any, provider_executed: bool = False, is_error: bool = False) -> ToolResult:
    return ToolResult(call_id=id, name=name, output=output, is_error=is_error, provider_executed=provider_executed)


def source(
    id: str = "",
    url: str | None = None,
    title: str | None = None,
    quote: str | None = None,
    metadata: Metadata | None = None,
) -> Source:
    return Source(id=id, url=url, title=title, quote=quote, metadata=metadata)


def finish(
    reason: FinishReason = "stop",
    usage: Usage | None = None,
    response_id: str | None = None,
    metadata: Metadata | None = None,
) -> Finish:
    return Finish(reason=reason, usage=usage, response_id=response_id, metadata=metadata)


def usage(counted: Usage) -> UsageUpdate:
    return UsageUpdate(counted)


def error(exception: BaseException) -> StreamError:
    return to_error_part(classify(exception))


def warning(message: str) -> StreamWarning:
    return StreamWarning(message)


def keep_alive() -> KeepAlive:
    return KeepAlive()
