"""OpenAI's Chat Completions API: requests, the projection of a turn, and the routes."""
