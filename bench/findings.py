"""Single numbers with a unit, one for each database, some with an aim: a table for people, and values for JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`what` was measured on `database` (empty: on none). The aim is the largest value that is good enough."""

    what: str
    database: str = ""
    value: float
    unit: str
    aim: float | None = None


def tabulate(title: str, findings: Sequence[Finding]) -> Table:
    """One row for each thing that was measured, in the order in which it first was; one column for each database."""
    databases = list(dict.fromkeys(each.database for each in findings))
    table = Table("", title=title)
    for database in databases:
        table.add_column(database, justify="right")
    table.add_column("aim")
    for what in dict.fromkeys(each.what for each in findings):
        found = {each.database: each for each in findings if each.what == what}
        shown = [_show(found.get(database)) for database in databases]
        table.add_row(what, *shown, _judge(list(found.values())))
    return table


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def _show(finding: Finding | None) -> str:
    if finding is None:
        return "–"
    digits = 0 if abs(finding.value) >= 100 else 1 if abs(finding.value) >= 10 else 2
    return f"{finding.value:,.{digits}f} {finding.unit}".rstrip()


def _judge(found: Sequence[Finding]) -> str:
    judged = [each for each in found if each.aim is not None]
    if not judged:
        return ""
    reached = all(each.value <= (each.aim or 0) for each in judged)
    return f"≤ {judged[0].aim:g} {judged[0].unit}: {'reached' if reached else 'MISSED'}"
