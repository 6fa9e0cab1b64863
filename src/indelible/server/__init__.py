"""Chats over HTTP: the routes of docs/http.md, the feed as server-sent events, a web page, health and metrics."""
