"""Recording the exchanges with providers, without ever changing them (docs/debug.md).

`ExchangeLog` collects the exchanges of one step, `wrap` records one response into it. The rules are in http.py and
exchange.py.
"""

from indelible.recording.exchange import ExchangeRecord
from indelible.recording.http import ExchangeLog, wrap

__all__ = ["ExchangeLog", "ExchangeRecord", "wrap"]
