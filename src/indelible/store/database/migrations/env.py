"""Alembic's entry point: Alembic runs this file, which runs the revisions in the transaction of runner.py."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,
)
context.run_migrations()
