"""Recording the exchanges with providers, without ever changing them (docs/debug.md).

`ExchangeLog` collects the exchanges of one step, `wrap` records one response into it. The rules are in http.py and
body.py.
"""

from indelible.recording.exchange_log import ExchangeLog, ExchangeRecord
from indelible.recording.http import ExchangeLogHook, wrap

__all__ = ["ExchangeLog", "ExchangeLogHook", "ExchangeRecord", "wrap"]
