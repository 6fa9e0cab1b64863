"""`indelible prove`: a command that tries to break the promises.

It starts real servers, has simulated users and readers use them over HTTP, and kills them, at random and at the worst
moments. Then it compares what every reader saw with what is stored (docs/prove.md).

run.py runs a proof from beginning to end. servers.py and process.py are the servers, with the tools of tools.py and the
crash points of crash_points.py. They call provider.py, whose replies come from model.py and script.py. population.py,
user.py and reader.py are the clients. fault_injector.py kills servers; transcript.py records what a reader saw,
checker.py checks it, and report.py prints the result.
"""
