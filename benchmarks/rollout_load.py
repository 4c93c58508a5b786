"""``python -m benchmarks.rollout_load``: durable recording, with an engine that computes nothing.

Clients, gateway and engine share the machine and its clock. Calls in sessions, calls of the engine
itself and writes to the disk take turns, so that other programs slow all of them alike. Streams of
a session and of the engine take turns as well; the engine writes into every event the time at which
it sent the event.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvloop

from benchmarks.gateway import cpu_s, open_client, percentile_ms, running_gateway
from benchmarks.page import missed, page_parser, publish
from jaxserve.checks import whole
from jaxserve.gateway.http.events import EventReader
from jaxserve.gateway.http.token_files import CONTROL
from server.local import LocalServer, free_port

_PATH = "/v1/chat/completions"
_PROMPT = "x" * 1000
_STREAMS = 16
_STAMPED, _EVERY_S, _ROUNDS = 100, 0.02, 5
_MORE_MS, _EVENT_MS, _PER_S, _GROWTH_PERCENT = (3.0, 15.0), 1.0, 300.0, 10.0
"""Aims. An open session keeps digests of what was said, so that memory grows by a little."""
_LINE = b"x" * 8192
"""About as long as the record of a call."""


@dataclass(frozen=True)
class Aim:
    """A figure for which there is an aim."""

    name: str
    """what it is."""
    value: float
    """what was measured."""
    aim: float
    """what is wanted."""
    unit: str = "ms"
    """of both."""
    least: bool = False
    """whether more is better; else less is."""

    @property
    def misses(self) -> bool:
        """Whether it is on the wrong side of its aim."""
        return self.value < self.aim if self.least else self.value > self.aim

    @property
    def row(self) -> str:
        """Of the table of aims."""
        side = "at least" if self.least else "at most"
        value, unit = f"{self.value:,.2f}".rstrip("0").rstrip("."), self.unit
        aim = f"{side} {self.aim:,g} {unit}{missed(self.misses)}"
        return f"| {self.name} | {value} {unit} | {aim} |"


def main() -> int:
    """Measures and prints one page; exit code 1 where an aim is missed, 2 after bad input."""
    parser = page_parser("benchmarks.rollout_load", __doc__)
    parser.add_argument("--sessions", type=int, default=64, help="at once (default 64)")
    parser.add_argument(
        "--completions", type=int, default=20_000, help="of all sessions (default 20000)"
    )
    parser.add_argument("--calls", type=int, default=1000, help="one at a time (default 1000)")
    chosen = parser.parse_args()
    found: list[Aim] = []

    def measure() -> str:
        page, aims = load_page(chosen.sessions, chosen.completions, chosen.calls)
        found.extend(aims)
        return page

    return publish(measure, chosen.markdown) or int(any(one.misses for one in found))


def load_page(sessions: int, completions: int, calls: int) -> tuple[str, list[Aim]]:
    """Starts engine and gateway and measures; Markdown, and the figures that have aims.

    Raises:
      InputError: an argument is out of range.
    """
    whole("--sessions", sessions, 1, 4096)
    whole("--completions", completions, 10 * sessions, 100_000_000)
    whole("--calls", calls, 10, 1_000_000)
    control_port = free_port()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        # Where other programs have the cores an engine takes long to answer, and is not gone.
        records = ("--sessions", f"{folder}/sessions", "--connect-s", "60")
        engine = LocalServer(
            Path(folder), arguments=("--no-access-log",), app="benchmarks.chat_engine:app"
        )
        with engine, running_gateway(engine.url, records, control_port) as (url, process):
            busy = psutil.cpu_percent(1.0)
            at = f"http://127.0.0.1:{control_port}"
            control = httpx.Client(base_url=at, headers=CONTROL.headers(at), trust_env=False)
            calls_said, found = _overhead(engine.url, url, control, calls, Path(folder))
            delays_said, delays = uvloop.run(_delays(engine.url, url, control))
            cpu_said, cpu = uvloop.run(_streams(url, control, process))
            crowd_said, crowd = uvloop.run(_crowd(url, control, process, sessions, completions))
            found += [*delays, cpu, *crowd]
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
                "The aims are for two cores that do nothing else.",
                "",
                "| what | found | aim |",
                "|---|--:|--:|",
                *(one.row for one in found),
                "",
                *calls_said,
                "",
                *delays_said,
                "",
                cpu_said,
                "",
                crowd_said,
            ]
            control.close()
    return "\n".join(lines) + "\n", found


def _key(control: httpx.Client, *, durable: bool) -> dict[str, str]:
    """Headers of a new session."""
    made = control.post("/sessions", json={"durable": durable}).raise_for_status().json()
    return {"authorization": f"Bearer {made['key']}"}


def _overhead(
    direct: str, through: str, control: httpx.Client, calls: int, folder: Path
) -> tuple[list[str], list[Aim]]:
    """Latency of calls that are not streamed, one at a time, the three ways in turn, and of the
    write to the disk that a durable session needs."""
    names = ("the engine itself", "in a session", "in a durable session")
    ways = (
        (direct, {}),
        (through, _key(control, durable=False)),
        (through, _key(control, durable=True)),
    )
    uvloop.run(_in_turns(ways, calls // 5, folder / "line"))
    *found, disk = uvloop.run(_in_turns(ways, calls, folder / "line"))
    lines = [
        "| call, not streamed | p50 ms | p99 ms | more p50 | more p99 |",
        "|---|--:|--:|--:|--:|",
    ]
    more: list[float] = []
    for name, values in zip(names, found, strict=True):
        own = [percentile_ms(values, share) for share in (50, 99)]
        more = [
            one - percentile_ms(found[0], share) for one, share in zip(own, (50, 99), strict=True)
        ]
        lines.append(f"| {name} | {own[0]:.2f} | {own[1]:.2f} | {more[0]:.2f} | {more[1]:.2f} |")
    own = " | ".join(f"{percentile_ms(disk, share):.2f}" for share in (50, 99))
    lines.append(f"| no call: {len(_LINE)} bytes added to a file, and `fsync` | {own} | | |")
    lines += ["", f"{calls} times each way, one at a time, the ways in turn."]
    call = "a call that is not streamed, in a durable session: more at"
    return lines, [
        Aim(f"{call} p50", more[0], _MORE_MS[0]),
        Aim(f"{call} p99", more[1], _MORE_MS[1]),
    ]


async def _in_turns(
    ways: Sequence[tuple[str, dict[str, str]]], calls: int, path: Path
) -> list[list[float]]:
    """Seconds of each call, by way, and seconds of each write to the disk."""
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


async def _delays(direct: str, through: str, control: httpx.Client) -> tuple[list[str], list[Aim]]:
    """Delay of streamed events, the two ways in turn."""
    ways = {
        "the engine itself": [(direct, {}) for _ in range(_STREAMS)],
        "in a durable session": [(through, _key(control, durable=True)) for _ in range(_STREAMS)],
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    async with open_client() as client:
        for _ in range(_ROUNDS):
            for name, streams in ways.items():
                late = await asyncio.gather(
                    *(_late(client, url, key, place) for place, (url, key) in enumerate(streams))
                )
                found[name] += [seconds for one in late for seconds in one]
    lines = ["| streamed event, from engine to client | p50 ms | p99 ms |", "|---|--:|--:|"]
    for name, values in found.items():
        own = " | ".join(f"{percentile_ms(values, share):.2f}" for share in (50, 99))
        lines.append(f"| {name} | {own} |")
    first, last = found.values()
    more = [percentile_ms(last, share) - percentile_ms(first, share) for share in (50, 99)]
    lines += [
        f"| more | {more[0]:.2f} | {more[1]:.2f} |",
        "",
        f"{_ROUNDS} rounds each way of {_STREAMS} streams at once, {_STAMPED} events each, one "
        f"every {1000 * _EVERY_S:.0f} ms.",
    ]
    return lines, [Aim("a streamed event: later at p50", more[0], _EVENT_MS)]


async def _late(client: Any, url: str, headers: dict[str, str], place: int) -> list[float]:
    """Seconds from the moment that the engine wrote into each event of a stream to its arrival.

    Args:
      place: among the streams, whose events come by turns.
    """
    await asyncio.sleep(place * _EVERY_S / _STREAMS)
    messages = [{"role": "user", "content": _PROMPT}]
    asked = {"model": "stub", "messages": messages, "stream": True}
    asked |= {"stamps": _STAMPED, "every_s": _EVERY_S}
    came: list[tuple[float, bytes]] = []
    async with client.post(url + _PATH, json=asked, headers=headers) as answer:
        async for chunk in answer.content.iter_any():
            came.append((time.monotonic(), chunk))
    found, reader = [], EventReader()
    for at_s, chunk in came:
        for event in reader.feed(chunk):
            for choice in (event.content or {}).get("choices", ()):
                if said := choice["delta"].get("content"):
                    found.append(at_s - float(said))
    if len(found) != _STAMPED:
        raise RuntimeError(f"a stream had {len(found)} events of {_STAMPED}")
    return found


async def _streams(url: str, control: httpx.Client, process: psutil.Process) -> tuple[str, Aim]:
    """CPU time of the gateway for each streamed event."""
    keys = [_key(control, durable=True) for _ in range(_STREAMS)]
    costs = []
    for _ in range(5):
        before = cpu_s(process)
        async with open_client() as client:
            bodies = await asyncio.gather(*(_call(client, url, key, stream=True) for key in keys))
        events = sum(body.count(b"data: {") for body in bodies)
        costs.append(1000.0 * (cpu_s(process) - before) / events)
    cost = statistics.median(costs)
    said = (
        f"CPU of the gateway per streamed event: {cost:.3f} ms (median of {len(costs)} rounds of "
        f"{_STREAMS} streams at once, all that a stream needs included)."
    )
    return said, Aim("a streamed event: CPU of the gateway", cost, _EVENT_MS)


async def _crowd(
    url: str, control: httpx.Client, process: psutil.Process, sessions: int, completions: int
) -> tuple[str, list[Aim]]:
    """Completions of many durable sessions at once, and memory over them."""
    keys = [_key(control, durable=True) for _ in range(sessions)]
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
    said = (
        f"{completions:,} completions in {sessions} durable sessions at once: "
        f"{completions / seconds:,.0f} per second, "
        f"{1000.0 * (cpu_s(process) - before) / completions:.2f} ms of the gateway's CPU each, "
        f"latency {percentile_ms(latencies, 50):.1f} ms at p50 and "
        f"{percentile_ms(latencies, 99):.1f} ms at p99. The gateway's memory was at most "
        f"{peaks[0]:.1f} MiB in the first third, {peaks[1]:.1f} MiB in the second and "
        f"{peaks[2]:.1f} MiB in the last."
    )
    each = f"completions in {sessions} durable sessions at once"
    growth = 100.0 * (peaks[2] / peaks[0] - 1.0)
    return said, [
        Aim(each, completions / seconds, _PER_S, "per second", least=True),
        Aim("memory: more in the last third than in the first", growth, _GROWTH_PERCENT, "%"),
    ]


if __name__ == "__main__":
    sys.exit(main())
