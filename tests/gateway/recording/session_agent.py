"""Agents that talk through a running gateway, in the tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from jaxserve.gateway.recording.records import CompletionRecord, read_records
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine

CHAT = "/v1/chat/completions"


def user(text: str) -> dict[str, Any]:
    """What a user says."""
    return {"role": "user", "content": text}


class Agent:
    """A session, and who speaks in it."""

    def __init__(self, gateway: RunningGateway, **asked: Any) -> None:
        """Makes the session."""
        made = gateway.control.post("/sessions", json=asked)
        assert made.status_code == 201, made.text
        self.gateway = gateway
        self.id, self.key = made.json()["id"], made.json()["key"]
        self.headers = {"Authorization": f"Bearer {self.key}"}

    def say(self, *messages: Any, **more: Any) -> httpx.Response:
        """One request; the last bytes of its answer have come."""
        body = {"model": "stub", "messages": list(messages), **more}
        return self.gateway.http.post(CHAT, json=body, headers=self.headers)

    @contextmanager
    def streaming(self, engine: TokenEngine, *messages: Any) -> Iterator[httpx.Response]:
        """A stream of which the engine gives one token; it waits to be allowed the rest."""
        place = len(engine.seen)
        body = {"model": "stub", "messages": messages, "stream": True, "stub": {"gated": True}}

        def allow_one() -> None:
            engine.wait_for(place + 1)
            engine.seen[place].allow(1)

        first = threading.Thread(target=allow_one)
        first.start()
        with self.gateway.http.stream("POST", CHAT, json=body, headers=self.headers) as answer:
            first.join()
            yield answer

    def records(self) -> list[CompletionRecord]:
        """All of the session, as they stand in the file."""
        sessions = self.gateway.app.sessions
        assert sessions is not None
        session = sessions.get(self.id)
        assert session is not None
        return read_records(session.path)


def started(start: Any, engine: TokenEngine, folder: Path, **settings: Any) -> RunningGateway:
    """A gateway with sessions in front of an engine."""
    return start([engine.option], sessions=folder, **settings)
