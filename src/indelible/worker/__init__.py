"""The worker: it holds chats and answers them, and if it dies, another worker continues."""
