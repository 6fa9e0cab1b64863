"""Chats over HTTP: the routes of docs/http.md, the feed as server-sent events, a web page, health and metrics.

app.py puts it together, process.py runs it as a process with signals. Each route reads its request, carries out
one command of the machine or one reading of the store, and answers; errors.py of the package says what can go wrong,
problems.py how it is reported.
"""
