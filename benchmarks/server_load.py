"""``python -m benchmarks.server_load``: how many steps per second the server answers.

The players run on the same machine. Beside the server's figures stands OpenEnv's own cost: an
environment that computes nothing, on the same framework. Both are measured in turn, several times,
and a figure is the median of its rounds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import psutil
import uvloop

from benchmarks.loads import (
    LoadResult,
    PlayerRequests,
    first_exchange_ms,
    http_load,
    together_load,
    websocket_load,
)
from benchmarks.page import missed, page_parser, publish
from jaxserve import checks
from jaxserve.spaces import DEFAULT_ACTION
from server.json_responses import to_json
from server.local import LocalServer
from server.sessions.episodes import parse_episode
from server.sessions.programs import advance, knobs_of, read_windows
from server.sessions.session import new_session
from server.sessions.sessions import Sessions
from server.sessions.store import open_store
from server.wire.schemas import socket_answer

_TOGETHER = 256
_SOAKING = 256
_PARTS = 2000
_SETTLED_SHARE = 0.1
_SETTLING_S = 180.0
PLAY = PlayerRequests(
    reset={"task_id": "adversarial_multitenant", "seed": 7},
    action={"batch_cap": 64, "speculation_depth": 2},
)
ECHO_PLAY = PlayerRequests(reset={}, action=PLAY.action)
_LIKE_AN_IMAGE = ("--no-access-log",)


@dataclass(frozen=True)
class Kind:
    """One way to load a server."""

    name: str
    run: Callable[[str, PlayerRequests, float], LoadResult]
    aim: int
    """steps per second."""
    has_peer: bool = True


def _sockets(players: int) -> Callable[[str, PlayerRequests, float], LoadResult]:
    return lambda url, play, seconds: uvloop.run(websocket_load(url, play, players, seconds))


KINDS = (
    Kind("WebSocket, 1 player", _sockets(1), 2_000),
    Kind("WebSocket, 32 players", _sockets(32), 4_000),
    Kind("HTTP, 1 player", http_load, 1_500),
    Kind(
        f"`/step_many`, {_TOGETHER} sessions",
        lambda url, play, seconds: together_load(url, play, _TOGETHER, seconds),
        60_000,
        has_peer=False,
    ),
)


def main() -> int:
    """Runs all rounds and prints one page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.server_load", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every load (default 5)")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="length of a round, s (default 3)"
    )
    parser.add_argument(
        "--soak-seconds",
        type=float,
        default=120.0,
        help=f"how long {_SOAKING} players play at once, s (default 120); 0 leaves them out",
    )
    chosen = parser.parse_args()
    return publish(
        lambda: load_page(chosen.rounds, chosen.seconds, chosen.soak_seconds), chosen.markdown
    )


def load_page(rounds: int, seconds: float, soak_s: float) -> str:
    """Starts both servers, measures, and returns Markdown.

    Raises:
      InputError: an argument is out of range.
    """
    checks.whole("--rounds", rounds, 1, 1000)
    checks.number("--seconds", seconds, 0.1, 3600)
    checks.number("--soak-seconds", soak_s, 0, 86_400)
    lines = [
        "# Load",
        "",
        "Printed by `python -m benchmarks.server_load`.",
        "",
        f"Players and server share {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}. Each figure is the median of {rounds} rounds of "
        f"{seconds:g} s, with the slowest and the fastest round in brackets; the two columns are "
        "measured in turn. OpenEnv alone is the same framework with an environment that computes "
        "and keeps nothing. The aims are steps/s as well; a figure below its aim is a miss. "
        "Processor time is that of the server's process, for each step.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        variables = {"JAXSERVE_RATE_LIMIT": "1000000/second"}
        started = time.monotonic()
        with LocalServer(Path(folder), arguments=_LIKE_AN_IMAGE, variables=variables) as mine:
            healthy_s = time.monotonic() - started
            first_ms = first_exchange_ms(mine.url, PLAY)
            process = psutil.Process(mine.process.pid)
            _wait_until_settled(process)
            peer = LocalServer(
                Path(folder), arguments=_LIKE_AN_IMAGE, app="benchmarks.echo_server:app"
            )
            with peer:
                busy = psutil.cpu_percent(1.0)
                lines += _table((mine, peer), rounds, seconds)
            lines += ["", _parts(Path(folder))]
            lines += [
                "",
                f"Before the first round other programs kept {busy:.0f} % of the cores busy. "
                f"The server was healthy {healthy_s:.1f} s after its start; its first reset then "
                f"took {first_ms[0]:.0f} ms and its first step {first_ms[1]:.0f} ms.",
            ]
            if soak_s > 0.0:
                lines += ["", _soak(mine.url, process, soak_s)]
    return "\n".join(lines) + "\n"


def _table(servers: tuple[LocalServer, LocalServer], rounds: int, seconds: float) -> list[str]:
    lines = [
        "| load | steps/s | aim | p50 ms | p99 ms | processor µs | OpenEnv alone, steps/s "
        "| processor µs | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        kind.run(servers[0].url, PLAY, seconds / 4)
        ours, theirs = [], []
        for _ in range(rounds):
            gc.collect()
            ours.append(_measured(kind, servers[0], PLAY, seconds))
            if kind.has_peer:
                theirs.append(_measured(kind, servers[1], ECHO_PLAY, seconds))
        lines.append(_row(kind, ours, theirs))
        print(lines[-1], flush=True)
    return lines


def _measured(
    kind: Kind, server: LocalServer, play: PlayerRequests, seconds: float
) -> tuple[LoadResult, float]:
    """A round, and microseconds of the server's processor time for each of its steps."""
    process = psutil.Process(server.process.pid)
    before_s = sum(process.cpu_times()[:2])
    load = kind.run(server.url, play, seconds)
    spent_s = sum(process.cpu_times()[:2]) - before_s
    return load, 1e6 * spent_s / (load.steps_per_request * len(load.latencies_s))


def _row(
    kind: Kind, ours: Sequence[tuple[LoadResult, float]], theirs: Sequence[tuple[LoadResult, float]]
) -> str:
    def middle(values: Iterable[float]) -> float:
        return statistics.median(values)

    def rates(rounds: Sequence[tuple[LoadResult, float]]) -> str:
        found = [load.steps_per_s for load, _ in rounds]
        return f"{middle(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})"

    def processor(rounds: Sequence[tuple[LoadResult, float]]) -> str:
        return f"{middle(spent_us for _, spent_us in rounds):,.0f}"

    pairs = zip(ours, theirs, strict=bool(theirs))
    cells = [
        kind.name,
        rates(ours),
        aimed(kind.aim, middle(load.steps_per_s for load, _ in ours)),
        f"{middle(load.latency_ms(50.0) for load, _ in ours):.2f}",
        f"{middle(load.latency_ms(99.0) for load, _ in ours):.2f}",
        processor(ours),
        rates(theirs) if theirs else "",
        processor(theirs) if theirs else "",
        f"{middle(a.steps_per_s / b.steps_per_s for (a, _), (b, _) in pairs):.2f}"
        if theirs
        else "",
    ]
    return f"| {' | '.join(cells)} |"


def _parts(folder: Path) -> str:
    """Processor time of the parts of a step in this process, without a server around them."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as the server does
    sessions = Sessions(
        open_store(str(folder / "parts.sqlite3")), live=9, idle_s=1e6, default_session=False
    )
    session = new_session(None, None, parse_episode(PLAY.reset["task_id"], 7, "train", None))
    sessions.begin(session, is_new=True)
    sessions.commit()
    knobs = knobs_of(DEFAULT_ACTION | dict(PLAY.action))

    def compute() -> None:
        read_windows(advance(session.simulator, session.state, knobs)[1])

    def keep() -> None:
        sessions.find(session.id)
        sessions.keep_note("part", "of a step")
        sessions.commit()

    def write() -> None:
        to_json(socket_answer(session.view()))

    figures = []
    for name, part in (("the window", compute), ("its commit", keep), ("its answer", write)):
        part()
        before_s, own_s = time.process_time(), time.thread_time()
        for _ in range(_PARTS):
            part()
        spent_us, own_us = (
            1e6 * (now_s - then_s) / _PARTS
            for now_s, then_s in ((time.process_time(), before_s), (time.thread_time(), own_s))
        )
        beside = f", {spent_us - own_us:.0f} of them in XLA's threads" if part is compute else ""
        figures.append(f"{name} {spent_us:.0f} µs{beside}")
    return f"Processor time of the parts of a step, one after the other: {'; '.join(figures)}."


def aimed(aim: float, steps_per_s: float) -> str:
    """The aim, and whether a figure misses it."""
    return f"{aim:,.0f}{missed(steps_per_s < aim)}"


def _soak(url: str, process: psutil.Process, seconds: float) -> str:
    """Many players for a long time; an error of any of them ends the benchmark."""

    async def play() -> tuple[LoadResult, list[float]]:
        memory_mb: list[float] = []
        running = asyncio.create_task(websocket_load(url, PLAY, _SOAKING, seconds))
        while not running.done():
            memory_mb.append(process.memory_info().rss / 2**20)
            await asyncio.wait([running], timeout=seconds / 60)
        return await running, memory_mb

    load, memory_mb = uvloop.run(play())
    third = len(memory_mb) // 3
    before, after = max(memory_mb[third : 2 * third]), max(memory_mb[2 * third :])
    return (
        f"{_SOAKING} WebSockets at once for {load.seconds:.0f} s: {len(load.latencies_s):,} steps, "
        f"no error, p99 {load.latency_ms(99.0):.0f} ms. The server's memory was at most "
        f"{before:,.0f} MiB in the second third of that time and {after:,.0f} MiB in the last."
    )


def _wait_until_settled(process: psutil.Process) -> None:
    """Until the programs that a first step does not need are compiled as well."""
    deadline = time.monotonic() + _SETTLING_S
    while time.monotonic() < deadline:
        before = sum(process.cpu_times()[:2])
        time.sleep(2.0)
        if sum(process.cpu_times()[:2]) - before < 2.0 * _SETTLED_SHARE:
            return


if __name__ == "__main__":
    sys.exit(main())
