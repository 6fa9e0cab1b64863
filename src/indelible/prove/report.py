"""The result of a proof and how it is printed: a short table, a verdict, and for a failure how to repeat it.

Must stay true (tests/prove/test_prove_command.py): a verdict starts with PASSED or FAILED; a failure names the seed,
the chats, and where the evidence is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from indelible.prove.evidence import Evidence, Fault

_FAULTS_SHOWN: Final = 10
_WAYS: Final = {
    "sigkill": "kill -9 at a random instant",
    "sigterm": "graceful shutdown (SIGTERM)",
    "sigstop": "paused and resumed (SIGSTOP, SIGCONT)",
    "redis": "kill -9 of the Redis between the servers",
    "at_start": "kill -9 while starting",
    "during_takeover": "kill -9 during a takeover",
    "before_flush": "kill -9 before a journal commit",
    "after_flush": "kill -9 after a journal commit, before it was published",
    "before_notify": "kill -9 after a command's commit, before its notification",
    "before_effect": "kill -9 in a tool, before its effect",
    "after_effect": "kill -9 in a tool, after its effect",
    "during_stop": "kill -9 while a reply was stopping",
    "before_file": "kill -9 before an upload's commit",
    "after_file": "kill -9 after an upload's commit, before its response",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and the faults. After a failure the database and `kept_directory` are kept.

    `knew_replies`: whether each reply was compared with the expected one. `actions` are what users did besides sending,
    `uploads` are counted by kind, `model_calls` by API; `interrupted_calls` are those whose connection broke before the
    reply had ended.
    """

    seed: int
    chats: int
    readers: int
    reconnects: int
    replies: dict[str, int]
    words: int
    seconds: float
    knew_replies: bool
    kills: dict[str, int] = {}
    actions: dict[str, int] = {}
    tool_runs: int = 0
    uploads: dict[str, int] = {}
    model_calls: dict[str, int] = {}
    interrupted_calls: int = 0
    faults: Sequence[Fault] = ()
    database: str | None = None
    kept_directory: Path | None = None

    @property
    def is_proof(self) -> bool:
        return not self.faults


def count_replies(evidence: Sequence[Evidence]) -> dict[str, int]:
    return dict(Counter(turn.outcomes[0] for one in evidence for turn in one.stored.turns.values() if turn.outcomes))


def count_actions(evidence: Sequence[Evidence]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in evidence:
        total.update(one.log.counts)
    return dict(total)


def print_report(report: Report, console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    table.add_column()
    for way, count in sorted(report.kills.items(), key=lambda counted: list(_WAYS).index(counted[0])):
        table.add_row(f"{count}×", _WAYS[way])
    table.add_row(f"{report.chats:,}", f"chats, {report.readers:,} readers, {report.reconnects:,} reconnects")
    table.add_row(
        f"{sum(report.replies.values()):,}", f"replies ({_list_counts(report.replies)}), {report.words:,} words"
    )
    if report.model_calls:
        counted = f"model calls ({_list_counts(report.model_calls)}), {report.interrupted_calls:,} interrupted"
        table.add_row(f"{sum(report.model_calls.values()):,}", counted)
    if report.actions:
        table.add_row(f"{sum(report.actions.values()):,}", f"user actions ({_list_counts(report.actions)})")
    if report.tool_runs:
        table.add_row(f"{report.tool_runs:,}", "tool runs")
    if report.uploads:
        table.add_row(f"{sum(report.uploads.values()):,}", f"uploads ({_list_counts(report.uploads)})")
    table.add_row(f"{report.seconds:.0f} s", f"total, seed {report.seed}")
    console.print(table)
    console.print()
    console.print(describe_verdict(report), soft_wrap=True, highlight=False, markup=False)


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())) or "none"


def describe_verdict(report: Report) -> str:
    if report.is_proof:
        deaths = sum(report.kills.values())
        kills = f"{deaths} kill{'' if deaths == 1 else 's'}, nothing lost" if deaths else "nothing lost"
        replies = "is complete or was stopped by its user" if report.knew_replies else "ended"
        tools = "no tool ran twice that must not; " if report.tool_runs else ""
        files = "every uploaded file is stored as it was sent; " if report.uploads else ""
        return (
            f"PASSED: {kills}. Every word that a reader saw is stored, once and in order; every accepted message was "
            f"answered; every reply {replies}; {tools}{files}nothing is still running."
        )
    shown = [f"  {fault.chat_id or 'a server'}: {fault.sentence}" for fault in report.faults[:_FAULTS_SHOWN]]
    if len(report.faults) > _FAULTS_SHOWN:
        shown.append(f"  … and {len(report.faults) - _FAULTS_SHOWN} more")
    count = "1 promise" if len(report.faults) == 1 else f"{len(report.faults)} promises"
    lines = [f"FAILED: {count} broken. Seed {report.seed}.", *shown]
    if report.kept_directory is not None:
        lines.append(
            f"Kept for inspection: the database {report.database} and the server log in {report.kept_directory}"
        )
    return "\n".join(lines)
