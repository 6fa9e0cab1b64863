"""The worker: it holds chats and answers them, and whatever happens to it, somebody goes on.

worker.py holds chats and watches over them, chat_runner.py answers one chat turn by turn, turn_writer.py writes what a
turn says, resume.py says where a turn goes on, ledger.py keeps tools from running twice in silence.
"""

from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.worker import Worker

__all__ = ["Worker", "WorkerDependencies"]
