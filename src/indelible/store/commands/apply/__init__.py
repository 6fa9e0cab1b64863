"""Applying the result of `decide`: effects become rows and events, one module per part of a chat."""
