"""What replies and chats count (rule 10.7): the model of a proof counts its words, so every complete reply is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from indelible.prove.checks.evidence import Evidence
from indelible.prove.model import count_output


def check_usage(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    stored = evidence.stored
    for message_id, message in stored.tree.items():
        question, _ = stored.read_answer(message_id) if message.role == "assistant" else ("", "")
        if not question or message.partial or message.reason is not None or find_reply(question) is None:
            continue
        counted = (message.usage or {}).get("output_tokens")
        if counted != count_output(len(message.text.split())):
            yield f"{message_id} has the usage {message.usage}, and {len(message.text.split())} words"
    if "usage" in evidence.snapshot:
        summed = _add_up([message.usage for message in stored.tree.values() if message.usage is not None])
        if (evidence.snapshot["usage"] or {}) != summed:
            yield f"the chat counts {evidence.snapshot['usage']}, and its messages add up to {summed}"


def _add_up(usages: list[dict[str, Any]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for usage in usages:
        for name, count in usage.items():
            totals[name] = totals.get(name, 0) + count
    return {name: count for name, count in totals.items() if count}
