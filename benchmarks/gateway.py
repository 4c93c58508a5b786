"""``python -m benchmarks.gateway``: cost of the gateway in front of an engine without cost.

Client, gateway and engine share the machine. Calls through the gateway and calls to the engine
itself take turns, so that what else runs on the machine meets both.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil
import uvloop

from benchmarks.page import page_parser, publish
from jaxserve.checks import whole
from jaxserve.runtime.child_processes import child_server
from server.local import LocalServer, free_port

_PATH = "/v1/completions"
_CALL = {"model": "stub", "prompt": "x" * 400, "max_tokens": 64}
_STREAMS, _EVENTS, _EVERY_S = 32, 100, 0.02
_CROWD, _CROWD_EVENTS, _CROWD_EVERY_S = 1000, 20, 0.5
_AT_ONCE = 16
_KEPT = 1000
_WINDOW_KEPT_S = 2.0  # so that the soak is longer than what is kept for the next window
_STOP_S = 120.0
_TOKEN = re.compile(rb'"text":" token"')


def main() -> int:
    """Runs all rounds and prints one page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.gateway", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each load (default 5)")
    parser.add_argument(
        "--calls", type=int, default=1000, help="calls of a round, each way (default 1000)"
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=36_000,
        help="requests over which memory is watched (default 36000: an hour of 10 per second)",
    )
    chosen = parser.parse_args()
    return publish(
        lambda: gateway_page(chosen.rounds, chosen.calls, chosen.requests), chosen.markdown
    )


def gateway_page(rounds: int, calls: int, requests: int) -> str:
    """Starts engine and gateway, measures, and returns Markdown.

    Raises:
      InputError: an argument is out of range.
    """
    for option, value, low, high in (
        ("--rounds", rounds, 1, 1000),
        ("--calls", calls, 100, 1_000_000),
        ("--requests", requests, 300, 100_000_000),
    ):
        whole(option, value, low, high)
    with tempfile.TemporaryDirectory() as folder:
        engine = LocalServer(
            Path(folder), arguments=("--no-access-log",), app="benchmarks.stub_engine:app"
        )
        with engine, running_gateway(engine.url) as (url, process):
            busy = psutil.cpu_percent(1.0)
            lines = [
                "# Gateway load",
                "",
                "Printed by `python -m benchmarks.gateway`.",
                "",
                f"Client, gateway and an engine that computes nothing share {os.cpu_count()} "
                f"cores, {platform.machine()}, Python {platform.python_version()}. Before the "
                f"first round other programs kept {busy:.0f} % of the cores busy.",
                "",
                "Aims on two cores: at most 1.5 ms of overhead at p50 for a call that is not "
                "streamed, 0.1 ms of CPU for a streamed event, 1,000 streams at once without an "
                "error, and memory that stays over an hour's worth of requests.",
                "",
                *_overhead(engine.url, url, rounds, calls),
                "",
                _cpu(url, process, rounds),
                "",
                uvloop.run(_crowd(url, process)),
                "",
                uvloop.run(_soak(url, process, requests)),
            ]
    return "\n".join(lines)


@contextmanager
def running_gateway(
    engine: str, more: Sequence[str] = (), control: int | None = None
) -> Iterator[tuple[str, psutil.Process]]:
    """Runs ``jaxserve gateway``; yields its address and process.

    Args:
      more: further arguments.
      control: port of control, a free one by default.
    """
    port, control = free_port(), control or free_port()
    command = [sys.executable, "-m", "jaxserve.cli", "gateway", "--engine", f"vllm={engine}"]
    command += ["--port", str(port), "--control-port", str(control)]
    command += ["--records-kept", str(_KEPT), "--window-kept-s", str(_WINDOW_KEPT_S), *more]
    url, quiet = f"http://127.0.0.1:{port}", subprocess.DEVNULL
    with child_server(command, f"{url}/health", stop_s=_STOP_S, stderr=quiet) as running:
        yield url, psutil.Process(running.pid)


def _overhead(direct: str, through: str, rounds: int, calls: int) -> list[str]:
    """Latency of single calls without streaming, through the gateway and to the engine in turn."""
    names = ("the engine itself", "through the gateway")
    found: list[dict[str, list[float]]] = []
    uvloop.run(_in_turns(direct, through, calls // 5))
    for _ in range(rounds):
        pair = uvloop.run(_in_turns(direct, through, calls))
        found.append(dict(zip(names, pair, strict=True)))
    lines = ["| call, not streamed | p50 ms | p99 ms |", "|---|--:|--:|"]
    middle: dict[tuple[str, int], float] = {}
    for name in names:
        for share in (50, 99):
            values = [percentile_ms(one[name], share) for one in found]
            middle[name, share] = statistics.median(values)
        lines.append(f"| {name} | {middle[name, 50]:.2f} | {middle[name, 99]:.2f} |")
    more = [middle[names[1], share] - middle[names[0], share] for share in (50, 99)]
    lines.append(f"| overhead | {more[0]:.2f} | {more[1]:.2f} |")
    rows = f"Each figure is the median of {rounds} rounds of {calls} calls, one at a time."
    return [*lines, "", rows]


async def _in_turns(direct: str, through: str, calls: int) -> tuple[list[float], list[float]]:
    both: tuple[list[float], list[float]] = ([], [])
    async with open_client() as client:
        for number in range(2 * calls):
            place = number % 2
            began = time.perf_counter()
            async with client.post((direct, through)[place] + _PATH, json=_CALL) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"an answer had status {answer.status}")
            both[place].append(time.perf_counter() - began)
    return both


def _cpu(url: str, process: psutil.Process, rounds: int) -> str:
    """CPU time of the gateway per event, opening and closing of a stream included."""
    costs = []
    for _ in range(rounds):
        before = cpu_s(process)
        events = sum(uvloop.run(_streams(url, _STREAMS, _EVENTS, _EVERY_S)))
        costs.append(1000.0 * (cpu_s(process) - before) / events)
    return (
        f"CPU of the gateway per streamed event: {statistics.median(costs):.3f} ms (median of "
        f"{rounds} rounds of {_STREAMS} streams of {_EVENTS} events, one every "
        f"{1000 * _EVERY_S:.0f} ms; from {min(costs):.3f} to {max(costs):.3f})."
    )


async def _crowd(url: str, process: psutil.Process) -> str:
    before = cpu_s(process)
    began = time.perf_counter()
    found = await _streams(url, _CROWD, _CROWD_EVENTS, _CROWD_EVERY_S)
    seconds = time.perf_counter() - began
    whole = sum(events == _CROWD_EVENTS for events in found)
    return (
        f"{_CROWD:,} streams at once, {_CROWD_EVENTS} events each, one every {_CROWD_EVERY_S:g} "
        f"s: {whole:,} whole, {_CROWD - whole} errors, in {seconds:.1f} s (the engine alone takes "
        f"at least {_CROWD_EVENTS * _CROWD_EVERY_S:.0f} s); CPU per event "
        f"{1000.0 * (cpu_s(process) - before) / sum(found):.3f} ms."
    )


async def _streams(url: str, count: int, events: int, every_s: float) -> list[int]:
    """Number of events of each concurrent stream; broken streams do not count."""
    asked = {"model": "stub", "stream": True, "max_tokens": events, "every_s": every_s}

    async def one(client: aiohttp.ClientSession) -> int:
        try:
            async with client.post(url + _PATH, json=asked) as answer:
                text = await answer.read()
                complete = answer.status == 200 and text.endswith(b"data: [DONE]\n\n")
                return len(_TOKEN.findall(text)) if complete else 0
        except aiohttp.ClientError:
            return 0

    async with open_client() as client:
        return await asyncio.gather(*(one(client) for _ in range(count)))


async def _soak(url: str, process: psutil.Process, requests: int) -> str:
    """Memory over many requests, a fourth of them streams."""
    memory_mb: list[float] = []
    errors, left = 0, requests

    async def play(client: aiohttp.ClientSession) -> None:
        nonlocal left, errors
        while left > 0:
            left -= 1
            asked = {**_CALL, "stream": left % 4 == 0}
            async with client.post(url + _PATH, json=asked) as answer:
                await answer.read()
                errors += answer.status != 200
            if left % max(1, requests // 300) == 0:
                memory_mb.append(process.memory_info().rss / 2**20)

    began, before = time.perf_counter(), cpu_s(process)
    async with open_client() as client:
        await asyncio.gather(*(play(client) for _ in range(_AT_ONCE)))
    seconds = time.perf_counter() - began
    third = len(memory_mb) // 3
    return (
        f"{requests:,} requests, {_AT_ONCE} at a time: {errors} errors, {requests / seconds:,.0f} "
        f"per second, {1000.0 * (cpu_s(process) - before) / requests:.2f} ms of the gateway's CPU "
        f"each. Its measurements for the next control window are of the last {_WINDOW_KEPT_S:g} s, "
        f"and of {_KEPT:,} records. Its memory was at most {max(memory_mb[:third]):.1f} MiB in the "
        f"first third, {max(memory_mb[third : 2 * third]):.1f} MiB in the second and "
        f"{max(memory_mb[2 * third :]):.1f} MiB in the last."
    )


def open_client() -> aiohttp.ClientSession:
    """Client without a limit of connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600.0)
    )


def percentile_ms(seconds: Sequence[float], share: int) -> float:
    """A percentile of times, ms."""
    ordered = sorted(seconds)
    return 1000.0 * ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process, s."""
    return sum(process.cpu_times()[:2])


if __name__ == "__main__":
    sys.exit(main())
