"""What a command must know: `decide` is walked through every state with a snapshot that has only what was declared."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
from tests.machine.conftest import Chat
from tests.machine.test_transitions import make_commands, open_everything

from indelible.errors import IndelibleError
from indelible.machine import Snapshot, decide
from indelible.machine.states import State, Status
from indelible.machine.transitions import CommandName, Fact, find_facts

ALWAYS: Final = {"chat_id", "status", "archived", "epoch", "holder", "head_id", "queue", "turn", "attempt"}
IN_THE_ROW: Final = {"deadline_passed", "titled"}
DECLARED: Final = {fact.value for fact in Fact}


class Guard:
    """Stands for a value of the machine, gives only what may be known, and remembers what was asked for."""

    def __init__(self, value: Any, known: frozenset[Fact], read: set[Fact], prefix: str = "") -> None:
        self._value = value
        self._known = known
        self._read = read
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        path = self._prefix + name
        if path in DECLARED:
            fact = Fact(path)
            assert fact in self._known, f"{fact.name} was read and is not declared"
            self._read.add(fact)
        value = getattr(self._value, name)
        if path in {"turn", "attempt"} and value is not None:
            return Guard(value, self._known, self._read, f"{path}.")
        return value


def walk(name: CommandName, chat: Chat) -> set[Fact]:
    """The facts that are read in this state: with what is open there, and with everything open, the holder dead."""
    read: set[Fact] = set()
    for bend in (lambda snapshot: snapshot, open_everything, bury):
        for command in make_commands(name, bend(chat.snapshot()), chat):
            snapshot: Snapshot = bend(chat.snapshot(command))
            guard: Any = Guard(snapshot, find_facts(name, snapshot.status), read)
            with suppress(IndelibleError):
                decide(guard, command)
    return read


def bury(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(open_everything(snapshot), holder_alive=False)


@pytest.mark.parametrize("name", [name for name in CommandName if name is not CommandName.CREATE])
def test_a_command_reads_exactly_the_facts_that_it_declares(
    name: CommandName, chat_in: Callable[[State], Chat]
) -> None:
    for status in Status:
        states = [state for state in State if state.startswith(status)]
        read = {fact for state in states for fact in walk(name, chat_in(state))}
        assert read == find_facts(name, status), f"{name} in a chat that is {status}"


def test_everything_that_a_snapshot_knows_is_declared_or_always_loaded() -> None:
    top = {path for path in DECLARED if "." not in path}
    assert set(Snapshot.__struct_fields__) == ALWAYS | IN_THE_ROW | top
