"""The store: what a chat is on disk, the same on SQLite and on PostgreSQL.

store.py and readable.py state its promises and keep them. `commands` writes, `queries` reads, `journal` appends the
parts of running replies, and `database` holds connections, tables, migrations, errors and backup.
"""
