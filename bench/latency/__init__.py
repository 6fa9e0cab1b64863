"""How long people wait, and what waiting costs, over HTTP (`python -m bench latency`).

Every number is of a real `indelible serve` on each database, with the provider and the sockets of bench/over_http.

replies.py      stopping one of 100 running replies; reading a 100 kB reply again; one reply to many readers
processes.py    start-up and import; what happens after `kill -9`
idle.py         memory of chats and feeds, and CPU, when nobody says anything
measure.py      one after the other; a table and JSON
"""
