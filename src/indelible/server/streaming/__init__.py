"""Responses that go on: the feed as server-sent events, and a command with its reply."""
