"""Cancelling work with a cause, and waiting for work that must end."""
