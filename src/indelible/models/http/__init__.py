"""Calling a model over HTTP: connections, server-sent events, and the recording hook."""
