"""`indelible prove`: a command that tries to break the promises.

It starts real servers, has simulated users and readers use them over HTTP, and kills them, at random and at the worst
moments. Then it compares what every reader saw with what is stored (docs/prove.md).

run.py runs a proof from beginning to end. servers/ starts servers, with tools and crash points of their own, and kills
them. They call provider.py, whose replies come from model.py and script.py. clients/ has users and readers, and what
they noted. checks/ compares that with the database, and report.py prints the result.
"""
