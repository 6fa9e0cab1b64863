"""Every use case once, for one user: what the library, the HTTP routes and the remote client have in common."""
