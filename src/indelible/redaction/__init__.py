"""Keeping secrets out of what is recorded, exported and shown to people."""
