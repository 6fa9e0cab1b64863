"""Short builders for parts, so that a script reads like the stream it represents.

    [parts.text_delta("1", "Hel"), parts.text_delta("1", "lo"), parts.finish("stop")]

Most are the parts themselves, under the names that they have in a stream. Two are directions for the script: `hang()`
waits until the read is cancelled, and `error(exception)` makes the `error` part for the exception.
"""

from __future__ import annotations

from typing import Any

from indelible import content
from indelible.models.failures.classify import classify, to_error_part


class Hang:
    """Direction: send nothing until the read is cancelled."""


hang = Hang
text_start = content.TextStart
text_delta = content.TextDelta
text_end = content.TextEnd
reasoning_start = content.ReasoningStart
reasoning_delta = content.ReasoningDelta
reasoning_end = content.ReasoningEnd
tool_input_start = content.ToolInputStart
tool_input_delta = content.ToolInputDelta
tool_input_end = content.ToolInputEnd
tool_call = content.ToolCall
source = content.Source
finish = content.Finish
usage = content.UsageUpdate
warning = content.StreamWarning
keep_alive = content.KeepAlive


def tool_result(
    id: str, name: str, output: Any, provider_executed: bool = False, is_error: bool = False
) -> content.ToolResult:
    return content.ToolResult(
        call_id=id, name=name, output=output, is_error=is_error, provider_executed=provider_executed
    )


def error(exception: BaseException) -> content.StreamError:
    return to_error_part(classify(exception))
