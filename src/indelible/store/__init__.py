"""The store: what a chat is on disk, the same on SQLite and on PostgreSQL.

protocol.py states its promises and sql_store.py keeps them. `commands` writes, `queries` reads, `journal` appends the
parts of running replies, and `database` holds connections, tables, migrations, errors and backup.
"""
