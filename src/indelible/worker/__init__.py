"""The worker: it holds chats and answers them, and whatever happens to it, somebody goes on.

worker.py holds chats and watches over them, runner.py answers one chat turn by turn, scribe.py writes what a turn
says, recover.py says where a turn goes on, ledger.py keeps tools from running twice in silence.
"""

from indelible.worker.setup import WorkerSetup
from indelible.worker.worker import Worker

__all__ = ["Worker", "WorkerSetup"]
