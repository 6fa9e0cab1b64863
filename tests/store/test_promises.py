"""Every promise of the store has a docstring, and a test that uses it on both databases.

`KEPT_BY` names, sentence by sentence, a test that fails when the sentence is not true any more. A sentence that is
added, or changed, needs its entry here.
"""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.support.engine import begin_write, get_database
from tests.support.tables import users

from indelible.api.events import BEGINNING
from indelible.content import Finish, Text, TextDelta, encode
from indelible.machine.commands import Create, FinishTurn, StartAttempt
from indelible.store.journal.append import JournalRow
from indelible.store.outcome import IdempotencyKey
from indelible.store.payloads import NewChat
from indelible.store.store import Store
from indelible.testing import ManualClock

PROMISES = sorted(name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_"))
OF_READERS = {"page", "changes", "positions", "resume", "vacant"}
"""What people and readers see has suites of its own, named in the headers of history.py and changes.py."""

KEPT_BY = {
    "execute": {
        "Execute one command on one chat, entirely": "an_allowed_command_leads_where_the_table_says_and_the_rows_agree",
        "With `user_id`, a chat": "a_command_on_a_chat_of_another_user_is_not_found_and_changes_nothing",
        "A refused command": "a_refused_command_raises_and_changes_no_row_of_any_table",
        "Commands on one chat run one after": "of_twenty_messages_sent_at_once_none_is_lost_and_seq_has_no_gaps",
        "`seq` of a chat grows": "an_allowed_command_leads_where_the_table_says_and_the_rows_agree",
        "A command of a worker whose epoch is over": "a_refused_command_raises_and_changes_no_row_of_any_table",
        "When this returns": "what_is_announced_is_committed_by_then",
        "More messages in the queue": "a_full_queue_and_a_message_that_is_too_large_are_refused_and_change_nothing",
        "Content that is too large": "s102_a_chat_is_not_given_more_than_the_limit",
        "With `reserve`": "what_is_left_is_what_the_commands_leave_one_after_the_other",
        "The rows and events": "what_is_left_is_what_the_commands_leave_one_after_the_other",
    },
    "IdempotencyKey": {
        "A request that may be repeated": "the_same_request_again_gets_the_same_answer_and_sends_nothing",
        "`body_hash` is empty": "the_same_upload_again_gets_the_same_file",
        "`respond` makes": "the_same_request_again_gets_the_same_answer_and_sends_nothing",
        "The write, its response and": "the_same_request_again_gets_the_same_answer_and_sends_nothing",
        "A repeated request writes nothing": "the_same_request_again_gets_the_same_answer_and_sends_nothing",
        "A concurrent request with the same key": "many_at_once_send_once_and_all_get_the_one_answer",
        "The same key with another": "the_same_key_for_something_else_is_refused",
        "A refused write": "a_refused_command_leaves_no_key_behind",
    },
    "find_response": {
        "The response that": "the_same_request_again_gets_the_same_answer_and_sends_nothing",
        "Nothing is claimed": "the_same_request_again_gets_the_same_answer_and_sends_nothing",
    },
    "continue_chat": {
        "Change a chat's settings and start": "a_chat_is_continued_with_its_settings_or_not_at_all",
        "A refused request": "a_chat_is_continued_with_its_settings_or_not_at_all",
        "With `fork`": "a_continuation_in_a_copy_that_is_asked_for_often_is_one",
        "A message that would have to wait": "a_chat_is_continued_with_its_settings_or_not_at_all",
        "Beside results": "results_and_a_message_beside_them_resume_a_turn_together",
        "A repeated request": "a_continuation_in_a_copy_that_is_asked_for_often_is_one",
        "With `reserve`": "a_turn_begins_at_once_in_a_copy_with_its_settings",
    },
    "append": {
        "Write rows of running attempts": "a_group_is_written_whole",
        "A row is written only": "of_an_attempt_that_has_ended_or_has_another_epoch_nothing_is_written",
        "It never waits": "r7_an_attempt_that_is_being_ended_is_skipped_and_neither_lost_nor_waited_for",
        "The same row again": "other_bytes_under_the_same_number_are_refused_and_the_others_can_be_tried_again",
    },
    "beat": {
        "Record a worker's heartbeat": "a_heartbeat_moves_on_and_keeps_the_start",
        "`lock_key` is the session lock": "a_heartbeat_carries_the_lock_of_its_process_or_that_it_has_none",
        "Returns whether nobody": "a_worker_that_was_declared_gone_and_lives_counts_as_alive_again",
    },
    "declare_gone": {
        "Declare that the process": "a_worker_whose_lock_nobody_holds_is_declared_gone",
        "Any other worker may": "a_worker_whose_lock_nobody_holds_is_declared_gone",
        "A worker without this lock": "a_worker_that_has_another_lock_by_now_or_none_is_not_declared_gone",
    },
    "revive": {
        "A worker that was declared gone": "a_worker_that_was_declared_gone_and_lives_counts_as_alive_again",
        "What was taken from it": "what_was_taken_from_a_worker_that_lives_is_no_takeover",
    },
    "retire": {"Remove a worker": "a_retired_worker_hands_over_at_once"},
    "retire_all": {
        "Remove every worker": "when_all_workers_are_retired_their_chats_are_anybodys_at_once",
        "Only a process that has": "when_all_workers_are_retired_their_chats_are_anybodys_at_once",
    },
    "acquire": {
        "Acquire up to `limit`": "the_oldest_chats_are_taken_first_and_no_more_than_asked",
        "Two workers never": "many_workers_at_once_never_get_the_same_chat",
        "A chat that another transaction": "r2_a_chat_that_somebody_has_locked_is_passed_over_and_not_waited_for",
        "Every user's first chat": "a_worker_takes_fairly_and_within_the_limit",
        "`reserved` counts": "chats_that_are_just_beginning_count_in_the_limit_of_their_user",
        "What a dead worker left open": "a_finished_attempt_is_adopted_and_goes_on_where_its_journal_ends",
        "A turn that was taken over": "a_turn_that_is_given_up_is_not_in_the_answer_and_is_no_candidate_any_more",
        "With `chat_ids` it tries": "only_the_named_chats_are_acquired_and_each_by_one_worker",
        "It tries at most `suspects`": "turns_that_lost_a_worker_before_are_handed_out_one_at_a_time",
    },
    "probe": {
        "Of these chats": "a_probe_tells_a_worker_what_it_holds_and_what_is_wanted_of_it",
        "One statement": "a_probe_is_one_statement",
        "Runnable is what": "a_probe_finds_what_a_full_search_finds_in_the_same_order",
        "`reserved` counts": "chats_that_are_just_beginning_count_in_the_limit_of_their_user",
    },
    "work": {
        "What there is to do": "the_work_of_a_chat_is_its_open_turn_and_the_whole_conversation",
        "All of one moment": "work_is_of_one_moment_whatever_is_written_meanwhile",
    },
    "forget_responses": {
        "Erase the provider's names": "no_reply_of_the_chat_has_a_name_any_more",
        "Only the holder": "whoever_lost_the_chat_changes_nothing",
        "Nothing that a reader sees": "no_reply_of_the_chat_has_a_name_any_more",
    },
    "held": {"The chats that": "a_worker_reads_what_it_holds_and_what_is_wanted_of_it"},
    "expired": {
        "Chats whose deadline": "chats_that_waited_in_vain_are_found_the_longest_waiting_first",
        "Only a hint": "calls_expire_only_when_their_time_is_over",
    },
    "unheld_stops": {
        "Turns that were stopped": "stops_without_a_live_holder_are_found_the_longest_waiting_first",
        "Only a hint": "a_repeated_stop_ends_the_turn_only_when_its_holder_is_dead_or_gone",
    },
    "clean_up": {"Delete what is no longer": "cleaning_up_forgets_old_keys_and_workers_long_dead_and_nothing_else"},
    "fork": {
        "Create a new chat": "the_copy_is_the_path_to_the_message_word_by_word",
        "It is idle and independent": "each_of_the_two_can_be_deleted_without_the_other",
        "With `user_id`": "a_copy_that_is_asked_for_often_is_one",
        "Results that follow": "results_that_follow_the_message_come_along",
        "Queue, attempts and journal": "nothing_in_the_copy_points_to_the_old_chat",
        "The old chat does not": "nothing_in_the_copy_points_to_the_old_chat",
        "A repeated request": "a_copy_that_is_asked_for_often_is_one",
    },
    "update": {
        "Change a chat's metadata": "an_update_is_one_transaction_with_one_answer",
        "A repeated request": "an_update_that_is_repeated_changes_nothing",
    },
    "owner": {"The owner of a chat": "a_chat_has_an_owner_if_it_is_there"},
    "check_writable": {
        "Commit a write": "s109_a_check_writes_and_changes_nothing",
        "Raises `StoreFailed`": "s109_a_database_that_cannot_be_written_fails_the_check",
    },
    "status": {
        "The owner of a chat": "a_stop_of_a_held_chat_and_its_answer_cost_one_transaction_and_five_statements",
        "The cost does not depend": "the_status_of_a_chat_costs_the_same_however_long_it_is",
    },
    "find_user": {
        "The id of the user": "a_user_is_made_once_and_found_again",
        "A name that": "a_user_gets_no_name_that_an_account_may_not_have",
    },
    "ensure_user": {
        "The id of the user": "a_user_is_made_once_and_found_again",
        "A name that": "a_user_gets_no_name_that_an_account_may_not_have",
    },
    "list_chats": {
        "A user's chats": "the_pages_together_are_the_list_each_chat_once",
        "A chat moves": "a_chat_whose_metadata_changes_stays_where_it_is",
        "`wanted` selects": "a_list_has_the_chats_that_are_wanted",
    },
    "count_chats": {
        "The number of chats": "chats_are_counted_by_state_and_those_without_an_answer_are_reported",
    },
    "view": {
        "The chat, its last": "r9_a_view_is_of_one_moment_whatever_is_written_meanwhile",
        "Its `seq` and `live.n`": "a_view_and_the_events_after_its_cursor_are_everything_exactly_once",
    },
    "snapshot": {"The chat without messages": "a_snapshot_is_the_view_and_the_last_messages_of_one_moment"},
    "queue": {
        "The queued messages": "s102_reading_a_queue_reads_neither_messages_nor_the_running_reply",
        "It reads no message": "s102_reading_a_queue_reads_neither_messages_nor_the_running_reply",
    },
    "events": {"The events after": "a_view_and_the_events_after_its_cursor_are_everything_exactly_once"},
    "answering": {
        "The last turn that answers": "the_last_turn_that_answers_a_message_is_found_and_none_of_another_message",
        "It is told with": "a_turn_that_waited_begins_again_with_every_result_and_with_nothing_else",
    },
    "turn_facts": {
        "The turn that": "one_statement_reads_what_a_turn_answers_how_it_ended_and_its_chat",
        "One statement": "one_statement_reads_what_a_turn_answers_how_it_ended_and_its_chat",
        "Raises `NotFound`": "a_chat_without_messages_has_no_turn",
    },
    "attempts": {
        "The attempts of a chat": "the_pages_together_are_all_attempts_of_the_chat_the_newest_first",
        "Attempts that left nothing": "attempts_have_their_end_and_the_running_one_has_none",
    },
    "pack": {
        "Pack the journals": "r12_a_sweep_stops_when_its_time_is_up",
        "Every read gives": "r11_a_packed_attempt_reads_as_it_read_before_from_every_row",
    },
    "tree": {"Every message": "the_tree_has_every_branch_in_the_order_of_creation"},
    "search": {
        "The user's chats": "chats_are_found_by_the_words_of_their_messages_newest_first",
        "The last word": "chats_are_found_by_the_words_of_their_messages_newest_first",
        "Case, diacritics": "case_diacritics_and_the_order_of_words_do_not_matter",
        "It finds what": "a_search_finds_what_was_committed_before_it",
        "Reasoning, results": "replies_of_every_branch_are_found_and_what_people_do_not_read_is_not",
        "Only the newest": "only_the_newest_matches_are_looked_at",
    },
    "index": {
        "Add what is new": "a_search_finds_what_was_committed_before_it",
        "Each commit is short": "a_long_chat_is_indexed_in_short_commits_each_message_once",
        "A crash in between": "a_long_chat_is_indexed_in_short_commits_each_message_once",
    },
    "forget_chat": {
        "Remove a chat": "a_chat_that_is_not_deleted_after_all_is_found_again",
        "If it is not": "a_chat_that_is_not_deleted_after_all_is_found_again",
    },
    "summaries": {
        "The owner and": "a_chat_is_unread_from_a_reply_until_it_is_read",
        "One statement": "labels_pin_and_instructions_are_read_by_the_owner_alone",
        "A deleted chat": "labels_pin_and_instructions_are_read_by_the_owner_alone",
    },
    "stale": {"Chats in which": "chats_that_nobody_uses_are_found_unless_pinned_unread_busy_or_archived"},
    "find_ephemeral": {
        "Ephemeral chats whose": "an_ephemeral_chat_is_found_after_its_turn_unless_somebody_went_on_with_it",
        "One that somebody": "an_ephemeral_chat_is_found_after_its_turn_unless_somebody_went_on_with_it",
    },
    "mark_read": {
        "Mark a chat as read": "a_chat_is_unread_from_a_reply_until_it_is_read",
        "A mark only moves": "a_mark_only_moves_forward_and_never_beyond_the_last_event",
        "A message of the": "a_message_of_the_user_marks_what_was_before_it_as_read",
        "A chat that the user": "a_chat_of_somebody_else_is_not_marked",
    },
    "extras": {
        "Labels, pin": "labels_pin_and_instructions_are_read_by_the_owner_alone",
        "Raises `NotFound`": "labels_pin_and_instructions_are_read_by_the_owner_alone",
    },
    "draft": {"What the user has": "a_draft_is_its_users_alone_and_goes_with_its_chat"},
    "save_draft": {
        "Replace the user's": "an_empty_text_deletes_a_draft",
        "It goes with": "a_draft_is_its_users_alone_and_goes_with_its_chat",
    },
    "usage": {
        "What a user's": "the_sums_of_the_days_are_the_sums_of_the_attempts",
        "Every attempt counts": "a_retried_a_failed_and_a_stopped_attempt_count_with_what_was_reported",
        "It stays": "usage_stays_when_a_chat_is_deleted",
        "A `name` that": "a_user_who_used_nothing_has_no_days_and_a_name_that_nobody_has_is_not_found",
    },
    "export_chat": {"The whole chat": "exporting_an_imported_chat_gives_the_same_file"},
    "import_chat": {
        "Create a chat": "exporting_an_imported_chat_gives_the_same_file",
        "It is idle": "exporting_an_imported_chat_gives_the_same_file",
        "All of it": "a_file_with_a_mistake_is_refused_and_changes_nothing",
        "Exporting it": "exporting_an_imported_chat_gives_the_same_file",
    },
}


def read_tests() -> str:
    tests = Path(__file__).parents[1]
    found = [*tests.glob("store/test_*.py"), tests / "files/test_file_store.py"]
    return "".join(path.read_text() for path in found)


def list_sentences(name: str) -> list[str]:
    promised = IdempotencyKey if name == "IdempotencyKey" else getattr(Store, name)
    told = " ".join((inspect.getdoc(promised) or "").split()).replace(" * ", " ")
    return re.split(r"(?<=\.) (?=[A-Z`])", told)


@pytest.mark.parametrize("name", sorted({*PROMISES, "IdempotencyKey"} - OF_READERS))
def test_every_sentence_of_a_promise_is_kept_by_a_test(name: str) -> None:
    tests = set(re.findall(r"def test_(\w+)\(", read_tests()))
    kept = KEPT_BY[name]
    for sentence in list_sentences(name):
        assert sum(sentence.startswith(beginning) for beginning in kept) == 1, sentence
    for beginning, test in kept.items():
        assert any(sentence.startswith(beginning) for sentence in list_sentences(name)), f"nobody promises: {beginning}"
        assert test in tests, f"there is no test_{test}"


@pytest.mark.parametrize("name", PROMISES)
def test_every_promise_is_written_down_kept_and_tried(name: str) -> None:
    assert (inspect.getdoc(getattr(Store, name)) or "").strip()
    assert callable(getattr(Store, name))
    assert f"store.{name}(" in read_tests()


async def test_a_chat_from_beginning_to_end_through_the_store_alone(engine: AsyncEngine) -> None:
    async with begin_write(engine) as connection:
        await connection.execute(insert(users).values(id="user_1", name="ada", created_at=datetime.now(UTC)))
    store: Store = Store(get_database(engine))
    await store.beat("worker_1")
    await store.execute("chat_1", Create(with_message=True), NewChat(owner_id="user_1", blocks=[Text("hi")]))
    (held,) = await store.acquire("worker_1", limit=5)
    turn_id = (await store.view("chat_1")).turn
    assert turn_id is not None
    attempt = (await store.execute("chat_1", StartAttempt(epoch=held.epoch, turn_id=turn_id))).attempt
    assert attempt is not None
    said = encode([TextDelta("1", "Hello"), Finish("stop")])
    await store.append([JournalRow(attempt.chat_id, attempt.id, attempt.epoch, 1, said)])
    await store.execute("chat_1", FinishTurn(epoch=held.epoch, turn_id=turn_id, attempt_id=attempt.id))
    assert [message.text for message in (await store.view("chat_1")).messages] == ["hi", "Hello"]
    told = await store.events("chat_1", after=0)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    before = await store.changes("chat_1", BEGINNING)
    assert await store.pack(ended_before=datetime(2099, 1, 1, tzinfo=UTC), clock=ManualClock()) == 1
    assert await store.changes("chat_1", BEGINNING) == before
    await store.retire("worker_1")
    assert (await store.view("chat_1")).status == "idle"
