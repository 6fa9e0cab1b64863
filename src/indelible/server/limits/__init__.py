"""Limits on what one client can cost: connections, bodies, uploads, requests per second, open feeds."""
