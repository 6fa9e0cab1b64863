"""Logging in with a browser: the page, the cookie, and OpenID Connect."""
