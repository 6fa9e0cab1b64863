"""The migrations: how a database came to have the tables of tables.py, one step after the other.

A revision that has been released is never changed, so it does not look at tables.py, which goes on. It is plain
SQL with the few words that the two databases spell differently left open (spelling.py). env.py is where Alembic
comes in; migrate.py is what calls it.
"""
