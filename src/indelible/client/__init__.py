"""The remote client: the same `Chat` and `Reply` as in process, over HTTP."""
