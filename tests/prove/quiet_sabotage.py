"""Small defects that no reader of a running reply would notice, one function each, and what a verdict says of them.

Each is put into the running process and taken out after the test. The builds of sabotage.py lose words or lose
control; these lose what stands beside the words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, cast

import pytest
from msgspec.structs import replace

from indelible.loop.prompt import build
from indelible.machine.commands import ToolResults
from indelible.machine.effects import AddNotice
from indelible.store.commands import execute, turns
from indelible.store.commands.turns import Ending
from indelible.store.queries import history, tree
from indelible.store.usage import Totals

Sabotage = Callable[[pytest.MonkeyPatch], None]


def lose_the_newest_sibling(patch: pytest.MonkeyPatch) -> None:
    load = history._load_branches

    async def lose(*arguments: Any) -> dict[str | None, list[str]]:
        found = await load(*arguments)
        return {place: ids[:-1] if len(ids) > 1 else ids for place, ids in found.items()}

    patch.setattr(history, "_load_branches", lose)


def lead_a_branch_to_its_beginning(patch: pytest.MonkeyPatch) -> None:
    async def stay(_transaction: Any, _chat_id: str, message_id: str) -> str:
        return str(message_id)

    async def find_parent(transaction: Any, chat_id: str, message_id: str) -> str:
        parent = "SELECT parent_id FROM messages WHERE chat_id = $1 AND id = $2"
        row = await transaction.one(parent, chat_id, message_id)
        return str(row["parent_id"] or message_id)

    patch.setattr(tree, "_find_newest_leaf", find_parent)
    patch.setattr(tree, "follow_results", stay)


def keep_stale_instructions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "find_stale", lambda _messages: set())


def drop_usage(patch: pytest.MonkeyPatch) -> None:
    end = turns.end_attempt

    async def drop(*arguments: Any, **named: Any) -> Ending:
        ending = await end(*arguments, **named)
        return ending._replace(columns=ending.columns | {"usage": None}, totals=Totals())

    patch.setattr(turns, "end_attempt", drop)


def count_twice(patch: pytest.MonkeyPatch) -> None:
    plus = Totals.plus
    patch.setattr(Totals, "plus", lambda self, *added: plus(plus(self, *added), *added))
    patch.setattr(turns, "add_to_chat", None)


def lose_the_notice_of_a_stop(patch: pytest.MonkeyPatch) -> None:
    put = execute.HANDLERS[AddNotice]

    async def lose(change: Any, effect: AddNotice) -> None:
        if effect.kind != "stopped":
            await put(change, effect)

    patch.setitem(cast("dict[Any, Any]", execute.HANDLERS), AddNotice, lose)


def accept_late_results(patch: pytest.MonkeyPatch) -> None:
    deciding: dict[Any, Any] = vars(sys.modules["indelible.machine.decide"])["_DECIDE"]
    decide = deciding[ToolResults]
    patch.setitem(deciding, ToolResults, lambda facts, command: decide(facts, replace(command, turn_id=None)))


def forget_results(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Any, _result: Any, *, found_at: Any) -> bool:
        return True

    patch.setattr(build._OpenCalls, "settle", forget)


SABOTAGES: Final[dict[Sabotage, str]] = {
    lose_the_newest_sibling: "; lost: ['message_",
    lead_a_branch_to_its_beginning: "messages that are not the",
    keep_stale_instructions: "a prompt has a stale instruction before a question",
    drop_usage: "has the usage None",
    count_twice: "and its messages add up to",
    lose_the_notice_of_a_stop: "ended as interrupted with the notices []",
    accept_late_results: "were accepted after it had ended",
    forget_results: "a prompt has a call without a result",
}
