"""Whether the promises held: everything that readers saw, compared with everything that is stored.

For every chat there are the transcripts of its live readers, over all their reconnects; the transcript of a new reader
who reads everything afterwards; and the conversation, the snapshot and the event numbers as they are stored. For the
tools there is their notebook. What must hold, in the order of the functions below:

    each transcript is in order by itself                 nothing retracted, nothing repeated, one end of everything
    each live transcript is the stored one                all that was seen is stored, and no reader missed anything
    every accepted message is there, once                 what the user typed is safe
    every reply is the expected one                       all of it, or its beginning if its user stopped it
    the conversation agrees with the transcript
    the chat is at rest                                   nothing runs, nothing is queued, no number is missing
    no tool ran twice unless it may                       and a tool that reported its run did run

Pure: from values to sentences. Must stay true (tests/prove/test_checker.py): a history that keeps the promises has no
fault, whatever it is; one in which any single thing was lost, doubled, changed or left open has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import msgspec

from indelible.prove.clients.transcript import ReaderTranscript, describe_message

_CONTEXT: Final = 30
_SETTLED: Final = ("complete", "interrupted")


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence about one chat. `seqs` are the stored numbers of its events, if the database is accessible.

    `sent` are the messages that the server accepted, `stops` counts the requests to stop a reply.
    """

    chat_id: str
    sent: Sequence[str]
    stops: int
    live: Sequence[ReaderTranscript]
    stored: ReaderTranscript
    messages: Sequence[dict[str, Any]]
    snapshot: dict[str, Any]
    seqs: Sequence[int] | None = None


class Fault(msgspec.Struct, frozen=True):
    """A broken promise, and its chat, if it has one."""

    sentence: str
    chat_id: str | None = None


def check_chat(evidence: Evidence, find_reply: Callable[[str], str | None]) -> list[Fault]:
    """The promises broken in this chat. `find_reply` predicts replies; it returns None if it cannot."""
    found = [
        *_check_stories(evidence),
        *_check_live(evidence),
        *_check_sent(evidence),
        *_check_replies(evidence, find_reply),
        *_check_conversation(evidence),
        *_check_rest(evidence),
    ]
    return [Fault(sentence, evidence.chat_id) for sentence in found]


def check_effects(
    runs: Sequence[tuple[str, str]], evidence: Sequence[Evidence], *, safe: frozenset[str]
) -> list[Fault]:
    """Tools that ran too often or not at all. A run is a name and an idempotency key, which begins with its turn."""
    times = Counter(runs)
    chat_of = {turn_id: one.chat_id for one in evidence for turn_id in one.stored.turns}
    faults = [
        Fault(f"{name} ran {count} times under the key {key}", chat_of.get(key.split("/")[0]))
        for (name, key), count in times.items()
        if count > 1 and name not in safe
    ]
    for one in evidence:
        reported = [result for result in one.stored.results if not result.get("is_error")]
        for name, output in ((result["name"], str(result.get("output", ""))) for result in reported):
            if (name, output.removeprefix("noted ")) not in times:
                faults.append(Fault(f"{name} reported {output!r}, but the notebook has no trace of it", one.chat_id))
    return faults


# --- one chat ---


def _check_stories(evidence: Evidence) -> Iterator[str]:
    for name, transcript in _name_transcripts(evidence):
        for fault in transcript.faults:
            yield f"{name}: {fault}"
        for attempt_id, attempt in transcript.attempts.items():
            if not attempt.has_ended:
                yield f"{name}: {attempt_id} never ends"
        for turn_id, turn in transcript.turns.items():
            if len(turn.outcomes) != 1:
                yield f"{name}: {turn_id} ends {len(turn.outcomes)} times"


def _name_transcripts(evidence: Evidence) -> list[tuple[str, ReaderTranscript]]:
    live = [(f"reader {number}", transcript) for number, transcript in enumerate(evidence.live, 1)]
    return [*live, ("a newcomer", evidence.stored)]


def _check_live(evidence: Evidence) -> Iterator[str]:
    stored = evidence.stored
    unfinished = [
        name for name, transcript in _name_transcripts(evidence) if transcript.cursor != evidence.snapshot["cursor"]
    ]
    yield from (f"{name} did not receive everything" for name in unfinished)
    if stored.cursor != evidence.snapshot["cursor"]:
        return
    for number, transcript in enumerate(evidence.live, 1):
        for attempt_id in stored.attempts.keys() | transcript.attempts.keys():
            seen, saved = (which.attempts.get(attempt_id) for which in (transcript, stored))
            if seen is None or saved is None:
                yield f"reader {number}: {attempt_id} was {'not seen' if seen is None else 'seen and is not stored'}"
            elif seen.rows != saved.rows:
                difference = describe_difference(seen.text, saved.text)
                yield f"reader {number}: of {attempt_id}, seen is not stored: {difference}"
        for seen_fact, stored_fact in zip_longest(transcript.facts, stored.facts):
            if seen_fact != stored_fact:
                yield f"reader {number} received {seen_fact}, but stored is {stored_fact}"
                break


def _check_sent(evidence: Evidence) -> Iterator[str]:
    accepted, there = Counter(evidence.sent), Counter(evidence.stored.questions)
    for text, times in (accepted - there).items():
        yield f"a message was accepted and {there[text]} of {times + there[text]} are stored: {text!r}"
    for text in there - accepted:
        yield f"a message is stored more often than it was sent: {text!r}"


def _check_replies(evidence: Evidence, find_reply: Callable[[str], str | None]) -> Iterator[str]:
    for turn_id, turn in evidence.stored.turns.items():
        if turn.outcomes and turn.outcomes[0] not in _SETTLED:
            yield f"{turn_id} ended as {turn.outcomes[0]}"
        known = find_reply(turn.question)
        shown = evidence.stored.read_turn(turn_id)
        if shown != turn.reply:
            yield f"{turn_id}: shown is not stored: {describe_difference(shown, turn.reply)}"
        if known is None:
            continue
        is_whole = turn.outcomes == ["complete"]
        if turn.reply != known if is_whole else not known.startswith(turn.reply):
            expected = "the whole reply" if is_whole else "the beginning of the reply"
            yield f"{turn_id} is not {expected} to {turn.question!r}: {describe_difference(turn.reply, known)}"
    answered = Counter(turn.question for turn in evidence.stored.turns.values())
    for text, times in (answered - Counter(evidence.sent)).items():
        yield f"a message was answered {times} times too often: {text!r}"
    stopped = sum(turn.outcomes == ["interrupted"] for turn in evidence.stored.turns.values())
    if stopped > evidence.stops:
        yield f"{stopped} replies were stopped, but only {evidence.stops} stops were requested"


def _check_conversation(evidence: Evidence) -> Iterator[str]:
    """Users of a proof never edit or switch branches, so the conversation is all messages in order of arrival."""
    stored = [describe_message(message) for message in evidence.messages]
    for in_conversation, in_feed in zip_longest(stored, evidence.stored.messages):
        if in_conversation != in_feed:
            yield f"the conversation has {in_conversation}, but the feed has {in_feed}"
            break


def _check_rest(evidence: Evidence) -> Iterator[str]:
    snapshot = evidence.snapshot
    wanted: dict[str, Any] = {"status": "idle", "turn": None, "live": None, "queue": [], "error": None}
    for name, value in wanted.items():
        if snapshot[name] != value:
            yield f"the chat is not at rest: its {name} is {snapshot[name]!r}"
    if evidence.seqs is not None and list(evidence.seqs) != list(range(1, len(evidence.seqs) + 1)):
        yield f"its events are numbered {list(evidence.seqs)}"


def describe_difference(one: str, other: str) -> str:
    """The first difference between two texts, with some context."""
    if one == other:
        return "the texts are the same, their rows are not"
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    begin = max(0, at - _CONTEXT)
    pieces = [text[begin : at + _CONTEXT] for text in (one, other)]
    return f"after {at} characters …{pieces[0]!r} and …{pieces[1]!r}"
