"""SQLite: connections and their threads, the file and its lock, and its backup."""
