"""Keys of sessions: what they open, and where they are not kept."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import CHAT, Agent, started, user
from tests.gateway.token_engine import TokenEngine


def test_an_unknown_key_is_refused(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """It opens nothing; nor does no key at all, nor one of a session that is closed or gone."""
    gateway = started(start, vllm, tmp_path)
    agent, other = Agent(gateway), Agent(gateway)
    for headers in ({}, {"Authorization": "Bearer made-up"}, {"x-api-key": agent.key + "x"}):
        answer = gateway.post({"messages": [user("a")]}, headers=headers)
        assert answer.status_code == 401 and "error" in answer.json()
    assert gateway.http.get("/v1/models", headers={}).status_code == 401
    gateway.control.post(f"/sessions/{agent.id}/close")
    gateway.control.delete(f"/sessions/{other.id}")
    assert agent.say(user("a")).status_code == other.say(user("a")).status_code == 401
    assert not vllm.seen
    assert len(gateway.control.get("/sessions").json()["sessions"]) == 1


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key"])
def test_every_client_s_header_carries_the_key(
    header: str, vllm: TokenEngine, start: Start, tmp_path: Path
) -> None:
    """And each reaches its own session alone; the key goes no further."""
    gateway = started(start, vllm, tmp_path)
    one, other = Agent(gateway), Agent(gateway)
    key = f"Bearer {one.key}" if header == "Authorization" else one.key
    body = {"messages": [user("a")], "stub": {"reply": "hi"}}
    assert gateway.post(body, headers={header: key}).status_code == 200
    assert gateway.http.get("/v1/models", headers={header: key}).status_code == 200
    assert len(one.records()) == 1 and other.records() == []
    assert one.key not in str(vllm.seen[0].headers)
    for route in ("/sessions", f"/sessions/{other.id}", f"/sessions/{one.id}/completions"):
        assert gateway.http.get(route, headers={header: key}).status_code == 404


def test_the_client_token_serves_plainly(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Beside sessions: byte for byte, and recorded in none."""
    gateway = started(start, vllm, tmp_path, tokens=AccessTokens(client="the-token"))
    agent = Agent(gateway)
    headers = {"Authorization": "Bearer the-token"}
    body = {"model": "stub", "messages": [user("a")]}
    answer = gateway.http.post(CHAT, json=body, headers=headers)
    direct = httpx.post(vllm.url + CHAT, json=body)
    assert answer.content == direct.content and vllm.seen[0].body == vllm.seen[1].body
    assert agent.say(user("a")).status_code == 200
    assert len(agent.records()) == 1
