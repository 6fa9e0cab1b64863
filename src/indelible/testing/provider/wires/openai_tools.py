"""The tools that OpenAI runs itself, as items of a response.

A neutral call has a name, arguments and, later, a result; each of OpenAI's tools has its own fields for them. A tool
that is not built in is sent as a call to an MCP server, which may have any name. An item in the script
(`metadata={"item": …}`, where the client's side keeps it, too) is sent unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from indelible.content import Metadata, ToolResult
from indelible.testing.provider.events import encode_json

_BUILT_IN: Final = {"web_search": "searching", "file_search": "searching", "code_interpreter": "interpreting"}
"""The tools by name, and the progress event of each."""

Report = tuple[str, dict[str, Any]]
"""An event about the call: its name without `response.`, and its fields."""


class OwnCall:
    """One call in progress."""

    def __init__(self, id: str, name: str) -> None:
        self.item_id = id
        self._name = name
        self._kind = f"{name}_call" if name in _BUILT_IN else "mcp_call"
        self._arguments = ""
        self._item: dict[str, Any] = {}

    def set_item(self, metadata: Metadata | None) -> None:
        """Use the item from the script, if there is one."""
        self._item = (metadata or {}).get("item") or {}

    # --- progress events ---

    def report_start(self) -> Iterator[Report]:
        yield f"{self._kind}.in_progress", {}

    def report_input(self, delta: str) -> Iterator[Report]:
        self._arguments += delta
        if self._kind == "mcp_call":
            yield "mcp_call_arguments.delta", {"delta": delta}

    def report_work(self) -> Iterator[Report]:
        if self._kind == "mcp_call":
            yield "mcp_call_arguments.done", {"arguments": self._arguments}
            return
        if self._kind == "code_interpreter_call":
            code = self._read_arguments().get("code", "")
            yield "code_interpreter_call_code.delta", {"delta": code}
            yield "code_interpreter_call_code.done", {"code": code}
        yield f"{self._kind}.{_BUILT_IN[self._name]}", {}

    def report_end(self, result: ToolResult | None) -> Iterator[Report]:
        failed = result is not None and result.is_error and self._kind == "mcp_call"
        yield f"{self._kind}.{'failed' if failed else 'completed'}", {}

    # --- the item ---

    def build(self, *, status: str, result: ToolResult | None = None) -> dict[str, Any]:
        head = {"id": self.item_id, "type": self._kind, "status": status}
        return {**head, **self._describe(result), **self._item}

    def _describe(self, result: ToolResult | None) -> dict[str, Any]:
        output = result.output if result is not None else None
        arguments = self._read_arguments()
        match self._kind:
            case "web_search_call":
                sources = [{"type": "url", "url": page["url"]} for page in _list_objects(output) if "url" in page]
                return {
                    "action": {"type": "search", "query": "", **arguments, **({"sources": sources} if sources else {})}
                }
            case "file_search_call":
                queries = arguments.get("queries") or [str(arguments.get("query", ""))]
                return {"queries": queries, "results": _list_objects(output) or None}
            case "code_interpreter_call":
                logs = [{"type": "logs", "logs": _show(output)}] if output else None
                made = {"code": arguments.get("code", ""), "outputs": _list_objects(output) or logs}
                return {"container_id": "cntr_simulated", **made}
            case _:
                failed = result is not None and result.is_error
                error = {"type": "mcp_tool_execution_error", "content": _show(output)} if failed else None
                outcome = {"output": None if failed or result is None else _show(output), "error": error}
                return {"server_label": "simulated", "name": self._name, "arguments": self._arguments, **outcome}

    def _read_arguments(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode(self._arguments, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeEncodeError):
            return {}


def _list_objects(output: Any) -> list[dict[str, Any]]:
    return [each for each in output if isinstance(each, dict)] if isinstance(output, list) else []


def _show(output: Any) -> str:
    return output if isinstance(output, str) else encode_json(output).decode()
