"""The table: what the rules of chats say, what `decide` does, and what docs/states.md shows are one thing.

Every pair of command and state is walked, 31 × 13, with chats that real commands brought there: a test for each
command, because a test for each pair would cost more than what it does. SPEC below is the specification's table read
anew, in its own notation; it shares nothing with table.py but the names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from indelible.errors import ChatNotFound, IndelibleError, Interrupted, LeaseLost, NotAllowed
from indelible.machine import TABLE, CommandName, Decision, Snapshot, State, commands, decide
from indelible.machine.commands import Command
from indelible.machine.states import OpenAttempt, OpenTurn

if TYPE_CHECKING:
    from tests.machine.conftest import Chat, Way

PAGE = Path(__file__).parent.parent.parent / "docs" / "states.md"

STOPPED = "interrupting→idle interrupting_queued→running|running_queued"
SENT = (
    "idle→running error→running error_queued→running_queued running→running_queued "
    "running_queued→running_queued interrupting→interrupting_queued "
    "interrupting_queued→interrupting_queued"
)
FORKED = (
    "idle→running running→running running_queued→running_queued interrupting→running "
    "interrupting_queued→running_queued requires_action→running requires_action_queued→running_queued "
    "error→running error_queued→running_queued"
)
ASKED_AGAIN = "idle→running error→running error_queued→running_queued"
ARRANGED = (
    "running_queued→running_queued interrupting_queued→interrupting_queued "
    "requires_action_queued→requires_action_queued error_queued→error_queued "
    "error_queued_archived→error_queued_archived"
)
RUNS_ON = "running→running running_queued→running_queued"

SPEC = {
    "create": "none→idle|running",
    "send": f"{SENT} requires_action→requires_action_queued requires_action_queued→requires_action_queued",
    "send_interrupt": (
        "idle→running error→running error_queued→running_queued running→interrupting_queued "
        "running_queued→interrupting_queued interrupting→interrupting_queued "
        "interrupting_queued→interrupting_queued requires_action→running "
        "requires_action_queued→running_queued"
    ),
    "send_steer": f"{SENT} requires_action→requires_action_queued requires_action_queued→requires_action_queued",
    # Beyond the specification's table: what was said elsewhere joins a chat in which nothing runs (docs/openai.md).
    "add_messages": "idle→idle error→idle",
    "edit": FORKED,
    "regenerate": FORKED,
    # An error belongs to its branch (rule 10.3); a chat with a queue cannot be idle.
    "switch_branch": "idle→idle|error error→idle|error error_queued→error_queued",
    "continue": ASKED_AGAIN,
    "delete": (
        "idle→none running→none running_queued→none interrupting→none interrupting_queued→none "
        "requires_action→none requires_action_queued→none error→none error_queued→none idle_archived→none "
        "error_archived→none error_queued_archived→none"
    ),
    "delete_queued": (
        "running_queued→running|running_queued interrupting_queued→interrupting|interrupting_queued "
        "requires_action_queued→requires_action|requires_action_queued error_queued→error|error_queued "
        "error_queued_archived→error_archived|error_queued_archived"
    ),
    "reorder_queue": ARRANGED,
    "edit_queued": ARRANGED,
    "promote_queued": (
        "error_queued→running|running_queued requires_action_queued→running|running_queued "
        "running_queued→interrupting_queued interrupting_queued→interrupting_queued"
    ),
    # A live holder is asked to stop; for a dead one the interrupt ends the turn itself (P3).
    "interrupt": (
        "running→interrupting|idle running_queued→interrupting_queued|running|running_queued "
        "interrupting→interrupting|idle interrupting_queued→interrupting_queued|running|running_queued "
        "requires_action→idle requires_action_queued→running|running_queued idle→- error→- error_queued→- "
        "idle_archived→- error_archived→- error_queued_archived→-"
    ),
    "tool_results": "requires_action→running requires_action_queued→running_queued",
    "retry": ASKED_AGAIN,  # also a question that has no reply (rule 10.4)
    "compact": ASKED_AGAIN,
    # Asking for what is so already is no mistake.
    "archive": (
        "idle→idle_archived error→error_archived error_queued→error_queued_archived idle_archived→- "
        "error_archived→- error_queued_archived→-"
    ),
    "unarchive": (
        "idle_archived→idle error_archived→error error_queued_archived→error_queued idle→- error→- error_queued→-"
    ),
    # Beyond the specification's table: what stands beside a conversation can be changed at any time (PATCH).
    "update_chat": (
        "idle→idle running→running running_queued→running_queued interrupting→interrupting "
        "interrupting_queued→interrupting_queued requires_action→requires_action "
        "requires_action_queued→requires_action_queued error→error error_queued→error_queued "
        "idle_archived→idle_archived error_archived→error_archived "
        "error_queued_archived→error_queued_archived"
    ),
    # A turn that was taken over too often fails (rule 10.16).
    "acquire": (
        "running→running|error running_queued→running_queued|error_queued interrupting→interrupting "
        "interrupting_queued→interrupting_queued"
    ),
    "release": (
        "running→running running_queued→running_queued interrupting→interrupting "
        "interrupting_queued→interrupting_queued"
    ),
    # Beyond the specification's table: an attempt begins where a turn runs (on_attempt), and only there is
    # it told that there will be another (rule 2.3) or that the conversation was summed up on the way (rule 5.7).
    "start_attempt": RUNS_ON,
    "announce_retry": RUNS_ON,
    "keep_summary": RUNS_ON,
    # Steers move into history with the step, and may have been all of the queue.
    "commit_step": f"running→running running_queued→running|running_queued {STOPPED}",
    "finish_turn": f"running→idle running_queued→running|running_queued {STOPPED}",
    "await_action": f"running→requires_action running_queued→requires_action_queued {STOPPED}",
    "action_expired": "requires_action→running requires_action_queued→running_queued",
    "fail": f"running→error running_queued→error_queued {STOPPED}",
    "finish_interruption": STOPPED,
}

BEGINNINGS = {CommandName.START_ATTEMPT, CommandName.ANNOUNCE_RETRY, CommandName.KEEP_SUMMARY}
ENDINGS = [
    CommandName.COMMIT_STEP,
    CommandName.FINISH_TURN,
    CommandName.AWAIT_ACTION,
    CommandName.ACTION_EXPIRED,
    CommandName.FAIL,
    CommandName.FINISH_INTERRUPTION,
]


def make_commands(name: CommandName, snapshot: Snapshot, chat: Chat) -> Iterator[Command]:
    """Commands of this name that speak of what is there, so that only the state can be against them."""
    worker: dict[str, Any] = {"epoch": snapshot.epoch, "turn_id": snapshot.turn and snapshot.turn.id}
    attempt_id = snapshot.attempt.id if snapshot.attempt else None
    named = {**worker, "attempt_id": attempt_id}
    last = {node.role: node.id for node in chat.nodes.values() if not node.is_hidden}
    rows = [row.id for row in snapshot.queue]
    fields: dict[CommandName, list[dict[str, Any]]] = {
        CommandName.CREATE: [{}, {"with_message": True}],
        CommandName.EDIT: [{"message_id": last.get("user")}],
        CommandName.REGENERATE: [{"message_id": last.get("assistant")}, {"message_id": last.get("user")}],
        CommandName.SWITCH_BRANCH: [
            {"message_id": node.id, "exact": exact}
            for node in chat.nodes.values()
            for exact in (False, True)
            if not node.is_hidden
        ]
        or [{"message_id": ""}],
        CommandName.DELETE_QUEUED: [{"queued_id": row} for row in rows] or [{"queued_id": ""}],
        CommandName.REORDER_QUEUE: [{"queued_ids": tuple(reversed(rows))}],
        CommandName.EDIT_QUEUED: [{"queued_id": row} for row in rows] or [{"queued_id": ""}],
        CommandName.PROMOTE_QUEUED: [{"queued_id": row} for row in rows] or [{"queued_id": ""}],
        CommandName.INTERRUPT: [{}, {"turn_id": worker["turn_id"]}],
        CommandName.TOOL_RESULTS: [{"call_ids": snapshot.awaiting}],
        CommandName.UPDATE_CHAT: [{}, {"only_untitled": True}],
        CommandName.ACQUIRE: [{"worker_id": "another"}],
        CommandName.RELEASE: [{"epoch": snapshot.epoch}],
        CommandName.START_ATTEMPT: [worker],
        CommandName.ANNOUNCE_RETRY: [worker],
        CommandName.KEEP_SUMMARY: [worker],
        CommandName.COMMIT_STEP: [named, {**named, "failed": True}],
        CommandName.FINISH_TURN: [named, worker, {**named, "limit": "max_steps"}],
        CommandName.AWAIT_ACTION: [named],
        CommandName.ACTION_EXPIRED: [{"turn_id": worker["turn_id"]}],
        CommandName.FAIL: [named, worker],
        CommandName.FINISH_INTERRUPTION: [named, worker],
    }
    (kind,) = [kind for kind in list_commands() if kind.name is name]
    for some in fields.get(name, [{}]):
        yield kind(**some)


def list_commands(kind: type[Command] = Command) -> list[type[Command]]:
    below = [command for child in kind.__subclasses__() for command in list_commands(child)]
    return below or [kind]


def open_everything(snapshot: Snapshot) -> Snapshot:
    """With a holder, a turn and an attempt to name, in states that have none: then the table alone can refuse."""
    return msgspec.structs.replace(
        snapshot,
        holder="worker",
        turn=snapshot.turn or OpenTurn(id="turn"),
        attempt=snapshot.attempt or OpenAttempt(id="attempt", turn_id="turn", epoch=snapshot.epoch),
    )


def may_decide(chat: Chat, command: Command) -> bool:
    """Whether this command of a worker fits this chat: one that names an attempt needs one that is open."""
    needs_attempt = isinstance(command, commands.CommitStep | commands.AwaitAction)
    if isinstance(command, commands.Acquire):
        return chat.holder not in chat.alive
    if isinstance(command, commands.WorkerCommand):
        return chat.holder is not None and (chat.attempt is not None or not needs_attempt)
    return True


def test_every_command_has_a_row_and_every_row_a_command() -> None:
    assert set(TABLE) == set(CommandName)
    assert sorted(kind.name for kind in list_commands()) == sorted(CommandName)


def test_the_table_is_the_one_in_the_specification() -> None:
    table = {
        str(command): {str(state): {str(target) for target in targets} for state, targets in row.items()}
        for command, row in TABLE.items()
    }
    assert table == {command: parse_row(row) for command, row in SPEC.items()}


def parse_row(row: str) -> dict[str, set[str]]:
    pairs = [pair.split("→") for pair in row.split()]
    return {state: set() if targets == "-" else set(targets.split("|")) for state, targets in pairs}


@pytest.mark.parametrize("name", CommandName)
def test_a_command_leads_exactly_where_the_table_says(name: CommandName, ways_into: dict[State, list[Way]]) -> None:
    for state in State:
        expected = TABLE[name].get(state, frozenset())
        stays = {state} if state in TABLE[name] else set()
        assert find_reached(name, state, ways_into[state]) == (expected or stays), f"{name} in {state}"


def find_reached(name: CommandName, state: State, ways: list[Way]) -> set[State]:
    """Where chats in this state are led by all commands of this name that the table allows there."""
    reached: set[State] = set()
    for way in ways:
        first = way()
        assert first.state is state
        if state not in TABLE[name]:
            continue
        for index, _ in enumerate(make_commands(name, first.snapshot(), first)):
            chat = way()
            command = next(islice(make_commands(name, chat.snapshot(), chat), index, None))
            if may_decide(chat, command):
                decision = chat.do(command)
                assert decision.effective is bool(TABLE[name][state]), f"{command} in {state}"
                assert decision.effects == () or decision.effective, f"{command} in {state}"
                reached.add(chat.state)
    return reached


@pytest.mark.parametrize("name", CommandName)
def test_a_command_is_refused_exactly_where_the_table_has_no_entry(
    name: CommandName, ways_into: dict[State, list[Way]]
) -> None:
    for place, way in [(state, way) for state in State for way in ways_into[state]]:
        chat = way()
        snapshot = open_everything(chat.snapshot())
        for command in make_commands(name, snapshot, chat):
            given = None if place is State.NONE else aim(snapshot, chat, command)
            refusal = refuse_by_table(name, place, command)
            if refusal is not None or may_decide(chat, command):
                assert find_answer(given, command) is (refusal or Decision), f"{command} in {place}"


def find_answer(snapshot: Snapshot | None, command: Command) -> type[Decision | IndelibleError]:
    """Whether the machine decides, or how it refuses."""
    try:
        return type(decide(snapshot, command))
    except IndelibleError as refusal:
        return type(refusal)


def aim(snapshot: Snapshot, chat: Chat, command: Command) -> Snapshot:
    aimed = chat.snapshot(command)
    return msgspec.structs.replace(snapshot, target=aimed.target, destination=aimed.destination)


def refuse_by_table(name: CommandName, state: State, command: Command) -> type[IndelibleError] | None:
    if state in TABLE[name]:
        return None
    if state is State.NONE:
        return LeaseLost if isinstance(command, commands.WorkerCommand) else ChatNotFound
    if name in BEGINNINGS and state in {State.INTERRUPTING, State.INTERRUPTING_QUEUED}:
        return Interrupted
    return NotAllowed


@pytest.mark.parametrize("name", ENDINGS)
def test_ending_a_turn_that_is_over_succeeds_and_changes_nothing_in_any_state(
    name: CommandName, chat_in: Callable[[State], Chat]
) -> None:
    for state in [state for state in State if state is not State.NONE]:
        chat = chat_in(state)
        for command in make_commands(name, open_everything(chat.snapshot()), chat):
            before = chat.snapshot()
            late = msgspec.structs.replace(command, turn_id="turn of yesterday")
            assert chat.do(late) == Decision(effective=False), f"{command} in {state}"
            assert chat.snapshot() == before, f"{command} in {state}"


def test_a_refusal_names_the_command_and_the_state(chat_in: Callable[[State], Chat]) -> None:
    with pytest.raises(NotAllowed, match="Cannot retry while the chat is running") as refusal:
        chat_in(State.RUNNING).do(commands.Retry())
    assert (refusal.value.command, refusal.value.state) == ("retry", "running")


def test_an_archived_chat_says_that_this_is_why_it_refuses(chat_in: Callable[[State], Chat]) -> None:
    with pytest.raises(NotAllowed, match="Cannot send while the chat is archived") as refusal:
        chat_in(State.IDLE_ARCHIVED).do(commands.Send())
    assert (refusal.value.command, refusal.value.state) == ("send", "idle")


# --- the page ---

NAMES = ["gone", "idle", "running", "interrupting", "requires_action", "error", "archived"]


def name_status(state: State) -> str:
    if state is State.NONE:
        return "gone"
    return "archived" if state.endswith("_archived") else state.removesuffix("_queued")


def render_diagram() -> str:
    """Where commands lead, by status: what leaves the status as it is, and deleting, would only hide the rest."""
    labels: dict[tuple[str, str], list[str]] = {}
    for command, row in TABLE.items():
        if command is CommandName.DELETE:
            continue
        for state, targets in row.items():
            for target in sorted(targets):
                way = (name_status(state), name_status(target))
                if way[0] != way[1] and command not in labels.setdefault(way, []):
                    labels[way].append(command)
    lines = [
        f"    {'[*]' if start == 'gone' else start} --> {end}: {'<br/>'.join(labels[start, end])}"
        for start, end in sorted(labels, key=lambda way: [NAMES.index(name) for name in way])
    ]
    return "\n".join(["stateDiagram-v2", *lines, ""])


def render_table() -> str:
    """One line per command: from → to, in the order of the states."""
    lines = []
    for command, row in TABLE.items():
        ways = [
            f"{state} → {' or '.join(target for target in State if target in row[state]) or 'nothing happens'}"
            for state in State
            if state in row
        ]
        lines.append(f"| `{command}` | {', '.join(ways)} |")
    return "\n".join(["| command | from → to |", "|---|---|", *lines, ""])


def test_the_page_draws_the_diagram_of_this_table() -> None:
    drawn = re.search(r"```mermaid\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert drawn is not None
    assert drawn[1] == render_diagram(), f"docs/states.md should say:\n\n{render_diagram()}"


def test_the_page_lists_every_command_and_state_of_this_table() -> None:
    listed = re.search(r"^\| command \| from → to \|\n.*?\n(?=\n|\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    assert listed[0] == render_table(), f"docs/states.md should say:\n\n{render_table()}"


def test_the_page_explains_every_command_and_every_state() -> None:
    page = PAGE.read_text()
    explained = set(re.findall(r"^- \*\*`(\w+)`\*\*", page, re.MULTILINE))
    assert explained == set(CommandName)
    assert [state for state in State if not re.search(rf"^\| `{state}` \|", page, re.MULTILINE)] == []
