"""`indelible prove`: the promises as a command.

It starts the real server, lets people use it over HTTP, and kills it, at random and where it hurts. Then it compares
what everybody saw with what is stored (docs/prove.md).

run.py is a proof from beginning to end. Its servers are servers.py and process.py, with the tools of tools.py and the
places to die of crash_points.py; they ask the provider, provider.py, whose replies are model.py and script.py. Its
people are population.py, user.py and reader.py; who kills is fault_injector.py; what was seen is transcript.py, whether
that is right checker.py, and how it is told report.py.
"""
