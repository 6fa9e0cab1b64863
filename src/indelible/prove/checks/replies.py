"""Whether every reply is the expected one: its words, its model, its end and its notice.

A reply is read from the tree: the text between a question and a message below it, over all turns that wrote it. So a
reply that was continued, regenerated or steered is checked like any other. On every branch it is the beginning of the
expected one; where a turn ended as complete, all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from indelible.prove.checks.evidence import Evidence, describe_difference
from indelible.prove.clients.transcript import SeenTurn
from indelible.store.commands.apply.texts import NOTICES

_SETTLED: Final = ("complete", "interrupted", "edited")


def check_replies(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    yield from _check_turns(evidence, find_reply)
    yield from _check_prefixes(evidence, find_reply)
    yield from _check_questions(evidence)
    yield from _check_models(evidence)
    yield from _check_notices(evidence)


def _check_turns(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    stored = evidence.stored
    for turn_id, turn in stored.turns.items():
        if turn.outcomes and turn.outcomes[0] not in _SETTLED:
            yield f"{turn_id} ended as {turn.outcomes[0]}"
        shown = stored.read_turn(turn_id)
        if shown != turn.reply:
            yield f"{turn_id}: shown is not stored: {describe_difference(shown, turn.reply)}"
        if turn.outcomes != ["complete"]:
            continue
        question, reply = stored.read_answer(turn.last_id) if turn.last_id else (turn.question, "")
        known = find_reply(question)
        if known is not None and reply != known:
            yield f"{turn_id} is not the whole reply to {question!r}: {describe_difference(reply, known)}"
    outcomes = Counter(turn.outcomes[0] for turn in stored.turns.values() if turn.outcomes)
    if outcomes["interrupted"] > evidence.deeds.stops:
        yield f"{outcomes['interrupted']} replies were stopped, but only {evidence.deeds.stops} stops were requested"
    if outcomes["edited"] > evidence.deeds.edits:
        yield f"{outcomes['edited']} replies gave way to an edit, but only {evidence.deeds.edits} were requested"


def _check_prefixes(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    """On every branch, what was said is the beginning of the reply."""
    for message_id, message in evidence.stored.tree.items():
        if message.role == "assistant":
            question, reply = evidence.stored.read_answer(message_id)
            known = find_reply(question)
            if known is not None and not known.startswith(reply):
                difference = describe_difference(reply, known)
                yield f"{message_id} is not the beginning of the reply to {question!r}: {difference}"


def _check_questions(evidence: Evidence) -> Iterator[str]:
    """Every message began a turn or steered one, and none was answered more often than somebody asked for it."""
    stored = evidence.stored
    for message_id, message in stored.tree.items():
        if message.role == "user" and message_id not in stored.joined and message_id not in stored.copied:
            yield f"a message was never taken up: {message.text!r}"
    surplus = len(stored.turns) - len({turn.question_id for turn in stored.turns.values()})
    if surplus > evidence.deeds.again:
        yield f"{surplus} replies answer a message again, but that was requested {evidence.deeds.again} times"


def _check_models(evidence: Evidence) -> Iterator[str]:
    """The model that was asked for answers (rule 10.1). Who named none for a turn gets that of the message."""
    stored, deeds = evidence.stored, evidence.deeds
    for message_id, message in stored.tree.items():
        if message.role != "assistant" or message.turn_id is None:
            continue
        begun_with = stored.turns[message.turn_id].question
        expected = deeds.turn_models.get(message.turn_id) or deeds.models.get(begun_with)
        if expected is not None and message.model != expected:
            yield f"{message_id} is by the model {message.model}, but {expected} was to answer {begun_with!r}"


def _check_notices(evidence: Evidence) -> Iterator[str]:
    """A stopped turn has one notice that says so, and no other turn has one. A turn that gave way needs none."""
    for turn_id, turn in evidence.stored.turns.items():
        wanted = 1 if turn.outcomes == ["interrupted"] else 0
        found = turn.notices.count(NOTICES["stopped"])
        if found != wanted and not (turn.gave_way and found == 0):
            yield f"{turn_id} ended as {_name_outcome(turn)} with the notices {turn.notices}"


def _name_outcome(turn: SeenTurn) -> str:
    return turn.outcomes[0] if turn.outcomes else "nothing"
