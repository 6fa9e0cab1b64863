"""The databases of tests/databases.py, an app harness on each of them, and a user in process and over HTTP.

`open_user` runs one script twice: with `indelible.open`, and with `indelible.Client` on a real server. Marked
`both_ways`, the one is on PostgreSQL and the other on SQLite: what differs between the two ways is above the store, and
what differs between the databases is below it. `make nightly` has the other two as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.app_harness import AppHarness, make_settings, serve_app
from tests.support.examples import is_thorough

import indelible
from indelible.app.app import App, User
from indelible.models.protocol import Model

OpenUser = Callable[..., AbstractAsyncContextManager[User]]
OpenPair = Callable[..., AbstractAsyncContextManager[tuple[User, User, App]]]


@pytest.fixture
async def harness(engine: AsyncEngine) -> AsyncIterator[AppHarness]:
    async with AppHarness(engine).opened() as opened:
        yield opened


@asynccontextmanager
async def open_in_process(
    database: str,
    model: Model,
    *,
    models: Mapping[str, Model] | None = None,
    tools: Any = (),
    client_tools: Any = (),
    **settings: Any,
) -> AsyncIterator[User]:
    chosen = make_settings(**settings)
    async with indelible.open(
        database, model=model, models=models, tools=tools, client_tools=client_tools, settings=chosen
    ) as app:
        yield app


@asynccontextmanager
async def open_over_http(database: str, model: Model, **more: Any) -> AsyncIterator[User]:
    async with serve_app(database, model, **more) as server, indelible.Client(server.url) as client:
        yield client


@asynccontextmanager
async def open_pair_in_process(database: str, model: Model) -> AsyncIterator[tuple[User, User, App]]:
    async with indelible.open(database, model=model, settings=make_settings()) as app:
        yield app.user("ada"), app.user("grace"), app


@asynccontextmanager
async def open_pair_over_http(database: str, model: Model) -> AsyncIterator[tuple[User, User, App]]:
    async with serve_app(database, model, token="secret", client_token="secret") as server:  # noqa: S106
        accounts = server.app.accounts
        ids = [(await accounts.add_user(name)).id for name in ("ada", "grace")]
        tokens = [(await accounts.create_token(id_, label="", scopes=["read", "write"]))[1] for id_ in ids]
        async with (
            indelible.Client(server.url, token=tokens[0]) as ada,
            indelible.Client(server.url, token=tokens[1]) as grace,
        ):
            yield ada, grace, server.app


both_ways = pytest.mark.parametrize(
    ("open_user", "migrated"),
    [
        pytest.param(open_in_process, "postgresql", id="in process, postgresql"),
        pytest.param(open_over_http, "sqlite", id="over HTTP, sqlite"),
        *([(open_in_process, "sqlite"), (open_over_http, "postgresql")] if is_thorough() else []),
    ],
    indirect=True,
)


@pytest.fixture(params=[open_pair_in_process, open_pair_over_http], ids=["in process", "over HTTP"])
def open_pair(request: pytest.FixtureRequest) -> OpenPair:
    """Opens the users ada and grace, and the app that they are users of, with `(database, model)`."""
    opened: OpenPair = request.param
    return opened


@pytest.fixture(params=[open_in_process, open_over_http], ids=["in process", "over HTTP"])
def open_user(request: pytest.FixtureRequest) -> OpenUser:
    """Opens a user with `(database, model, models=…, tools=…, client_tools=…, **settings)`."""
    opened: OpenUser = request.param
    return opened
