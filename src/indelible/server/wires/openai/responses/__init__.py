"""OpenAI's Responses API: requests, the projection of a turn, and the routes."""
