"""The library: `indelible.open`, and the `User`, `Chat` and `Reply` that it shares with the remote client."""
