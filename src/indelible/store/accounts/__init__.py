"""Users, their tokens and sessions, and who else may read a chat."""
