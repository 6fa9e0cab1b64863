"""The migrations: the steps that lead to the tables in tables/.

A released revision never changes, so it does not import tables/, which does. It is plain SQL with placeholders for
the few words that the two databases spell differently (spelling.py). Alembic runs env.py, and migrate.py calls Alembic
(runner.py).
"""
