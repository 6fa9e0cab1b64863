"""What a user's list of chats needs: search, read marks, drafts, usage by day, and chats as files."""
