"""Other people's clients, unmodified, against a real server: `make compat` (docs/openai.md, docs/ai-sdk.md).

`server.py` is the server, with a model that does what the prompt asks for. `clients/` are programs that run in
environments of their own (`.venv/compat`, `.venv/compat/js`, `.venv/js`) and exit with an error if anything is not as
their users expect. `page/` is a React page with `useChat`. The tests (`test_*.py`) start all of it, kill the server,
and compare; Codex CLI needs no program, only its command.

`make test` runs the clients from npm, too, against a server in its process: tests/server/compat/test_npm_clients.py.
"""
