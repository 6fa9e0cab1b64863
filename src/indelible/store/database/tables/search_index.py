"""The full-text index of SQLite, as SQL: an FTS5 table over `search_entries`, and the triggers that keep it in step.

`content=search_entries` keeps the words once. `detail=none` and `columnsize=0` leave only which entries have a word:
that is all that a search asks for, and a third of the size. The tokenizer is `ascii`, which splits at spaces and takes
every other character of ours as part of a word: lists/search_words.py has already folded and split the text, so that
both databases agree, whatever Unicode tables SQLite was built with. `prefix` answers the search for the first two or
three letters of a word, which people type first, without reading every word that begins with them.

An index without `contentless_delete` (SQLite 3.43) needs the old words to delete an entry; the trigger has them.

Both the migration and the declared tables (lists.py) run these statements, which are separated by empty lines.
"""

from __future__ import annotations

from typing import Final

SQLITE_INDEX: Final = """
CREATE VIRTUAL TABLE search_index USING fts5(words, content='search_entries', content_rowid='id',
    tokenize='ascii', detail='none', columnsize=0, prefix='2 3')

CREATE TRIGGER search_entries_added AFTER INSERT ON search_entries BEGIN
    INSERT INTO search_index (rowid, words) VALUES (new.id, new.words);
END

CREATE TRIGGER search_entries_removed AFTER DELETE ON search_entries BEGIN
    INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.id, old.words);
END
"""
