"""What lists promise beyond the list itself: every sentence is kept by a test on both databases.

As in test_protocol.py: a sentence that is added to store/lists/protocol.py, or changed, needs its entry here.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from indelible.store.lists.protocol import ListStore
from indelible.store.lists.sql_lists import SqlLists

PROMISES = sorted(name for name, _ in inspect.getmembers(ListStore, inspect.isfunction) if not name.startswith("_"))
KEPT_BY = {
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
        "One statement": "what_stands_beside_a_chat_is_told",
        "A deleted chat": "what_stands_beside_a_chat_is_told",
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
        "Labels, pin": "what_stands_beside_a_chat_is_told",
        "Raises `NotFound`": "what_stands_beside_a_chat_is_told",
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


def list_sentences(name: str) -> list[str]:
    told = " ".join((inspect.getdoc(getattr(ListStore, name)) or "").split()).replace(" * ", " ")
    return re.split(r"(?<=\.) (?=[A-Z`])", told)


@pytest.mark.parametrize("name", PROMISES)
def test_every_sentence_about_lists_is_kept_by_a_test(name: str) -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"def test_(\w+)\(", tests))
    for sentence in list_sentences(name):
        assert sum(sentence.startswith(beginning) for beginning in KEPT_BY[name]) == 1, sentence
    for beginning, test in KEPT_BY[name].items():
        assert any(sentence.startswith(beginning) for sentence in list_sentences(name)), f"nobody promises: {beginning}"
        assert test in named, f"there is no test_{test}"
    assert callable(getattr(SqlLists, name))
    assert f"store.lists.{name}(" in tests
