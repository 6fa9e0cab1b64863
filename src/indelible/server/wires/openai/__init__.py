"""The OpenAI wires: Responses, Conversations, Chat Completions, Models (docs/openai.md)."""
