"""The APIs of others: the OpenAI APIs and the AI SDK, as projections of the two logs (docs/decisions/0015-wires.md)."""
