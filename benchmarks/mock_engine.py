"""``python -m benchmarks.mock_engine``: the mock engine's latencies against the simulator's.

A client in this process sends requests as ``vllm bench serve`` does: Poisson arrivals, random
prompts as token ids, streams that are timed event by event, and some requests before to warm up.
The reference simulator plays the same requests with the same knobs. Client and mock engine share
the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import aiohttp
import numpy as np
import orjson
import psutil

from benchmarks.page import page_parser, publish
from jaxserve.gateway.http.events import EventReader
from jaxserve.mock_engine.machine import build_machine
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.runtime.child_processes import child_server
from jaxserve.sim.machine.memory import BLOCK_TOKENS
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Knobs, ReferenceSettings, SchedulerSettings
from jaxserve.sim.reference.simulator import ReferenceSimulator
from server.local import free_port

_START_S = 0.5
"""Seconds of the host until the first request."""
_WATCH_S = 0.005
_WIDTH = 110
"""Characters of a line of the page."""
WARM_UP = 5
"""Requests before the counted ones."""
_APART_S = 1000.0
"""Seconds between warm-up and counted requests in the simulator."""


@dataclass(frozen=True)
class LoadTest:
    """Requests of one run; times are the GPU's."""

    rate_rps: float
    """mean arrivals per second."""
    requests: int
    """number of requests."""
    prompt_tokens: tuple[int, int] = (200, 1000)
    """range of prompt lengths."""
    output_tokens: tuple[int, int] = (100, 300)
    """range of output lengths."""
    seed: int = 0
    """seed of arrivals and lengths."""

    def draw(self) -> list[Request]:
        """The requests in order of arrival."""
        rng = np.random.default_rng(self.seed)
        arrivals_s = np.cumsum(rng.exponential(1 / self.rate_rps, self.requests))
        prompts = rng.integers(*self.prompt_tokens, self.requests, endpoint=True)
        outputs = rng.integers(*self.output_tokens, self.requests, endpoint=True)
        rows = zip(arrivals_s.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        return [Request(number, *row) for number, row in enumerate(rows)]


@dataclass(frozen=True)
class Latencies:
    """Means over the requests of a run, s of the GPU's time."""

    ttft_s: float
    """time to first token."""
    tpot_s: float
    """time per output token after the first."""
    running: float
    """mean number of requests in flight."""

    @classmethod
    def of(cls, ttft_s: np.ndarray, tpot_s: np.ndarray, load: LoadTest) -> Latencies:
        """Means of requests' latencies; Little's law gives the number in flight."""
        lengths = np.array([request.output_tokens for request in load.draw()])
        in_system_s = ttft_s + tpot_s * (lengths - 1)
        return cls(ttft_s.mean(), tpot_s.mean(), load.rate_rps * in_system_s.mean())


def simulated(settings: MockEngineSettings, load: LoadTest, warm_up: int = WARM_UP) -> Latencies:
    """Latencies of the reference simulator.

    Warm-up requests come long before, so that each counted request meets the same front-end delay.
    """
    machine = build_machine(settings)
    deployment = ReferenceSettings(
        queue_capacity=load.requests,
        front_end=machine.front_end,
        scheduler=SchedulerSettings(token_budget=settings.token_budget),
    )
    knobs = Knobs(
        batch_cap=settings.batch_cap,
        kv_capacity_tokens=machine.kv_blocks * BLOCK_TOKENS,
        speculation_depth=settings.speculation_depth,
        tier=settings.tier,
        priority_routing=settings.scheduling_policy == "priority",
    )
    counted = [
        replace(request, arrival_s=request.arrival_s + _APART_S, acceptance=machine.acceptance)
        for request in load.draw()
    ]
    first = [replace(one, id=load.requests + one.id, arrival_s=0.0) for one in counted[:warm_up]]
    requests = [*first, *counted]
    simulator = ReferenceSimulator(deployment, machine.cost, knobs, requests, settings.seed)
    end_s = requests[-1].arrival_s
    while simulator.now_s == 0.0 or np.isnan(simulator.log()["finish_s"]).any():
        end_s += 10.0
        simulator.advance(end_s, knobs)
    log = simulator.log()[warm_up:]
    return Latencies.of(log["ttft_s"], log["tpot_s"], load)


@dataclass(frozen=True)
class ClientMeasurement:
    """Measurements of a client of a mock engine."""

    latencies: Latencies
    """latencies of the requests."""
    late_s: float
    """mean delay of the client's own timers, s of the host."""
    cpu_us: float
    """CPU time of the server for each token."""


def served(settings: MockEngineSettings, load: LoadTest) -> ClientMeasurement:
    """Sends a load to a mock engine in a process of its own."""
    with mock_engine(settings) as (url, pid):
        server = psutil.Process(pid)
        before_s = sum(server.cpu_times()[:2])
        times, late_s = asyncio.run(_send_all(url, settings, load))
        cpu_s = sum(server.cpu_times()[:2]) - before_s
    ttft_s, tpot_s = settings.speed * np.array(times).T
    tokens = sum(request.output_tokens for request in load.draw())
    return ClientMeasurement(Latencies.of(ttft_s, tpot_s, load), late_s, 1e6 * cpu_s / tokens)


@contextmanager
def mock_engine(settings: MockEngineSettings) -> Iterator[tuple[str, int]]:
    """A mock engine in a process of its own; its address and process."""
    port = free_port()
    options = {**vars(settings), "port": port}
    command = [sys.executable, "-m", "jaxserve.cli", "mock-engine"]
    for name, value in options.items():
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    url = f"http://127.0.0.1:{port}"
    with child_server(command, f"{url}/health") as process:
        yield url, process.pid


async def _send_all(
    url: str, settings: MockEngineSettings, load: LoadTest
) -> tuple[Sequence[tuple[float, float]], float]:
    """TTFT and TPOT of every request, and the client's delay, s of the host."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as client:
        first = load.draw()[:WARM_UP]
        await asyncio.gather(*(_send(client, 0.0, request, load.seed) for request in first))
        start_s = time.perf_counter() + _START_S
        sends = [
            _send(client, start_s + request.arrival_s / settings.speed, request, load.seed)
            for request in load.draw()
        ]
        watch = asyncio.create_task(_watch())
        times = await asyncio.gather(*sends)
        watch.cancel()
        return times, (await watch)


async def _watch() -> float:
    """Mean delay of a timer until cancelled, s."""
    late_s = []
    with suppress(asyncio.CancelledError):
        while True:
            asked_s = time.perf_counter() + _WATCH_S
            await asyncio.sleep(_WATCH_S)
            late_s.append(time.perf_counter() - asked_s)
    return float(np.mean(late_s))


async def _send(
    client: aiohttp.ClientSession, at_s: float, request: Request, seed: int
) -> tuple[float, float]:
    """TTFT and TPOT of one request from its sending, s of the host."""
    rng = np.random.default_rng([seed, request.id])
    asked = {
        "prompt": rng.integers(100_000, size=request.prompt_tokens).tolist(),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body = orjson.dumps(asked)
    await asyncio.sleep(at_s - time.perf_counter())
    sent_s = time.perf_counter()
    first_s = last_s = 0.0
    reader = EventReader()
    async with client.post("/v1/completions", data=body) as answer:
        assert answer.status == 200
        async for chunk in answer.content.iter_any():
            now_s = time.perf_counter()
            for event in reader.feed(chunk):
                content = event.content or {}
                if content.get("choices"):
                    last_s = now_s
                    first_s = first_s or last_s
                elif "usage" in content:
                    assert content["usage"]["completion_tokens"] == request.output_tokens
    return first_s - sent_s, (last_s - first_s) / (request.output_tokens - 1)


def main() -> int:
    """Runs every speed with every rate and prints one page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.mock_engine", __doc__)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--hardware", default="h100-sxm-80gb")
    parser.add_argument(
        "--speeds", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0, 4.0], metavar="SPEED"
    )
    parser.add_argument("--rates", type=float, nargs="+", default=[2.0, 10.0, 30.0], metavar="RPS")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of the host, for each run (default 20)"
    )
    chosen = parser.parse_args()
    return publish(lambda: _page(chosen), chosen.markdown)


def _page(chosen: argparse.Namespace) -> str:
    lines = [
        "| speed | requests/s | requests | running | TTFT, simulated | served | off by "
        "| TPOT, simulated | served | off by | CPU a token | client late |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    loads = []
    for speed in chosen.speeds:
        for rate_rps in chosen.rates:
            settings = MockEngineSettings(chosen.model, chosen.hardware, speed=speed)
            count = max(20, round(rate_rps * speed * chosen.seconds))
            load = LoadTest(rate_rps, count)
            expected, run = simulated(settings, load), served(settings, load)
            loads.append(os.getloadavg()[0])
            cells = [f"{speed:g}", f"{rate_rps:g}", f"{count}", f"{expected.running:.0f}"]
            for name in ("ttft_s", "tpot_s"):
                one, other = getattr(expected, name), getattr(run.latencies, name)
                cells += [f"{1e3 * one:.2f} ms", f"{1e3 * other:.2f} ms", f"{other / one - 1:+.1%}"]
            cells += [f"{run.cpu_us:.0f} us", f"{1e3 * run.late_s:.1f} ms"]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    told = (
        f"{chosen.model} on {chosen.hardware}. Client and server shared {os.cpu_count()} cores; "
        f"the load average was {min(loads):.1f} to {max(loads):.1f} (1 minute, after each run)."
    )
    return "\n".join([*lines, "", *textwrap.wrap(told, _WIDTH)]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
