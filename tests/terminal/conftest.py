"""A database of chats for each test, with a model that says what the test wrote down."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from indelible.app.app import App
from indelible.app.compose import open_app
from indelible.models.protocol import Model
from indelible.settings import load_settings

OpenApp = Callable[..., AbstractAsyncContextManager[App]]


@pytest.fixture
def open_chats(tmp_path: Path, migrated_sqlite: Path) -> OpenApp:
    """Open the test's database, any number of times one after the other."""
    database = shutil.copy(migrated_sqlite, tmp_path / "chats.db")

    def open_chats(model: Model, **options: Any) -> AbstractAsyncContextManager[App]:
        settings = load_settings(database=str(database), retry_base_s=0, auto_titles=False)
        return open_app(model=model, settings=settings, **options)

    return open_chats
