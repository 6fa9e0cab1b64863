"""Lists of a user's chats, one page at a time: pinned ones first, then those in which something was said last.

A page starts after the last chat of the page before, in the order of the list, so that a chat that moves up
meanwhile is never shown twice; a cursor may also lead back. Renaming, labelling, pinning and the like move no chat
(tests/app/test_acceptance_chats.py): only `updated_at` does, which store/commands/change.py writes. A chat is
unread if a model has replied since the owner last read it.

Every filter has an index: archived and pinned lead the one of the list, unread chats have one of their own, and labels
are rows of their own (store/database/schema.sql). store/search.py searches.

The owners of chats are here too. A program on one machine has one user and no login; a server's users come from logins
(store/accounts.py). Both follow the same rule about names: people must be able to tell them apart, `ada` from `Ada`,
and from one with a Cyrillic `а` for the Latin one. Names that have the same likeness look the same, whatever their
letters' case, so at most one user has each, and the database decides, by the unique column `users.likeness`
(tests/store/test_user_names.py). It was added later: of several old users who look the same the first has it, the
others have null and stay as they are (`indelible doctor` names them).

A likeness joins no letters that differ only in some fonts, because then honest names would collide (`ian` and `lan`).
Such a disguise of a name that exists is refused all the same (`remove_disguise`): a capital I for an l, a 0 for an o.
Letters are those that Unicode lists as confusable (UTS 39) and that keyboards have: Cyrillic, Greek, Armenian. The full
list has thousands of symbols that nobody's name has.

An ephemeral chat was made for one turn of a program that did not want it stored. Its client deletes it; if that never
happens, the workers' upkeep archives it: nothing is destroyed that a user may have begun to use (P10).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from indelible.api.inputs import check_user_name
from indelible.api.shapes import ChatSummary, UserRole
from indelible.errors import Invalid
from indelible.ids import is_id, new_id
from indelible.store.database.transaction import Dialect, Row, Transaction, clean_label, to_time
from indelible.store.queries.liveness import BUSY_STATUSES, PENDING, bind_ago, build_ago, build_status, build_unheld
from indelible.store.usage import Totals

_STUCK_AFTER: Final = 10
_STALE: Final = """
    SELECT id FROM chats
    WHERE updated_at < $1 AND status IN ('idle', 'error') AND NOT archived AND NOT pinned
        AND replied_seq <= last_read_seq
    ORDER BY updated_at LIMIT $2
    """
_COLUMNS: Final = """
    c.id, c.owner_id, c.title, c.model, c.labels, c.pinned, c.archived, c.debug, c.seq, c.created_at, c.updated_at,
    c.usage, c.cost_nanousd, c.replied_seq > c.last_read_seq AS unread
    """
_ORDER: Final = {False: "c.pinned DESC, c.updated_at DESC, c.id DESC", True: "c.pinned ASC, c.updated_at ASC, c.id ASC"}


class ListCursor(msgspec.Struct, frozen=True, array_like=True):
    """Where a page ended; or, if it leads backward, where it began."""

    pinned: bool
    updated_at: datetime
    id: str
    backward: bool = False


class ChatFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which chats a list has. None: whether they are or not."""

    archived: bool = False
    label: str | None = None
    pinned: bool | None = None
    unread: bool | None = None


ALL_CHATS: Final = ChatFilter()


async def list_chats(
    transaction: Transaction,
    owner_id: str,
    *,
    wanted: ChatFilter = ALL_CHATS,
    after: ListCursor | None = None,
    limit: int = 50,
    lease_timeout_s: float,
) -> list[ChatSummary]:
    """A page in the order of the list, also if the cursor leads backward."""
    dialect = transaction.dialect
    values: list[Any] = [owner_id, bind_ago(dialect, lease_timeout_s), limit]
    conditions = _filter(wanted, values)
    is_backward = after is not None and after.backward
    if after is not None:
        conditions.append(f"(c.pinned, c.updated_at, c.id) {'>' if is_backward else '<'} {_put_place(after, values)}")
    which = f"c.owner_id = $1 AND {' AND '.join(conditions)} ORDER BY {_ORDER[is_backward]} LIMIT $3"
    found = [_summarise(row) for row in await transaction.all(_spell(dialect, 2, which), *values)]
    return found[::-1] if is_backward else found


async def load_summaries(
    transaction: Transaction, chat_ids: Sequence[str], owner_id: str, wanted: ChatFilter, *, lease_timeout_s: float
) -> dict[str, ChatSummary]:
    """The lines of those of these chats that the user has and the filter lets through."""
    dialect = transaction.dialect
    values: list[Any] = [owner_id, bind_ago(dialect, lease_timeout_s), list(chat_ids)]
    which = f"c.owner_id = $1 AND c.id = ANY($3) AND {' AND '.join(_filter(wanted, values))}"
    rows = await transaction.all(_spell(dialect, 2, which), *values) if chat_ids else []
    return {row["id"]: _summarise(row) for row in rows}


async def load_owned(
    transaction: Transaction, chat_ids: Sequence[str], *, lease_timeout_s: float
) -> dict[str, tuple[str, ChatSummary]]:
    """The owner and the line of each of these chats. One statement."""
    dialect = transaction.dialect
    ago = bind_ago(dialect, lease_timeout_s)
    rows = await transaction.all(_spell(dialect, 1, "c.id = ANY($2)"), ago, list(chat_ids))
    return {row["id"]: (row["owner_id"], _summarise(row)) for row in rows}


async def load_summary(transaction: Transaction, chat_id: str, *, lease_timeout_s: float) -> ChatSummary:
    """The line of one chat that exists."""
    dialect = transaction.dialect
    ago = bind_ago(dialect, lease_timeout_s)
    return _summarise(await transaction.one(_spell(dialect, 2, "c.id = $1"), chat_id, ago))


def _filter(wanted: ChatFilter, values: list[Any]) -> list[str]:
    """The conditions of a filter; their values are appended."""
    values.append(wanted.archived)
    conditions = [f"c.archived = ${len(values)}"]
    if wanted.pinned is not None:
        values.append(wanted.pinned)
        conditions.append(f"c.pinned = ${len(values)}")
    if wanted.unread is not None:  # as the index says it
        is_read = "" if wanted.unread else "NOT "
        conditions.append(f"{is_read}(c.replied_seq > c.last_read_seq)")
    if wanted.label is not None:
        values.append(clean_label(wanted.label))
        labelled = f"SELECT chat_id FROM chat_labels WHERE owner_id = $1 AND label = ${len(values)}"
        conditions.append(f"c.id IN ({labelled})")
    return conditions


def _put_place(place: ListCursor, values: list[Any]) -> str:
    values += [place.pinned, place.updated_at, place.id]
    last = len(values)
    return f"(${last - 2}, ${last - 1}, ${last})"


@cache
def _spell(dialect: Dialect, timeout_place: int, which: str) -> str:
    """The lines of these chats; `$timeout_place` is the lease timeout."""
    status = build_status(dialect, timeout_place)
    return f"SELECT {_COLUMNS}, {status} AS shown_status FROM chats AS c WHERE {which}"


class ChatCount(NamedTuple):
    """The number of chats in each state, and how many busy ones are stuck: without a live worker for too long."""

    by_state: dict[str, int]
    stuck: int


async def count_chats(transaction: Transaction, *, lease_timeout_s: float) -> ChatCount:
    """Over all users. `pending` counts as in lists: running chats that no live worker holds.

    A chat is stuck once it waited for ten lease timeouts, whether for its reply or for the end of a stopped one.
    """
    dialect = transaction.dialect
    long_ago = bind_ago(dialect, _STUCK_AFTER * lease_timeout_s)
    rows = await transaction.all(_build_count(dialect), bind_ago(dialect, lease_timeout_s), long_ago)
    by_state: dict[str, int] = {row["status"]: row["number"] for row in rows}
    by_state[PENDING] = sum(row["pending"] for row in rows)
    return ChatCount(by_state, sum(row["stuck"] for row in rows))


@cache
def _build_count(dialect: Dialect) -> str:
    is_abandoned = f"c.status IN {BUSY_STATUSES} AND {build_unheld(dialect, 1)}"
    return f"""
        SELECT c.status, count(*) AS number,
            count(*) FILTER (WHERE {build_status(dialect, 1)} = '{PENDING}') AS pending,
            count(*) FILTER (WHERE {is_abandoned} AND c.runnable_at < {build_ago(dialect, 2)}) AS stuck
        FROM chats AS c GROUP BY c.status
        """


def _summarise(row: Row) -> ChatSummary:
    totals = Totals.read(row)
    return ChatSummary(
        id=row["id"],
        status=row["shown_status"],
        title=row["title"],
        model=row["model"],
        labels=[] if row["labels"] is None else msgspec.json.decode(row["labels"]),
        pinned=bool(row["pinned"]),
        archived=bool(row["archived"]),
        unread=bool(row["unread"]),
        debug=row["debug"],
        version=row["seq"],
        created_at=to_time(row["created_at"]),
        updated_at=to_time(row["updated_at"]),
        usage=totals.usage,
        cost_usd=totals.cost_usd,
    )


async def find_stale(transaction: Transaction, updated_before: datetime, limit: int) -> list[str]:
    """Chats in which nothing was said since then and that can be archived."""
    return [row["id"] for row in await transaction.all(_STALE, updated_before, limit)]


_LEFT: Final = f"""
    SELECT p.chat_id FROM ephemeral_chats AS p JOIN chats AS c ON c.id = p.chat_id
    WHERE c.updated_at < $1 AND c.status NOT IN {BUSY_STATUSES} AND NOT c.pinned AND NOT c.archived
        AND (SELECT count(*) FROM turns WHERE chat_id = c.id) < 2
    ORDER BY c.updated_at LIMIT $2
    """


async def find_left(transaction: Transaction, updated_before: datetime, limit: int) -> list[str]:
    """Ephemeral chats whose one turn ended before this time."""
    return [row["chat_id"] for row in await transaction.all(_LEFT, updated_before, limit)]


_OWNER: Final = "SELECT owner_id FROM chats WHERE id = $1"
_NEW_USER: Final = """
    INSERT INTO users (id, name, role, created_at, likeness) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
    """
_ALIKE: Final = "SELECT name FROM users WHERE likeness = $1"
_USER: Final = "SELECT id FROM users WHERE name = $1"


async def find_owner(transaction: Transaction, chat_id: str) -> str | None:
    """The owner of this chat; None if it does not exist. `chat_id` may be any text."""
    row = await transaction.one(_OWNER, chat_id) if is_id(chat_id) else None
    return None if row is None else str(row["owner_id"])


async def find_user(transaction: Transaction, name: str) -> str | None:
    """The id of the user with this name. None if a new user may have the name; `Invalid` if not."""
    row = await transaction.one(_USER, name)
    if row is None:
        check_user_name(name)
    return None if row is None else str(row["id"])


async def ensure_user(transaction: Transaction, name: str) -> str:
    """The id of the user with this name, who is created if missing. Concurrent calls get the same id."""
    found = await find_user(transaction, name)
    if found is None:
        await insert_user(transaction, name, "user", await transaction.now())
        found = str((await transaction.one(_USER, name))["id"])
    return found


async def insert_user(transaction: Transaction, name: str, role: UserRole, now: datetime) -> None:
    """Create a user with a checked name, unless there is one with this name.

    Raises `Invalid` if it looks like another user's.
    """
    likeness, disguised = find_likeness(name), remove_disguise(name)
    if disguised == likeness or await transaction.one(_ALIKE, disguised) is None:
        await transaction.run(_NEW_USER, new_id("user"), name, role, now, likeness)
    if await transaction.one(_USER, name) is None:
        other = await transaction.one(_ALIKE, likeness) or await transaction.one(_ALIKE, disguised)
        raise Invalid(f"The name {name} looks like that of the user {other['name']}. Choose another.")


_LATIN: Final = str.maketrans(
    # Cyrillic, Greek, Armenian, and Latin letters of other languages, in lower case
    "авеѕіјкмнорстхуԁһԛԝӏ" + "αβεζηικμνορτυχ" + "օսոհ" + "ıɑɡɩ",
    "abesijkmhopctxydhqwl" + "abezhikmvoptux" + "ouuh" + "iagi",
)
_MARKS: Final = str.maketrans("‐‑‒–—−’‘ʼ", "------'''")
_UNSEEN: Final = dict.fromkeys(
    [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]
)
"""Printable, and nothing is to be seen of them."""
_DISGUISES: Final = str.maketrans("I|10", "lllo")


def find_likeness(name: str) -> str:
    """What all names have in common that look like this one."""
    folded = unicodedata.normalize("NFKC", name.translate(_UNSEEN)).translate(_UNSEEN).casefold()
    seen = unicodedata.normalize("NFKC", folded).translate(_LATIN).translate(_MARKS)
    return " ".join(seen.split())


def remove_disguise(name: str) -> str:
    """The likeness of the name that this one may be a disguise of."""
    return find_likeness(name.translate(_DISGUISES))
