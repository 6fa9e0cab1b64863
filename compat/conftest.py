"""Tests of `make compat`: each takes minutes if it must, and none is retried."""

from __future__ import annotations

pytest_plugins: list[str] = []
