"""Enumerations that only the database uses; the machine's own are in machine/. constraints.py checks them.

`BUSY_STATUSES` is one of the machine's as SQL spells it: a partial index serves only queries with its own condition.
"""

from __future__ import annotations

from typing import Final, Literal

from indelible.machine.states import BUSY

FileState = Literal["uploading", "ready", "deleted"]
FilePlace = Literal["database", "directory", "s3"]
FileVariant = Literal["content", "preview"]
PreviewState = Literal["none", "unmade", "made"]
BUSY_STATUSES: Final = "(" + ", ".join(f"'{status}'" for status in BUSY) + ")"
