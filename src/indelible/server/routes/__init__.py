"""The routes of the HTTP API, one module per resource. server/app.py adds them to the application."""
