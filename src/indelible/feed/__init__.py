"""The feed: the events of a chat, for each of its readers, from any cursor.

    async with feed.open(chat_id, after=cursor) as reader:
        async for event in reader:
            ...

Events and the parts of a running reply come from the two logs of the store and never from the loop, so a reader sees
only what is on disk. A part reaches a reader of the same process by way of: commit, `Feed.publish`, the `Channel` of
its chat, the buffer of each `Reader`; one object for all readers, and no query. Where that way has a gap (another
process wrote the part, or wrote it long ago), the channel or the reader reads the store (channel.py). Positions in the
stream decide what connects (events.py).

feed.py puts it together; docs/feed.md describes every event.
"""

from indelible.api.events import FeedEvent, Position
from indelible.feed.chat_list import ListReader
from indelible.feed.events import Cursors
from indelible.feed.feed import Feed
from indelible.feed.reader import Reader

__all__ = ["Cursors", "Feed", "FeedEvent", "ListReader", "Position", "Reader"]
