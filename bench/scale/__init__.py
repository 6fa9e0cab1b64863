"""Beyond one process and one machine: measured (`python -m bench scale`) and computed (`python -m bench model`).

processes.py    one, two and four processes on one PostgreSQL
limits.py       what one SQLite file, one PostgreSQL and one disk carry, without Indelible
measure.py      both, as tables and JSON
model.py        a pure function: from a load and a design to the use of every resource, with the costs as a value
picture.py      the model's table, and a picture of where each design breaks
"""
