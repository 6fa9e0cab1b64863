"""Tools: what one is (tool.py), its arguments (schema.py) and its result as text (output.py)."""

from indelible.tools.output import BadArguments, CutText, cut_text, limit_for, render_output
from indelible.tools.tool import Tool, ToolCallRecord, ToolContext, tool

__all__ = [
    "BadArguments",
    "CutText",
    "Tool",
    "ToolCallRecord",
    "ToolContext",
    "cut_text",
    "limit_for",
    "render_output",
    "tool",
]
