"""Reading: one module per question."""
