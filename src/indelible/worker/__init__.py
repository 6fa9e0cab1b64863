"""The worker: it holds chats and answers them, and if it dies, another worker continues.

worker.py holds chats and watches over them, chat_runner.py answers one chat turn by turn, turn_writer.py writes a
turn and keeps tools from silently running twice, resume.py decides where a turn resumes.
"""

from indelible.worker.dependencies import WorkerDependencies
from indelible.worker.worker import Worker

__all__ = ["Worker", "WorkerDependencies"]
