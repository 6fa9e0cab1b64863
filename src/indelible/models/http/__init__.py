"""Asking a model over HTTP: connections, server-sent events, and the hook for recording."""
