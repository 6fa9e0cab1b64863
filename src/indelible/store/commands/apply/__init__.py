"""Carrying out what `decide` decided: effects become rows and events, one module per part of a chat."""
