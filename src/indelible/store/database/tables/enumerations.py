"""Enumerations that only the database uses; the machine's own are in machine/. constraints.py checks them."""

from __future__ import annotations

from typing import Literal

DebugMode = Literal["off", "errors", "all"]
RunKind = Literal["turn", "title", "compaction"]
RunStatus = Literal["in_progress", "completed", "error", "interrupted"]
UserRole = Literal["admin", "user"]
LoginMethod = Literal["token", "oidc"]
Scope = Literal["read", "write", "admin"]
FileState = Literal["uploading", "ready", "deleted"]
FilePlace = Literal["database", "directory", "s3"]
FileVariant = Literal["content", "preview"]
PreviewState = Literal["none", "unmade", "made"]
