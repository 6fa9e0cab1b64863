"""The revisions, each a module with its number, the number it follows, and what it changes."""
