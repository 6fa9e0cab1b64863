"""Reading: one module per kind of query."""
