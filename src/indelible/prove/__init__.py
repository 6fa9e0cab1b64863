"""`indelible prove`: a command that tries to break the promises.

It starts real servers, has simulated users and readers use them over HTTP, and kills them, at random and at the worst
moments. Then it compares what every reader saw with what is stored (docs/prove.md).

run.py runs a proof from beginning to end. servers.py starts servers, with the tools and crash points of tools.py, and
faults.py kills them. They call provider.py, whose replies come from model.py and script.py. population.py has the
clients, user.py and reader.py. checks.py compares what they noted with the database, and report.py prints the result.
"""

from __future__ import annotations
