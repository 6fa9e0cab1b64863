"""What readers received, compared with what is stored. In the order of the functions below:

each transcript is in order by itself                 nothing retracted, nothing repeated, one end of everything
each live transcript is the stored one                all that was seen is stored, and no reader missed anything
every accepted message is there, once                 what the user typed is safe
the conversation agrees with the transcript
the chat is at rest                                   nothing runs, nothing is queued, no number is missing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from indelible.prove.checks.evidence import Evidence, describe_difference
from indelible.prove.clients.transcript import ReaderTranscript, describe_message


def check_feed(evidence: Evidence) -> Iterator[str]:
    yield from _check_transcripts(evidence)
    yield from _check_live(evidence)
    yield from _check_sent(evidence)
    yield from _check_conversation(evidence)
    yield from _check_rest(evidence)


def _check_transcripts(evidence: Evidence) -> Iterator[str]:
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
    accepted, there = Counter(evidence.deeds.sent), Counter(evidence.stored.questions)
    for text, times in (accepted - there).items():
        yield f"a message was accepted and {there[text]} of {times + there[text]} are stored: {text!r}"
    for text in there - accepted:
        yield f"a message is stored more often than it was sent: {text!r}"


def _check_conversation(evidence: Evidence) -> Iterator[str]:
    """The conversation is the path from the first message to the head, as the feed told of them."""
    shown = [describe_message(message) for message in evidence.messages]
    streamed = [message.described for message in evidence.stored.list_ancestors(evidence.stored.head)][::-1]
    for in_conversation, in_feed in zip_longest(shown, streamed):
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
