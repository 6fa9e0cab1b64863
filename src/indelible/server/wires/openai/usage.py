"""The tokens of a turn, added up over its steps, as the two OpenAI wires count them."""

from __future__ import annotations

from typing import Any

import msgspec

from indelible.content import Usage


class RunningUsage:
    """Unknown until a step reports its own."""

    def __init__(self) -> None:
        self._total: Usage | None = None

    def add(self, reported: dict[str, Any] | None) -> None:
        if reported is not None:
            self._total = (self._total or Usage()) + msgspec.convert(reported, Usage)

    def show_for_response(self) -> dict[str, Any] | None:
        total = self._total
        if total is None:
            return None
        return {
            "input_tokens": total.input_tokens,
            "input_tokens_details": {
                "cached_tokens": total.cache_read_tokens,
                "cache_write_tokens": total.cache_write_tokens,
            },
            "output_tokens": total.output_tokens,
            "output_tokens_details": {"reasoning_tokens": total.reasoning_tokens},
            "total_tokens": total.total_tokens,
        }

    def show_for_completion(self) -> dict[str, Any] | None:
        total = self._total
        if total is None:
            return None
        return {
            "prompt_tokens": total.input_tokens,
            "prompt_tokens_details": {"cached_tokens": total.cache_read_tokens},
            "completion_tokens": total.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": total.reasoning_tokens},
            "total_tokens": total.total_tokens,
        }
