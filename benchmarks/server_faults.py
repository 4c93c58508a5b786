"""``python -m benchmarks.server_faults``: what the server survives, and what it loses.

Requests and messages that nobody should send, ``kill -9`` while fifty sessions are played, a
restart with hundreds of sessions to rebuild while somebody else plays, and a long time with many
players. An answer of status 5xx, a lost step or one that a replay computes differently is counted,
not hidden.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import psutil
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.loads import HttpPlayer, Play, websocket_load
from benchmarks.page import publish
from jaxserve import checks
from server.local import LocalServer

_KILLED_SESSIONS = 50
_REBUILT_SESSIONS, _REBUILT_WINDOWS = 256, 100
_SOAKING = 64
_ACTION = {"batch_cap": 64, "speculation_depth": 2}
_PLAY = Play(reset={"task_id": "adversarial_multitenant", "seed": 7}, action=_ACTION)
_VARIABLES = {"JAXSERVE_RATE_LIMIT": "1000000/second"}
_PATIENCE_S = 300.0
_PATHS = [
    "/reset",
    "/step",
    "/step_many",
    "/state",
    "/observation",
    "/agent",
    "/grader",
    "/episode_log",
    "/baseline",
    "/tasks",
    "/info",
    "/runtime",
    "/health",
    "/schema",
    "/metadata",
    "/mcp",
    "/jaxserve/tasks",
    "/jaxserve/task",
    "/nowhere",
]
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    1.5,
    2**63,
    2**64,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "static_workload",
    "\ud800",
    "x" * 5000,
    [],
    [[]],
    {},
    {"batch_cap": 0},
    {"batch_cap": 8},
    {"metadata": {"step": "x"}},
)
_FIELDS = [
    "action",
    "session_id",
    "seed",
    "task_id",
    "task",
    "split",
    "index",
    "config",
    "episode_id",
    "steps",
    "agent",
    "windows",
    "actions",
    "episode_log",
    "type",
    "data",
    "method",
    "params",
    "id",
    "jsonrpc",
    "metadata",
    "batch_cap",
    "kv_budget",
    "timeout_s",
]


def main() -> int:
    """Runs everything once and prints one page; exit code 2 after bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="file to write the page to")
    parser.add_argument("--requests", type=int, default=20_000, help="HTTP requests (20,000)")
    parser.add_argument("--messages", type=int, default=6_000, help="WebSocket messages (6,000)")
    parser.add_argument("--kills", type=int, default=3, help="cycles of kill -9 (3)")
    parser.add_argument("--seed", type=int, default=0, help="of what is sent")
    parser.add_argument(
        "--soak-seconds",
        type=float,
        default=0.0,
        help=f"how long {_SOAKING} players play at once, s (default 0: left out; 600 is usual)",
    )
    chosen = parser.parse_args()
    return publish(lambda: faults_page(chosen), chosen.markdown)


def faults_page(chosen: argparse.Namespace) -> str:
    """Starts servers, does them harm, and returns Markdown.

    Raises:
      InputError: an argument is out of range.
    """
    checks.whole("--requests", chosen.requests, 0, 10**7)
    checks.whole("--messages", chosen.messages, 0, 10**7)
    checks.whole("--kills", chosen.kills, 0, 1000)
    checks.number("--soak-seconds", chosen.soak_seconds, 0, 86_400)
    lines = ["# Faults", "", "Printed by `python -m benchmarks.server_faults`.", ""]
    dice = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory() as folder:
        with LocalServer(Path(folder), variables=_VARIABLES) as server:
            _say(lines, _fuzz_http(server, chosen.requests, dice))
            _say(lines, uvloop.run(_fuzz_websocket(server, chosen.messages, dice)))
        _say(lines, _kill(Path(folder), chosen.kills))
        _say(lines, _rebuild(Path(folder)))
        if chosen.soak_seconds > 0.0:
            with LocalServer(Path(folder), variables=_VARIABLES) as server:
                _say(lines, _soak(server, chosen.soak_seconds))
    return "\n".join(lines) + "\n"


def _say(lines: list[str], line: str) -> None:
    lines.append(f"- {line}")
    print(lines[-1], flush=True)


def _body(dice: random.Random) -> bytes:
    """JSON of known fields with values that mostly do not belong there, or no JSON."""
    if dice.random() < 0.1:
        return dice.choice((b"", b"{", b"[" * 50_000, b"\xff\xfe", b"null", b"[1, 2]"))
    chosen = {dice.choice(_FIELDS): dice.choice(_VALUES) for _ in range(dice.randrange(5))}
    # The standard library writes NaN and half surrogates as well.
    return json.dumps(chosen).encode()


def _fuzz_http(server: LocalServer, requests: int, dice: random.Random) -> str:
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_PATIENCE_S)
    statuses: Counter[int] = Counter()
    cut = 0
    for _ in range(requests):
        path, body = dice.choice(_PATHS), _body(dice)
        method = dice.choice(("GET", "POST", "POST", "POST", "PUT", "DELETE"))
        if path == "/baseline":
            # Right ones play for seconds.
            body = b"{}" if method == "GET" else b'{"agent": "regime_oracle"}'
            path = "/baseline?agent=planner"
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        except (OSError, http.client.HTTPException):
            cut += 1
            connection.close()
    connection.close()
    failed = sum(count for status, count in statuses.items() if status >= 500)
    kinds = ", ".join(f"{count:,} of {status}" for status, count in sorted(statuses.items()))
    return (
        f"HTTP: {requests:,} requests, {failed} answers of 5xx, {cut} connections cut; {kinds}; "
        f"healthy afterwards: {_healthy(server)}"
    )


async def _fuzz_websocket(server: LocalServer, messages: int, dice: random.Random) -> str:
    address = server.url.replace("http", "ws", 1) + "/ws"
    kinds: Counter[str] = Counter()
    ended = 0
    socket = await connect(address, open_timeout=_PATIENCE_S)
    for _ in range(messages):
        known = {"type": dice.choice(("reset", "step", "state", "mcp", "dance", 5, None))}
        frame = json.dumps(known | {"data": dice.choice(_VALUES)})
        if dice.random() < 0.3:
            frame = _body(dice).decode(errors="replace")
        try:
            await socket.send(frame)
            answer = orjson.loads(await asyncio.wait_for(socket.recv(), _PATIENCE_S))
            data = answer.get("data") or {}
            kinds[str(data.get("code") or answer.get("type"))] += 1
        except ConnectionClosed:
            ended += 1
            socket = await connect(address, open_timeout=_PATIENCE_S)
    await socket.close()
    seen = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    return (
        f"WebSocket: {messages:,} messages, {ended} connections ended by one; {seen}; "
        f"healthy afterwards: {_healthy(server)}"
    )


def _healthy(server: LocalServer) -> str:
    return httpx.get(f"{server.url}/health", timeout=_PATIENCE_S).json()["status"]


@dataclass
class _Acknowledged:
    """What a player was told, and what the log says afterwards."""

    rewards: dict[str, list[float]] = field(default_factory=dict)

    async def play(self, url: str, seed: int) -> None:
        """Steps as fast as it can, until it is cut off."""
        address = url.replace("http", "ws", 1) + "/ws"
        async with connect(address, compression=None, open_timeout=_PATIENCE_S) as socket:
            reset = {"task_id": "bursty_workload", "seed": seed}
            await socket.send(orjson.dumps({"type": "reset", "data": reset}).decode())
            begun = orjson.loads(await socket.recv())["data"]
            mine = self.rewards.setdefault(begun["metadata"]["session_id"], [])
            try:
                while not begun["done"]:
                    await socket.send(orjson.dumps({"type": "step", "data": _ACTION}).decode())
                    begun = orjson.loads(await socket.recv())["data"]
                    mine.append(begun["reward"])
            except ConnectionClosed:
                return


def _kill(folder: Path, cycles: int) -> str:
    told = _Acknowledged()
    for cycle in range(cycles):
        server = LocalServer(folder, variables=_VARIABLES).wait()

        async def load(server: LocalServer, first: int) -> None:
            players = [told.play(server.url, first + n) for n in range(_KILLED_SESSIONS)]
            running = asyncio.gather(*players)
            await asyncio.sleep(2.0)
            server.kill()
            await running

        uvloop.run(load(server, cycle * _KILLED_SESSIONS))
    lost = different = 0
    with (
        LocalServer(folder, variables=_VARIABLES) as server,
        httpx.Client(base_url=server.url, timeout=_PATIENCE_S) as client,
    ):
        for session_id, rewards in told.rewards.items():
            log = client.get("/episode_log", params={"session_id": session_id}).json()
            replayed = [entry["reward"] for entry in log["episode_log"][1:]]
            lost += max(0, len(rewards) - len(replayed))
            different += sum(a != b for a, b in zip(rewards, replayed, strict=False))
    steps = sum(map(len, told.rewards.values()))
    return (
        f"kill -9: {cycles} cycles under {_KILLED_SESSIONS} sessions, {steps:,} steps "
        f"acknowledged, {lost} lost, {different} replayed with another reward"
    )


def _rebuild(folder: Path) -> str:
    with LocalServer(folder, variables=_VARIABLES) as server:
        player = HttpPlayer(server.url)
        names = [
            player.post("/reset", {**_PLAY.reset, "seed": seed})["session_id"]
            for seed in range(_REBUILT_SESSIONS)
        ]
        steps = {"steps": [{"session_id": name, "action": _ACTION} for name in names]}
        for _ in range(_REBUILT_WINDOWS):
            player.post("/step_many", steps)
        player.close()
        server.kill()
    with LocalServer(folder, variables=_VARIABLES) as server:
        _wait_until_compiled(server)
        alone = uvloop.run(websocket_load(server.url, _PLAY, 1, 3.0))
        seconds, latencies = uvloop.run(_rebuild_beside(server.url, names))
    beside = sorted(latencies)
    p99 = 1000.0 * beside[min(len(beside) - 1, int(0.99 * len(beside)))]
    return (
        f"restart with {_REBUILT_SESSIONS} sessions of {_REBUILT_WINDOWS} windows: all rebuilt "
        f"{seconds:.1f} s after they were asked for; another player's p99 meanwhile {p99:.0f} ms "
        f"({len(beside):,} steps; {alone.latency_ms(99.0):.0f} ms when alone)"
    )


async def _rebuild_beside(url: str, names: Sequence[str]) -> tuple[float, list[float]]:
    """Seconds until all sessions have answered, and what each step of a player took meanwhile."""
    latencies: list[float] = []
    address = url.replace("http", "ws", 1) + "/ws"
    over = asyncio.Event()

    async def play() -> None:
        async with connect(address, compression=None, open_timeout=_PATIENCE_S) as socket:
            done = True
            while not over.is_set():
                kind, data = ("reset", _PLAY.reset) if done else ("step", _ACTION)
                sent = time.perf_counter()
                await socket.send(orjson.dumps({"type": kind, "data": data}).decode())
                done = orjson.loads(await socket.recv())["data"]["done"]
                latencies.append(time.perf_counter() - sent)

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=_PATIENCE_S, limits=limits) as client:
        other = asyncio.ensure_future(play())
        await asyncio.sleep(0.5)
        latencies.clear()
        started = time.perf_counter()
        answers = await asyncio.gather(
            *(client.get("/observation", params={"session_id": name}) for name in names)
        )
        seconds = time.perf_counter() - started
        over.set()
        await other
    for answer in answers:
        answer.raise_for_status()
        if answer.json()["info"]["step"] != _REBUILT_WINDOWS:
            raise RuntimeError(f"a session came back at window {answer.json()['info']['step']}")
    return seconds, latencies


def _wait_until_compiled(server: LocalServer) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while httpx.get(f"{server.url}/runtime", timeout=60.0).json()["compiling"]:
        if time.monotonic() > deadline:
            raise RuntimeError("programs are still compiled after five minutes")
        time.sleep(0.5)


def _soak(server: LocalServer, seconds: float) -> str:
    """Many players for a long time; an error of any of them ends the benchmark."""
    _wait_until_compiled(server)
    process = psutil.Process(server.process.pid)

    async def play() -> tuple[int, list[tuple[float, int, int]]]:
        seen: list[tuple[float, int, int]] = []
        running = asyncio.create_task(websocket_load(server.url, _PLAY, _SOAKING, seconds))
        while not running.done():
            await asyncio.wait([running], timeout=seconds / 60)
            if not running.done():
                memory = process.memory_info().rss / 2**20
                seen.append((memory, process.num_fds(), process.num_threads()))
        return len((await running).latencies_s), seen

    steps, seen = uvloop.run(play())
    third = len(seen) // 3
    before, after = seen[third : 2 * third], seen[2 * third :]

    def most(part: Sequence[tuple[float, int, int]]) -> str:
        memory, handles, threads = (max(column) for column in zip(*part, strict=True))
        return f"{memory:,.0f} MiB, {handles} file handles and {threads} threads"

    return (
        f"{_SOAKING} players for {seconds:.0f} s: {steps:,} steps, no error; at most "
        f"{most(before)} in the second third of that time, {most(after)} in the last "
        f"({os.cpu_count()} cores)"
    )


if __name__ == "__main__":
    sys.exit(main())
