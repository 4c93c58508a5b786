"""``python -m benchmarks.rollout_load``: completions captured durably, before an engine that
computes nothing.

Clients, gateway and engine share the machine. Calls of a session, calls of the engine itself and
writes to the disk alone take turns, so that what else runs on the machine meets all of them.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvloop

from benchmarks.gateway import cpu_s, open_client, percentile_ms, running_gateway
from benchmarks.page import page_parser, publish
from jaxserve.checks import whole
from jaxserve.gateway.door_tokens import CONTROL
from server.local import LocalServer, free_port

_PATH = "/v1/chat/completions"
_PROMPT = "x" * 1000
_STREAMS = 16
_LINE = b"x" * 8192
"""About as long as the record of a call."""


def main() -> int:
    """Measures and prints one page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.rollout_load", __doc__)
    parser.add_argument("--sessions", type=int, default=64, help="at once (default 64)")
    parser.add_argument(
        "--completions", type=int, default=20_000, help="of all sessions (default 20000)"
    )
    parser.add_argument("--calls", type=int, default=1000, help="one at a time (default 1000)")
    chosen = parser.parse_args()
    return publish(
        lambda: load_page(chosen.sessions, chosen.completions, chosen.calls), chosen.markdown
    )


def load_page(sessions: int, completions: int, calls: int) -> str:
    """Starts engine and gateway, measures, and returns Markdown.

    Raises:
      InputError: an argument is out of range.
    """
    whole("--sessions", sessions, 1, 4096)
    whole("--completions", completions, 10 * sessions, 100_000_000)
    whole("--calls", calls, 10, 1_000_000)
    control = free_port()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        records = ("--sessions", f"{folder}/sessions")
        engine = LocalServer(
            Path(folder), arguments=("--no-access-log",), app="benchmarks.chat_engine:app"
        )
        with engine, running_gateway(engine.url, records, control) as (url, process):
            busy = psutil.cpu_percent(1.0)
            at = f"http://127.0.0.1:{control}"
            door = httpx.Client(base_url=at, headers=CONTROL.headers(at), trust_env=False)
            lines = [
                "# Load of sessions",
                "",
                "Printed by `python -m benchmarks.rollout_load`.",
                "",
                f"Clients, gateway and an engine that computes nothing share {os.cpu_count()} "
                f"cores, {platform.machine()}, Python {platform.python_version()}, at niceness "
                f"{os.getpriority(os.PRIO_PROCESS, 0)}. Before the first call other programs kept "
                f"{busy:.0f} % of the cores busy.",
                "",
                "Wanted of a session on two cores: at most 3 ms more at p50 and 15 ms more at p99 "
                "for a call that is not streamed, at most 1 ms for a streamed event, at least 300 "
                "completions per second in 64 durable sessions, and memory that stays.",
                "",
                *_overhead(engine.url, url, door, calls, Path(folder)),
                "",
                uvloop.run(_streams(url, door, process)),
                "",
                uvloop.run(_crowd(url, door, process, sessions, completions)),
            ]
            door.close()
    return "\n".join(lines)


def _key(door: httpx.Client, *, durable: bool) -> dict[str, str]:
    """Headers of a new session."""
    made = door.post("/sessions", json={"durable": durable}).raise_for_status().json()
    return {"authorization": f"Bearer {made['key']}"}


def _overhead(direct: str, through: str, door: httpx.Client, calls: int, folder: Path) -> list[str]:
    """Latency of calls that are not streamed, one at a time, the three ways in turn, and of what
    the disk does for the last of them."""
    names = ("the engine itself", "in a session", "in a durable session")
    ways = (
        (direct, {}),
        (through, _key(door, durable=False)),
        (through, _key(door, durable=True)),
    )
    uvloop.run(_in_turns(ways, calls // 5, folder / "line"))
    *found, disk = uvloop.run(_in_turns(ways, calls, folder / "line"))
    lines = [
        "| call, not streamed | p50 ms | p99 ms | more p50 | more p99 |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, values in zip(names, found, strict=True):
        own = [percentile_ms(values, share) for share in (50, 99)]
        more = [
            one - percentile_ms(found[0], share) for one, share in zip(own, (50, 99), strict=True)
        ]
        lines.append(f"| {name} | {own[0]:.2f} | {own[1]:.2f} | {more[0]:.2f} | {more[1]:.2f} |")
    own = " | ".join(f"{percentile_ms(disk, share):.2f}" for share in (50, 99))
    lines.append(f"| no call: {len(_LINE)} bytes added to a file, and `fsync` | {own} | | |")
    return [*lines, "", f"{calls} times each way, one at a time, the ways in turn."]


async def _in_turns(
    ways: Sequence[tuple[str, dict[str, str]]], calls: int, path: Path
) -> list[list[float]]:
    """Seconds of each call by its way, and those of the disk."""
    found: list[list[float]] = [[] for _ in (*ways, path)]
    async with open_client() as client:
        with path.open("ab", buffering=0) as file:
            for _ in range(calls):
                for (url, headers), seconds in zip(ways, found[:-1], strict=True):
                    began = time.perf_counter()
                    await _call(client, url, headers)
                    seconds.append(time.perf_counter() - began)
                began = time.perf_counter()
                file.write(_LINE)
                os.fsync(file.fileno())
                found[-1].append(time.perf_counter() - began)
    return found


async def _call(client: Any, url: str, headers: dict[str, str], **more: Any) -> bytes:
    messages = [{"role": "user", "content": _PROMPT}]
    asked = {"model": "stub", "messages": messages, **more}
    async with client.post(url + _PATH, json=asked, headers=headers) as answer:
        body = await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"an answer had status {answer.status}: {body[:200]!r}")
        return body


async def _streams(url: str, door: httpx.Client, process: psutil.Process) -> str:
    """CPU time of the gateway for each streamed event."""
    keys = [_key(door, durable=True) for _ in range(_STREAMS)]
    costs = []
    for _ in range(5):
        before = cpu_s(process)
        async with open_client() as client:
            bodies = await asyncio.gather(*(_call(client, url, key, stream=True) for key in keys))
        events = sum(body.count(b"data: {") for body in bodies)
        costs.append(1000.0 * (cpu_s(process) - before) / events)
    return (
        f"CPU of the gateway per streamed event: {statistics.median(costs):.3f} ms (median of "
        f"{len(costs)} rounds of {_STREAMS} streams at once, all that a stream needs included)."
    )


async def _crowd(
    url: str, door: httpx.Client, process: psutil.Process, sessions: int, completions: int
) -> str:
    """Completions of many durable sessions at once, and memory over them."""
    keys = [_key(door, durable=True) for _ in range(sessions)]
    memory_mib: list[float] = []
    latencies: list[float] = []
    left = completions

    async def speak(client: Any, headers: dict[str, str]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await _call(client, url, headers)
            latencies.append(time.perf_counter() - began)
            if left % max(1, completions // 300) == 0:
                memory_mib.append(process.memory_info().rss / 2**20)

    began, before = time.perf_counter(), cpu_s(process)
    async with open_client() as client:
        await asyncio.gather(*(speak(client, key) for key in keys))
    seconds = time.perf_counter() - began
    third = len(memory_mib) // 3
    peaks = [max(memory_mib[n * third : (n + 1) * third or None]) for n in range(3)]
    return (
        f"{completions:,} completions in {sessions} durable sessions at once: "
        f"{completions / seconds:,.0f} per second, "
        f"{1000.0 * (cpu_s(process) - before) / completions:.2f} ms of the gateway's CPU each, "
        f"latency {percentile_ms(latencies, 50):.1f} ms at p50 and "
        f"{percentile_ms(latencies, 99):.1f} ms at p99. The gateway's memory was at most "
        f"{peaks[0]:.1f} MiB in the first third, {peaks[1]:.1f} MiB in the second and "
        f"{peaks[2]:.1f} MiB in the last."
    )


if __name__ == "__main__":
    sys.exit(main())
