"""The store: what a chat is on disk, the same on SQLite and on PostgreSQL.

Today its ground floor: the tables and their rules (tables.py, types.py), opening a database so that a commit
is durable (engine.py, address.py, store/database/errors.py), and bringing one up to date (migrate.py, migrations/).
"""
