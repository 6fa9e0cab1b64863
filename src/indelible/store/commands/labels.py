"""The labels of a chat as rows, so that a list can be filtered by one (store/database/schema.sql).

The chat's row has the labels in the user's order; these rows repeat them and are written in the same transaction.

Must stay true (tests/store/test_listing.py): after every change, copy and import both say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from indelible.store.database.transaction import Transaction, clean_label, insert
from indelible.store.limits import check_labels

_LABELS: Final = "SELECT labels FROM chats WHERE id = $1"


async def replace_pairs(transaction: Transaction, chat_id: str, pairs: Sequence[str]) -> list[str]:
    """The chat's labels with these in place of those of the form `key=value`. The chat is locked."""
    row = await transaction.one(_LABELS, chat_id)
    stored = [] if row["labels"] is None else msgspec.json.decode(row["labels"], type=list[str])
    labels = [*(label for label in stored if "=" not in label), *pairs]
    check_labels(labels)
    return labels


async def write_labels(transaction: Transaction, chat_id: str, owner_id: str, labels: Sequence[str]) -> None:
    """Replace the rows of a chat's labels."""
    await transaction.run("DELETE FROM chat_labels WHERE chat_id = $1", chat_id)
    named = dict.fromkeys(clean_label(label) for label in labels)
    rows = [{"chat_id": chat_id, "label": label, "owner_id": owner_id} for label in named]
    if rows:
        await insert(transaction, "chat_labels", *rows)
