"""The use cases beside a conversation: read marks, drafts, usage, chats as files, the live list."""
