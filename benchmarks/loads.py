"""Players that load a server; each steps as soon as the previous answer arrives."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import orjson
from websockets.asyncio.client import ClientConnection, connect

_PATIENCE_S = 60.0


@dataclass(frozen=True)
class LoadResult:
    """Latencies of one round."""

    seconds: float
    latencies_s: Sequence[float]
    """latency of every answered request."""
    steps_per_request: int = 1

    @property
    def steps_per_s(self) -> float:
        """Windows per second of all players together."""
        return self.steps_per_request * len(self.latencies_s) / self.seconds

    def latency_ms(self, percentile: float) -> float:
        """A percentile of the time between a request and its answer."""
        return 1000.0 * float(np.percentile(self.latencies_s, percentile))


@dataclass(frozen=True)
class PlayerRequests:
    """Requests of a player: a reset, then steps."""

    reset: Mapping[str, Any]
    action: Mapping[str, Any]


async def websocket_load(
    url: str, play: PlayerRequests, players: int, seconds: float
) -> LoadResult:
    """Players with a WebSocket each, in OpenEnv's protocol.

    Raises:
      RuntimeError: an answer was an error.
    """
    address = url.replace("http", "ws", 1) + "/ws"
    sockets = [
        await connect(address, compression=None, open_timeout=_PATIENCE_S) for _ in range(players)
    ]
    try:
        for socket in sockets:
            await _exchange(socket, _frame("reset", play.reset))
        latencies: list[float] = []
        started = time.perf_counter()
        frames = (_frame("reset", play.reset), _frame("step", play.action))
        until = started + seconds
        await asyncio.gather(*(_play(socket, *frames, until, latencies) for socket in sockets))
        return LoadResult(time.perf_counter() - started, latencies)
    finally:
        await asyncio.gather(*(socket.close() for socket in sockets))


def http_load(url: str, play: PlayerRequests, seconds: float) -> LoadResult:
    """One player on a persistent HTTP connection.

    Raises:
      RuntimeError: an answer was an error.
    """
    requests = HttpPlayer(url)
    begun = requests.post("/reset", play.reset)
    named = {"session_id": begun["session_id"]} if "session_id" in begun else {}
    latencies: list[float] = []
    started = sent = time.perf_counter()
    while sent < started + seconds:
        answer = requests.post("/step", {"action": play.action, **named})
        now = time.perf_counter()
        latencies.append(now - sent)
        if answer["done"]:
            requests.post("/reset", {**play.reset, **named})
            now = time.perf_counter()
        sent = now
    requests.close()
    return LoadResult(sent - started, latencies)


def together_load(url: str, play: PlayerRequests, sessions: int, seconds: float) -> LoadResult:
    """One player that advances many sessions by one request.

    Raises:
      RuntimeError: an answer was an error.
    """
    requests = HttpPlayer(url)
    names = [requests.post("/reset", play.reset)["session_id"] for _ in range(sessions)]
    body = {"steps": [{"session_id": name, "action": play.action} for name in names]}
    latencies: list[float] = []
    elapsed = 0.0
    while elapsed < seconds:
        sent = time.perf_counter()
        answer = requests.post("/step_many", body)
        latencies.append(time.perf_counter() - sent)
        elapsed += latencies[-1]
        if answer["done"][0]:
            for name in names:
                requests.post("/reset", {**play.reset, "session_id": name})
    requests.close()
    # Resets are left out: an episode of the shortest task has 40 windows.
    return LoadResult(elapsed, latencies, sessions)


def first_exchange_ms(url: str, play: PlayerRequests) -> tuple[float, float]:
    """Milliseconds that a reset and the step after it take."""
    requests = HttpPlayer(url)
    started = time.perf_counter()
    session_id = requests.post("/reset", play.reset)["session_id"]
    begun = time.perf_counter()
    requests.post("/step", {"action": play.action, "session_id": session_id})
    stepped = time.perf_counter()
    requests.close()
    return 1000.0 * (begun - started), 1000.0 * (stepped - begun)


class HttpPlayer:
    """JSON requests over one connection."""

    def __init__(self, url: str) -> None:
        """Connects with the first request."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=_PATIENCE_S
        )

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer's JSON.

        Raises:
          RuntimeError: the answer was an error.
        """
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", path, orjson.dumps(body), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"POST {path}: {answer.status} {text[:300]!r}")
        return orjson.loads(text)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def _frame(kind: str, data: Mapping[str, Any]) -> str:
    return orjson.dumps({"type": kind, "data": data}).decode()


async def _play(
    socket: ClientConnection, reset: str, step: str, until: float, latencies: list[float]
) -> None:
    sent = time.perf_counter()
    while sent < until:
        answer = await _exchange(socket, step)
        now = time.perf_counter()
        latencies.append(now - sent)
        if answer["done"]:
            await _exchange(socket, reset)
            now = time.perf_counter()
        sent = now


async def _exchange(socket: ClientConnection, frame: str) -> dict[str, Any]:
    await socket.send(frame)
    answer = orjson.loads(await socket.recv())
    if answer["type"] != "observation":
        raise RuntimeError(f"the server answered {str(answer)[:300]}")
    return answer["data"]
