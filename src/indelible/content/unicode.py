"""Lone surrogates: text that cannot be encoded, made encodable.

A character outside the basic plane is a pair of surrogates in UTF-16, and JSON escapes, truncated streams and
careless tools leave their halves in Python strings. Neither UTF-8 nor a database accepts one. An adjacent pair
is joined into its character; a lone half becomes U+FFFD.
"""

from __future__ import annotations

from typing import Any


def clean_text(text: str) -> str:
    """The text with pairs joined and lone halves replaced; valid text is returned unchanged."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean_value(value: Any) -> Any:
    """Plain JSON data with every text in it cleaned."""
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_value(key): clean_value(item) for key, item in value.items()}
        case list() | tuple():
            return [clean_value(item) for item in value]
        case _:
            return value
