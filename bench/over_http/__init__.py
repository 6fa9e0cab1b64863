"""What a chat costs over HTTP, as a user would measure it (`python -m bench http`).

provider.py     a provider in a process of its own, which costs next to nothing
limit.py        the least that a server can do: it passes the provider's stream on, and keeps nothing
plain.py        what people write: FastAPI, the official SDK, and the reply into SQLite at the end
contenders.py   starts each of them, and Indelible on both databases, as processes
wire.py         the client's side of HTTP over raw sockets
load.py         users: they send, read to the end, and note when each piece came
measure.py      rounds, one contender after the other; CPU of whole process trees; tables, JSON and a picture
compat.py       the same server on the compatible APIs, against its native feed (`python -m bench compat`)
layers.py       where the time goes, by layer of the code (`python -m bench layers`), with the sampler of sampled.py
"""
