"""A chat in the terminal. session.py opens one; the commands are the package cli."""
