"""What a chat tells its model besides the conversation: parameters, and tools that the client runs.

Both are one JSON value in one column (`chats.parameters`), because they are written and read together: the tools stand
under a key that no parameter can have. A value from before there were tools is parameters only, so no row had to be
converted. A fork copies the column, and so both.

Must stay true (tests/server/test_acceptance_client_tools.py): changing the one leaves the other as it is.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from indelible.content import ToolSpec, encode

_TOOLS: Final = "$tools"


class ChatOptions(NamedTuple):
    parameters: dict[str, Any] | None = None
    tools: list[ToolSpec] | None = None


def write_options(options: ChatOptions) -> bytes | None:
    """The column's value. A parameter cannot take the place of the tools."""
    parameters = {name: value for name, value in (options.parameters or {}).items() if name != _TOOLS}
    if options.tools:
        return encode({**parameters, _TOOLS: options.tools})
    return None if options.parameters is None else encode(parameters)


def read_options(column: bytes | None) -> ChatOptions:
    if column is None:
        return ChatOptions()
    parameters = msgspec.json.decode(column, type=dict[str, Any])
    tools = parameters.pop(_TOOLS, None)
    return ChatOptions(parameters, None if tools is None else msgspec.convert(tools, list[ToolSpec]))
