"""Writing: what a command needs to know, and what it changes."""
