"""`indelible prove`: the promises as a command.

It starts the real server, has simulated users and readers use it over HTTP, and kills it, at random and where it hurts.
Then it compares what everybody saw with what is stored (docs/prove.md).

run.py is a proof from beginning to end. Its servers are servers.py and process.py, with the tools of tools.py and the
places to die of crash_points.py; they call the provider, provider.py, whose replies are model.py and script.py. Its
people are population.py, user.py and reader.py. fault_injector.py kills; transcript.py holds what a reader saw,
checker.py decides whether that is right, and report.py prints it.
"""
