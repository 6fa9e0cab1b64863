"""Whoever owns chats. A program on one machine has one user and no login; its name is the setting's."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from indelible.ids import is_id, new_id
from indelible.store.commands.facts import load_now
from indelible.store.database.dialect import upsert
from indelible.store.database.engine import begin_read, begin_write
from indelible.store.database.tables import chats, users


async def find_owner(engine: AsyncEngine, chat_id: str) -> str | None:
    """Whose chat this is; None if there is none of this name, whatever the name is."""
    if not is_id(chat_id):
        return None
    async with begin_read(engine) as connection:
        found: str | None = (
            await connection.execute(select(chats.c.owner_id).where(chats.c.id == chat_id))
        ).scalar_one_or_none()
        return found


async def ensure_user(engine: AsyncEngine, name: str) -> str:
    """The id of the user of this name, who is made if there is none. Two that ask at once get the same one."""
    async with begin_write(engine) as connection:
        row = {"id": new_id("user"), "name": name, "created_at": await load_now(connection)}
        new = upsert(connection.dialect.name, users).values(**row)
        await connection.execute(new.on_conflict_do_nothing())
        return str((await connection.execute(select(users.c.id).where(users.c.name == name))).scalar_one())
