"""What is true of every problem, whoever tells it."""

from __future__ import annotations

from typing import Any

import aiohttp

from indelible.server.problems import MEDIA_TYPE, TITLES


async def read_problem(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The problem that this answer is. Fails if it is none."""
    assert response.status >= 400
    assert response.content_type == MEDIA_TYPE, await response.text()
    problem: dict[str, Any] = await response.json()
    assert problem["type"] == f"urn:indelible:problem:{problem['kind']}"
    assert problem["status"] == response.status
    assert problem["title"] == TITLES[problem["kind"]]
    assert problem["detail"]
    assert "Traceback" not in problem["detail"]
    return problem
