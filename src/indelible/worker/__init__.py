"""The worker: it holds chats and answers them, and whatever happens to it, somebody goes on.

worker.py holds chats and watches over them, chat_runner.py answers one chat turn by turn, turn_writer.py writes what a
turn says and keeps tools from running twice in silence, resume.py decides where a turn goes on.
"""

from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.worker import Worker

__all__ = ["Worker", "WorkerDependencies"]
