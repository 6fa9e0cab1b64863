"""The feed: what happens in a chat, to whoever reads it, from wherever a reader was.

    async with feed.open(chat_id, after=cursor) as reader:
        async for event in reader:
            ...

Events and the parts of a running reply come from the two logs of the store and never from the loop, so what anybody
sees is on disk. The way of a piece of text to a reader of the same process is: commit, `Feed.publish`, the `Channel` of
its chat, the buffer of each `Reader`; one object for all readers, and no query. Where that way has a hole (another
process wrote it, or it is long ago), the channel or the reader reads the store. Positions in the stream say what
connects.

feed.py puts it together; docs/feed.md describes every event.
"""

from indelible.feed.cursor import Cursors
from indelible.feed.feed import Feed
from indelible.feed.reader import Reader
from indelible.machine.events import FeedEvent, Position

__all__ = ["Cursors", "Feed", "FeedEvent", "Position", "Reader"]
