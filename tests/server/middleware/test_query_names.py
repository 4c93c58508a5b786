"""A misspelt name in a query is nobody's session."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from server.middleware.query_names import CheckSocketQuery
from tests.server.middleware.asgi import Player, call, refusal, scope


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("GET", "/state?session=abc", "'session' is unknown; allowed are session_id"),
        ("POST", "/step?seed=1", "'seed' is unknown; allowed are session_id"),
        ("GET", "/baseline?agnet=random", "'agnet' is unknown; allowed are agent, "),
        ("GET", "/tasks?id=1", "'id' is unknown; allowed are none"),
    ],
)
def test_unknown_names_are_refused(http: httpx.Client, method: str, path: str, named: str) -> None:
    """422 and the names that the route takes."""
    answer = http.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 422
    assert f"query {named}" in answer.json()["error"]


def test_known_names_pass(http: httpx.Client) -> None:
    """By the route itself or by what it depends on."""
    session_id = http.post("/reset").json()["session_id"]
    assert http.get("/state", params={"session_id": session_id}).status_code == 200


def test_websockets_too() -> None:
    """Before they are accepted."""
    wrong = scope("websocket", query_string=b"session=abc")
    status, text = refusal(asyncio.run(call(CheckSocketQuery(Player()), wrong)))
    assert (status, text) == (422, "query 'session' is unknown; allowed are session_id")


def test_a_probe_may_add_what_it_likes(http: httpx.Client) -> None:
    """Some add a name against caches."""
    assert http.get("/health?t=1&t=2").status_code == 200
