"""What a database looks like, as text, asked of the database itself and of nothing that made it.

Everything is sorted by name. The order in which columns were added is no promise, and neither are comments.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import asyncpg

_COLUMNS: Final = """
SELECT c.relname AS owner, a.attname AS name, format_type(a.atttypid, a.atttypmod)
    || CASE WHEN l.collname IS NULL OR l.collname = 'default' THEN '' ELSE ' COLLATE ' || l.collname END
    || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
    || CASE a.attidentity WHEN '' THEN '' WHEN 'a' THEN ' ALWAYS AS IDENTITY' ELSE ' BY DEFAULT AS IDENTITY' END
    || CASE WHEN d.adbin IS NULL THEN ''
        WHEN a.attgenerated <> '' THEN ' GENERATED AS ' || pg_get_expr(d.adbin, d.adrelid)
        ELSE ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) END AS about
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p', 'v', 'm')
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attnum > 0 AND NOT a.attisdropped
"""
_CONSTRAINTS: Final = """
SELECT c.relname AS owner, k.conname AS name, pg_get_constraintdef(k.oid) AS about
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
WHERE k.contype <> 'n'
"""
_INDEXES: Final = """
SELECT tablename AS owner, indexname AS name, indexdef AS about FROM pg_indexes WHERE schemaname = 'public'
"""
_OTHERS: Final = """
SELECT 'extension' AS owner, extname AS name, '' AS about FROM pg_extension
UNION ALL
SELECT 'sequence', sequencename, data_type::text FROM pg_sequences WHERE schemaname = 'public'
UNION ALL
SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', p.proname, pg_get_functiondef(p.oid) FROM pg_proc p
JOIN pg_namespace n ON n.oid = p.pronamespace AND n.nspname = 'public' AND p.prokind = 'f'
WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')
UNION ALL
SELECT 'type', t.typname, format_type(t.oid, NULL) FROM pg_type t
JOIN pg_namespace n ON n.oid = t.typnamespace AND n.nspname = 'public'
WHERE t.typtype IN ('d', 'e')
"""
_COMMENTS: Final = """
SELECT c.relname AS owner, COALESCE(a.attname, '') AS name, d.description AS about
FROM pg_description d
JOIN pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_class'::regclass
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
"""
_WHAT: Final = (("column", _COLUMNS), ("constraint", _CONSTRAINTS), ("index", _INDEXES), ("", _OTHERS))


async def describe_database(database: str) -> str:
    """The schema of a database of either kind, by its address."""
    if database.startswith("postgresql"):
        return await describe_postgres(database)
    return describe_sqlite(Path(database))


async def describe_postgres(url: str) -> str:
    """A line for every column, constraint, index and whatever else there is."""
    connection: Any = await asyncpg.connect(url)
    try:
        lines = [
            _join(f"{row['owner']} {what}".strip(), row["name"], row["about"])
            for what, query in _WHAT
            for row in await connection.fetch(query)
        ]
    finally:
        await connection.close()
    return "\n".join(sorted(lines))


async def list_comments(url: str) -> list[str]:
    """What PostgreSQL knows about its tables and columns, in words."""
    connection: Any = await asyncpg.connect(url)
    try:
        return sorted(f"{row['owner']} {row['name']}: {row['about']}" for row in await connection.fetch(_COMMENTS))
    finally:
        await connection.close()


def describe_sqlite(path: Path) -> str:
    """Every statement of the schema, its definitions sorted, one per line; and the pragmas that stay in a file."""
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        pragmas = {name: file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "journal_mode")}
    described = [
        "\n".join([f"{kind} {name}", *(f"  {each}" for each in _list_definitions(sql))])
        for kind, name, sql in sorted(rows)
        if not sql.startswith("CREATE TABLE '")  # of the search index: SQLite makes them itself
    ]
    return "\n".join([*described, *(f"PRAGMA {name} = {value}" for name, value in pragmas.items())])


def _join(*words: str) -> str:
    return " ".join(" ".join(words).split())


def _list_definitions(sql: str) -> list[str]:
    """The columns and constraints of a table; another statement is one line."""
    plain = _join(re.sub(r"--[^\n]*", "", sql).replace('"', ""))
    found = re.fullmatch(r"CREATE TABLE (?:IF NOT EXISTS )?\w+ ?\((.*)\)(.*)", plain)
    if found is None:
        return [plain]
    return [*sorted(_split(found[1])), *filter(None, [found[2].strip()])]


def _split(text: str) -> Iterator[str]:
    """At the commas that are in no brackets and in no text."""
    depth, is_text, start = 0, False, 0
    for place, letter in enumerate(text):
        if letter == "'":
            is_text = not is_text
        elif not is_text:
            depth += (letter == "(") - (letter == ")")
            if letter == "," and depth == 0:
                yield _tidy(text[start:place])
                start = place + 1
    yield _tidy(text[start:])


def _tidy(text: str) -> str:
    return text.strip().replace("( ", "(").replace(" )", ")").replace("KEY(", "KEY (")
