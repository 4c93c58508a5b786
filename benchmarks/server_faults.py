"""``python -m benchmarks.server_faults``: what the server survives, and what it loses.

Requests, messages and bytes that nobody should send, what one client may do to another, two
processes on one log, ``kill -9`` while fifty sessions are played, a restart with hundreds of
sessions to rebuild while somebody else plays, and a long time with many players. An answer of
status 5xx or with a path or a key of the server, a lost step or one that a replay computes
differently is counted, not hidden; a server that grows while it is played on has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import psutil
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.loads import HttpPlayer, PlayerRequests, websocket_load
from benchmarks.page import missed, page_parser, publish
from benchmarks.server_fuzz import (
    PATIENCE_S,
    Fuzz,
    fuzz_http,
    fuzz_schema,
    fuzz_sockets,
    fuzz_websocket,
)
from benchmarks.server_neighbours import (
    AGENTS,
    COMPARISONS,
    OWN_CONFIGS,
    computations_beside,
    connections_beside,
    fuzz_contradictions,
    fuzz_nameless,
    fuzz_paths,
    fuzz_tools,
    played_beside,
)
from jaxserve import checks
from jaxserve.runtime.child_processes import free_ports, own_process, wait_until_answers
from jaxserve.runtime.listening import raise_file_limit
from server.local import LocalServer

_KILLED_SESSIONS = 50
_KILLED_AFTER_S = 2.0
_REBUILT_SESSIONS, _REBUILT_WINDOWS = 256, 100
_AIM_REBUILT_S, _AIM_BESIDE_MS = 3.0, 50.0
_SOAKING = 64
_GROWTH = 0.05
"""Share by which memory may differ between two thirds of a soak."""
_ACTION = {"batch_cap": 64, "speculation_depth": 2}
_PLAY = PlayerRequests(reset={"task_id": "adversarial_multitenant", "seed": 7}, action=_ACTION)
_KEY = "sk-faults-7c1e5b0d"
_VARIABLES = {"JAXSERVE_RATE_LIMIT": "1000000/second", "OPENAI_API_KEY": _KEY}
_SHARED_SESSIONS, _SHARED_WINDOWS = 16, 40
_NAMELESS, _ROUNDS, _COMPUTATIONS = 100, 20, 60
_CROWD, _CROWD_S = 4096, 15.0
_ROOT_PATH = "/lab/jax"


@dataclass(frozen=True)
class FaultTrial:
    """One kind of harm: a row of the table."""

    name: str
    tried: int
    survived: int
    failed: int
    """answers of status 5xx."""
    lost: int
    """acknowledged steps that were lost, or that a replay computed differently."""
    seen: str
    grown: bool = False
    """whether the server held more and more memory, file handles or threads."""

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        whole = self.survived == self.tried and not self.failed and not self.lost
        return whole and not self.grown

    def row(self) -> str:
        """Of the table."""
        counts = (self.tried, self.survived, self.failed, self.lost)
        return f"| {self.name} | {' | '.join(f'{n:,}' for n in counts)} | {self.seen} |"


def main() -> int:
    """Runs everything once and prints one page; exit code 1 where anything failed, and 2 after bad
    input."""
    parser = page_parser("benchmarks.server_faults", __doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="HTTP requests (20,000)")
    parser.add_argument(
        "--cases", type=int, default=100, help="requests by the schema, for each route (100)"
    )
    parser.add_argument("--messages", type=int, default=6_000, help="WebSocket messages (6,000)")
    parser.add_argument("--connections", type=int, default=2_000, help="raw connections (2,000)")
    parser.add_argument("--kills", type=int, default=3, help="cycles of kill -9 (3)")
    parser.add_argument("--seed", type=int, default=0, help="of what is sent")
    parser.add_argument(
        "--soak-seconds",
        type=float,
        default=600.0,
        help=f"how long {_SOAKING} players play at once, s (600); 0 leaves them out",
    )
    chosen = parser.parse_args()
    trials: list[FaultTrial] = []
    code = publish(lambda: faults_page(chosen, trials), chosen.markdown)
    return code or int(not all(trial.passed for trial in trials))


def faults_page(chosen: argparse.Namespace, trials: list[FaultTrial]) -> str:
    """Starts servers, does them harm, and returns Markdown.

    Args:
      trials: what is found is appended to it.

    Raises:
      InputError: an argument is out of range.
    """
    checks.whole("--requests", chosen.requests, 0, 10**7)
    checks.whole("--cases", chosen.cases, 1, 10**5)
    checks.whole("--messages", chosen.messages, 0, 10**7)
    checks.whole("--connections", chosen.connections, 0, 10**7)
    checks.whole("--kills", chosen.kills, 0, 1000)
    checks.number("--soak-seconds", chosen.soak_seconds, 0, 86_400)
    dice = random.Random(chosen.seed)

    def ended(trial: FaultTrial) -> None:
        trials.append(trial)
        print(trial.row(), flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with LocalServer(folder, variables=_VARIABLES) as server:
            url = server.url
            witness = _Witness(url)
            private = (_KEY, name, str(Path(__file__).parents[1]), sys.prefix)
            ended(witness.of("HTTP requests", fuzz_http(url, chosen.requests, dice, private)))
            found = fuzz_schema(url, chosen.cases, dice, private)
            ended(witness.of("requests made from the schema", found))
            found = uvloop.run(fuzz_websocket(url, chosen.messages, dice, private))
            ended(witness.of("WebSocket messages", found))
            ended(witness.of("raw connections", fuzz_sockets(url, chosen.connections, dice)))
            ended(witness.of("requests that name no session", fuzz_nameless(url, _NAMELESS)))
            found = fuzz_contradictions(url, _ROUNDS)
            ended(witness.of("requests that contradict themselves", found))
            ended(witness.of("tools called as steps", fuzz_tools(url, _ROUNDS)))
            _wait_until_compiled(server)
            found = computations_beside(url, _COMPUTATIONS)
            name = f"grades beside {_COMPUTATIONS} computations of another client"
            ended(witness.of(name, found))
            found = played_beside(url)
            name = (
                f"windows beside {AGENTS} agents, {OWN_CONFIGS} own configurations and "
                f"{COMPARISONS} comparisons of another client"
            )
            ended(witness.of(name, found))
        variables = {**_VARIABLES, "JAXSERVE_ROOT_PATH": _ROOT_PATH}
        with LocalServer(folder, variables=variables) as server:
            found = fuzz_paths(server.url, _ROOT_PATH, _ROUNDS)
            ended(_Witness(server.url).of("requests at the path of a proxy", found))
        ended(_crowd(folder))
        ended(_share(folder, dice))
        ended(_kill(folder, chosen.kills))
        ended(_rebuild(folder))
        if chosen.soak_seconds > 0.0:
            ended(_soak(folder, chosen.soak_seconds))
    counts = [(trial.tried, trial.survived, trial.failed, trial.lost) for trial in trials]
    tried, survived, failed, lost = map(sum, zip(*counts, strict=True))
    lines = [
        "# Faults",
        "",
        "Printed by `python -m benchmarks.server_faults`.",
        "",
        f"Clients and server share {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}. {tried:,} requests, messages and faults were tried and "
        f"{survived:,} survived; {failed:,} answers were of status 5xx and {lost:,} acknowledged "
        f"steps were lost. The load average at the end was {os.getloadavg()[0]:.1f}.",
        "",
        "| what | tried | survived | 5xx | steps lost | seen |",
        "|---|--:|--:|--:|--:|---|",
        *(trial.row() for trial in trials),
    ]
    return "\n".join(lines) + "\n"


class _Witness:
    """Somebody whose session was begun before, and goes on after each harm."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = self._post("/reset", **_PLAY.reset)["session_id"]
        self._windows = 0

    def of(self, name: str, fuzz: Fuzz) -> FaultTrial:
        """The trial, once the witness has played a window.

        Raises:
          httpx.HTTPError: it could not.
        """
        number = self._post("/step", session_id=self._session, action=_ACTION)["info"]["step"]
        self._windows += 1
        lost = self._windows - number
        seen = f"{fuzz.seen}; {fuzz.told} with a path or a key" if fuzz.told else fuzz.seen
        return FaultTrial(name, fuzz.tried, fuzz.survived, fuzz.failed, lost, seen)

    def _post(self, path: str, **body: Any) -> Any:
        # A connection that was kept would have been closed for its long silence.
        answer = httpx.post(self._url + path, json=body, timeout=PATIENCE_S)
        return answer.raise_for_status().json()


@dataclass
class _Acknowledged:
    """The answers that players got, and the log afterwards."""

    rewards: dict[str, list[float]] = field(default_factory=dict)
    """by session."""

    async def play(self, url: str, seed: int, begins: asyncio.Event) -> None:
        """Steps as fast as it can, until it is cut off."""
        address = url.replace("http", "ws", 1) + "/ws"
        async with connect(address, compression=None, open_timeout=PATIENCE_S) as socket:
            reset = {"task_id": "bursty_workload", "seed": seed}
            await socket.send(orjson.dumps({"type": "reset", "data": reset}).decode())
            data = orjson.loads(await socket.recv())["data"]
            mine = self.rewards.setdefault(data["metadata"]["session_id"], [])
            begins.set()
            try:
                while not data["done"]:
                    await socket.send(orjson.dumps({"type": "step", "data": _ACTION}).decode())
                    data = orjson.loads(await socket.recv())["data"]
                    mine.append(data["reward"])
            except ConnectionClosed:
                return

    def lost(self, url: str) -> int:
        """Steps that the log lacks, or that are replayed with another reward."""
        lost = 0
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            for session_id, rewards in self.rewards.items():
                answer = client.get("/episode_log", params={"session_id": session_id})
                entries = answer.json()["episode_log"][1:] if answer.is_success else []
                replayed = [entry["reward"] for entry in entries]
                lost += max(0, len(rewards) - len(replayed))
                lost += sum(a != b for a, b in zip(rewards, replayed, strict=False))
        return lost


def _share(folder: Path, dice: random.Random) -> FaultTrial:
    """Two processes on one log; every step goes to either of them."""
    told = _Acknowledged()
    with (
        LocalServer(folder, variables=_VARIABLES) as one,
        LocalServer(folder, variables=_VARIABLES) as other,
    ):
        players = HttpPlayer(one.url), HttpPlayer(other.url)
        for seed in range(_SHARED_SESSIONS):
            begun = players[0].post("/reset", {**_PLAY.reset, "seed": seed})
            told.rewards[begun["session_id"]] = []
        for number in range(_SHARED_WINDOWS):
            for session_id, rewards in told.rewards.items():
                meant = {**_ACTION, "metadata": {"step": number}}
                body = {"session_id": session_id, "action": meant}
                rewards.append(dice.choice(players).post("/step", body)["reward"])
        for player in players:
            player.close()
        lost = told.lost(one.url) + told.lost(other.url)
    tried = _SHARED_SESSIONS * _SHARED_WINDOWS
    seen = f"{_SHARED_SESSIONS} sessions, replayed by both"
    name = "steps that either of two processes on one log takes"
    return FaultTrial(name, tried, tried - lost, 0, lost, seen)


def _crowd(folder: Path) -> FaultTrial:
    """Thousands of connections of one client, on a server as its command starts it: that bounds
    them."""
    raise_file_limit(_CROWD + 256)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "server.app", "--host", "127.0.0.1", "--port", str(port)]
    variables = {"JAXSERVE_DATABASE": str(folder / "crowd.sqlite3")}
    with own_process(command, env={**os.environ, **variables}, stderr=subprocess.DEVNULL) as own:
        url = f"http://127.0.0.1:{port}"
        wait_until_answers(f"{url}/health", own)
        witness = _Witness(url)
        found = connections_beside(url, _CROWD, _CROWD_S)
        return witness.of(f"requests beside {_CROWD:,} connections of another client", found)


def _kill(folder: Path, cycles: int) -> FaultTrial:
    steps = lost = survived = 0

    async def load(server: LocalServer, told: _Acknowledged, first: int) -> None:
        begun = [asyncio.Event() for _ in range(_KILLED_SESSIONS)]
        players = [told.play(server.url, first + n, began) for n, began in enumerate(begun)]
        running = asyncio.gather(*players)
        await asyncio.wait(
            [running, asyncio.gather(*(began.wait() for began in begun))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        await asyncio.sleep(_KILLED_AFTER_S)
        server.kill()
        await running

    for cycle in range(cycles):
        told = _Acknowledged()
        server = LocalServer(folder, variables=_VARIABLES).wait()
        uvloop.run(load(server, told, cycle * _KILLED_SESSIONS))
        with LocalServer(folder, variables=_VARIABLES) as again:
            gone = told.lost(again.url)
        survived += gone == 0
        lost += gone
        steps += sum(map(len, told.rewards.values()))
    return FaultTrial(
        f"`kill -9` under {_KILLED_SESSIONS} sessions",
        cycles,
        survived,
        0,
        lost,
        f"{steps:,} acknowledged steps replayed",
    )


def _rebuild(folder: Path) -> FaultTrial:
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
        seconds, latencies, windows = uvloop.run(_rebuild_beside(server.url, names))
    p99_ms = 1000.0 * float(np.percentile(latencies, 99.0))
    return FaultTrial(
        f"restart with {_REBUILT_SESSIONS} sessions of {_REBUILT_WINDOWS} windows",
        _REBUILT_SESSIONS,
        sum(number == _REBUILT_WINDOWS for number in windows),
        0,
        sum(_REBUILT_WINDOWS - number for number in windows),
        rebuilt_seen(seconds, p99_ms, alone.latency_ms(99.0)),
    )


def rebuilt_seen(seconds: float, p99_ms: float, alone_ms: float) -> str:
    """The row of a restart: how long the restart took, and what another player felt of it."""
    late, slow = missed(seconds > _AIM_REBUILT_S), missed(p99_ms > _AIM_BESIDE_MS)
    return (
        f"all rebuilt {seconds:.1f} s after they were asked for (aim {_AIM_REBUILT_S:g} s{late}); "
        f"p99 of another player meanwhile {p99_ms:.0f} ms (aim {_AIM_BESIDE_MS:g} ms{slow}; "
        f"{alone_ms:.0f} ms when alone)"
    )


async def _rebuild_beside(
    url: str, names: Sequence[str]
) -> tuple[float, Sequence[float], Sequence[int]]:
    """Seconds until all sessions have answered, what each step of another player took meanwhile,
    and the window that each session came back at, 0 where it did not."""
    latencies: list[float] = []
    address = url.replace("http", "ws", 1) + "/ws"
    over = asyncio.Event()

    async def play() -> None:
        async with connect(address, compression=None, open_timeout=PATIENCE_S) as socket:
            done = True
            while not over.is_set():
                kind, data = ("reset", _PLAY.reset) if done else ("step", _ACTION)
                sent = time.perf_counter()
                await socket.send(orjson.dumps({"type": kind, "data": data}).decode())
                done = orjson.loads(await socket.recv())["data"]["done"]
                latencies.append(time.perf_counter() - sent)

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
        other = asyncio.ensure_future(play())
        await asyncio.sleep(0.5)
        latencies.clear()
        started = time.perf_counter()
        answers = await asyncio.gather(*(_asked(client, name) for name in names))
        seconds = time.perf_counter() - started
        over.set()
        await other
    return seconds, latencies, [a.json()["info"]["step"] if a.is_success else 0 for a in answers]


async def _asked(client: httpx.AsyncClient, session_id: str) -> httpx.Response:
    """The session's last observation. A connection that the server lets go of for its silence while
    a request is on its way is no fault: HTTP has the client ask again."""
    try:
        return await client.get("/observation", params={"session_id": session_id})
    except httpx.TransportError:
        return await client.get("/observation", params={"session_id": session_id})


def _wait_until_compiled(server: LocalServer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while httpx.get(f"{server.url}/runtime", timeout=PATIENCE_S).json()["compiling"]:
        if time.monotonic() > deadline:
            raise RuntimeError("programs are still compiled after five minutes")
        time.sleep(0.5)


def _soak(folder: Path, seconds: float) -> FaultTrial:
    """Many players for a long time; an error of any of them ends the benchmark."""
    seen: list[tuple[float, int, int]] = []

    async def play(url: str, process: psutil.Process) -> int:
        running = asyncio.create_task(websocket_load(url, _PLAY, _SOAKING, seconds))
        while not running.done():
            await asyncio.wait([running], timeout=seconds / 60)
            if not running.done():
                memory = process.memory_info().rss / 2**20
                seen.append((memory, process.num_fds(), process.num_threads()))
        return len((await running).latencies_s)

    with LocalServer(folder, variables=_VARIABLES) as server:
        _wait_until_compiled(server)
        steps = uvloop.run(play(server.url, psutil.Process(server.process.pid)))
    return soak_trial(seen, steps, seconds)


def soak_trial(seen: Sequence[tuple[float, int, int]], steps: int, seconds: float) -> FaultTrial:
    """The row of a soak, failed where the server held more in its last third than in its second.

    Args:
      seen: memory in MiB, file handles and threads, one after the other.
      steps: how many were answered.
      seconds: how long it was meant to last.
    """
    third = len(seen) // 3
    before, after = (
        tuple(max(column) for column in zip(*part, strict=True))
        for part in (seen[third : 2 * third], seen[2 * third :])
    )
    limits = (before[0] * (1.0 + _GROWTH), *before[1:])
    grown = any(held > limit for held, limit in zip(after, limits, strict=True))

    def held(most: tuple[float, ...]) -> str:
        return f"{most[0]:,.0f} MiB, {most[1]:.0f} file handles and {most[2]:.0f} threads"

    return FaultTrial(
        f"steps of {_SOAKING} players in {seconds:.0f} s",
        steps,
        steps,
        0,
        0,
        f"at most {held(before)} in the second third of that time, {held(after)} in the last"
        f"{': it grew' if grown else ''}",
        grown,
    )


if __name__ == "__main__":
    sys.exit(main())
