"""The clients of a proof: users who write, readers who never stop reading, and what they noted."""
