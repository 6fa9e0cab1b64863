"""The journal: the parts of running attempts, and the ledger of tool calls."""
