"""Tools: what one is (port.py), its arguments (arguments.py) and its result as text (output.py)."""

from indelible.tools.arguments import BadArguments
from indelible.tools.output import CutText, cut_text, limit_for, render_output
from indelible.tools.port import Ledger, Tool, ToolCallRecord, ToolContext, tool

__all__ = [
    "BadArguments",
    "CutText",
    "Ledger",
    "Tool",
    "ToolCallRecord",
    "ToolContext",
    "cut_text",
    "limit_for",
    "render_output",
    "tool",
]
