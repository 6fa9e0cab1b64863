"""Who may do what over HTTP: every request passes middleware.py before a route sees it."""
