"""Who sends a request, what they may do with a chat or a file, and what a guest sees."""
