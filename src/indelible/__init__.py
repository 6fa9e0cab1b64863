"""Indelible: an agent-chat server and library in which every token is on disk before it is on screen.

Today this is the heart of it: `indelible.loop.run` drives one turn of a chat and keeps everything that
was said, in whatever moment it is stopped.
"""

from indelible.tools.port import tool

__all__ = ["tool"]
__version__ = "0.1.0"
