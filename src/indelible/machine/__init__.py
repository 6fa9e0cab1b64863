"""The machine: what a chat may do, as data (transitions.py) and as a pure function (decide.py)."""

from indelible.machine.decide import decide
from indelible.machine.decision import Decision
from indelible.machine.states import Snapshot, State, Status, state_of
from indelible.machine.transitions import TABLE, CommandName

__all__ = ["TABLE", "CommandName", "Decision", "Snapshot", "State", "Status", "decide", "state_of"]
