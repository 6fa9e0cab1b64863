"""`indelible doctor`: whether a server would run well here. The checks are doctor_checks.py."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from indelible.cli.options import DatabaseOption, ModelOption, read_settings

DOCTOR_EXAMPLES: Final = """\b
Examples:
  indelible doctor                          the default database and settings
  INDELIBLE_DATABASE=postgresql://ada:secret@host/chats indelible doctor
  indelible doctor --json | jq '.[] | select(.status != "ok")'"""

_MARKS: Final = {"ok": "ok     ", "warning": "WARNING", "failed": "FAILED "}


def doctor(
    *,
    database: DatabaseOption = None,
    model: ModelOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of findings.")] = False,
) -> None:
    """Check settings, keys, port, disk and database.

    It changes nothing. The exit status is 1 if a check failed; warnings are not failures.
    """
    settings = read_settings(database=database, model=model)

    import asyncio

    import msgspec

    from indelible.cli.doctor_checks import examine

    findings = asyncio.run(examine(settings))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    else:
        for finding in findings:
            sys.stdout.write(f"{_MARKS[finding.status]} {finding.check:<11} {finding.message}\n")
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(1)
