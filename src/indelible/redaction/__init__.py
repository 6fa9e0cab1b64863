"""Keeping secrets out of what is recorded, logged and exported."""
