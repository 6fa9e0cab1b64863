"""The databases of tests/store."""

from __future__ import annotations

from tests.store.conftest import *  # noqa: F403  (every fixture that leads to a database)
