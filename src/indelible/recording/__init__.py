"""Seeing what went to a provider and what came back, without ever touching it (SPEC §7).

`ExchangeLog` gathers the exchanges of one step, `wrap` records one answer into it. The rules are in http.py and
body.py.
"""

from indelible.recording.exchange_log import ExchangeLog, ExchangeRecord
from indelible.recording.http import ExchangeLogHook, wrap

__all__ = ["ExchangeLog", "ExchangeLogHook", "ExchangeRecord", "wrap"]
