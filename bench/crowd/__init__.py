"""`python -m bench crowd`: many feeds, readers that stall, a storm of reconnects, cut connections, and one who suffers.

Four processes beside the database's: the provider, the server, the crowd (crowd.py) and a probe (probe.py), so that
neither the crowd nor the bench itself delays what the probe measures, but for the cores that they share. measure.py
starts them, watches the memory of the server, and puts the probe's gaps and the crowd's phases together by the clock of
the machine, which all processes share.
"""
