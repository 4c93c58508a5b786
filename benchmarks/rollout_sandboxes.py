"""``python -m benchmarks.rollout_sandboxes``: what one node carries with many sandboxes.

Engine, gateway and a service with its own node run as an operator runs them. Agents take some
seconds elsewhere: the node waits, and their requests go through the gateway.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.gateway import cpu_s, running_gateway
from benchmarks.page import page_parser, publish
from jaxserve.checks import number, whole
from jaxserve.rollouts.service.client import SERVICE, TokenAuth
from jaxserve.runtime.child_processes import child_server
from server.local import LocalServer, free_port

_KIND = "benchmarks.waiting_sandbox:WaitingSandbox"
_REQUESTS = 2
_SHARES = (0.1, 1.0)
"""Sandboxes at once, as shares of the most."""
_POLL_S = 1.0
_MIB = 2**20
_MOST_SAMPLES = 4096
_OTHER_WORKERS = 10
"""Agents for each worker of the other stages."""
_NODE_WORKERS = 8
"""Agents at once of a node in a topology of several, for comparison."""


@dataclass(frozen=True)
class NodeLoad:
    """Sessions that a node carried, and their cost."""

    sandboxes: int
    """sandboxes of the node."""
    running: int
    """most agents that ran at once."""
    sessions: int
    """sessions that were run."""
    completed: int
    """sessions that ended as COMPLETED."""
    seconds: float
    """from the submission to the last end."""
    agent_s: float
    """time of an agent, s."""
    memory_mib: float
    """largest memory of the service with its node, RSS."""
    service_s: float
    """CPU time of the service with its node, s."""
    gateway_s: float
    """CPU time of the gateway, s."""

    @property
    def rate(self) -> float:
        """Completed sessions per second."""
        return self.completed / self.seconds

    @property
    def share(self) -> float:
        """The rate as a share of that of agents without any delay between them."""
        return self.rate / (self.sandboxes / self.agent_s)

    @property
    def cores(self) -> float:
        """Cores that service and gateway need where the rate is the ideal one."""
        each_s = (self.service_s + self.gateway_s) / self.sessions
        return each_s * self.sandboxes / self.agent_s

    @property
    def row(self) -> str:
        """Row of the table."""
        return (
            f"| {self.sandboxes} | {self.running} | {self.completed} of {self.sessions} | "
            f"{self.rate:.2f} | {self.share:.0%} | "
            f"{1000 * self.service_s / self.sessions:.0f} | "
            f"{1000 * self.gateway_s / self.sessions:.0f} | {self.memory_mib:.0f} |"
        )


def main() -> int:
    """Measures and prints; exit code 2 after bad input."""
    parser = page_parser("benchmarks.rollout_sandboxes", __doc__)
    parser.add_argument("--sandboxes", type=int, default=500, help="at once (default 500)")
    parser.add_argument("--rounds", type=int, default=2, help="sessions of each (default 2)")
    parser.add_argument("--seconds", type=float, default=100.0, help="of an agent (default 100)")
    chosen = parser.parse_args()
    return publish(
        lambda: sandboxes_page(chosen.sandboxes, chosen.rounds, chosen.seconds), chosen.markdown
    )


def sandboxes_page(sandboxes: int, rounds: int, seconds: float) -> str:
    """Measures all loads; Markdown.

    Raises:
      InputError: an argument is out of range.
    """
    whole("--sandboxes", sandboxes, 10, 1000)
    whole("--rounds", rounds, 1, _MOST_SAMPLES // sandboxes)
    number("--seconds", seconds, 0.1, 600.0)
    busy = psutil.cpu_percent(1.0)
    found = [_load(round(share * sandboxes), rounds, seconds) for share in _SHARES]
    most = found[-1]
    lines = [
        f"Agents of {seconds:g} s, sessions for each sandbox: {rounds}. Engine, gateway and "
        f"service shared {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}; other programs kept {busy:.0f} % of the "
        "cores busy before.",
        "",
        "| sandboxes | most agents at once | completed | sessions per s | of the ideal | "
        "service, CPU ms each | gateway, CPU ms each | service, MiB |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(one.row for one in found),
        "",
        f"Each agent sent {_REQUESTS} requests, and the other stages of a session had a worker for "
        f"{_OTHER_WORKERS} agents. The ideal is one session per sandbox and agent's "
        "time.",
        "",
        f"For {most.sandboxes} agents at once of {seconds:g} s, service and gateway need "
        f"{most.cores:.2f} cores. As many agents would fill "
        f"{most.sandboxes / _NODE_WORKERS:.0f} nodes that run {_NODE_WORKERS} at once.",
    ]
    return "\n".join(lines) + "\n"


def _load(at_once: int, rounds: int, seconds: float) -> NodeLoad:
    """Runs all sessions of a task on a service of its own."""
    runtime = {"kind": _KIND, "seconds": seconds, "requests": _REQUESTS}
    task = {"agent": {"command": "true"}, "runtime": runtime}
    control = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = LocalServer(
            folder, arguments=("--no-access-log",), app="benchmarks.chat_engine:app"
        )
        records = ("--sessions", f"{folder}/sessions", "--connect-s", "60")
        with (
            engine,
            running_gateway(engine.url, records, control) as (gateway, passing),
            _service(folder, gateway, control, at_once) as (http, service),
        ):
            samples = at_once * rounds
            before = [cpu_s(one) for one in (service, passing)]
            began = time.monotonic()
            given = {"task_id": "load", "instruction": "go on", "num_samples": samples, **task}
            http.post("/rollout/task/submit", json=given).raise_for_status()
            memory, running = 0.0, 0
            while True:
                states = http.get("/rollout/status").raise_for_status().json()["sessions"]
                if sum(states[one] for one in ("COMPLETED", "ERROR", "TIMEOUT")) == samples:
                    break
                memory = max(memory, service.memory_info().rss / _MIB)
                running = max(running, states["RUNNING"])
                time.sleep(_POLL_S)
            took = time.monotonic() - began
            spent = [cpu_s(one) for one in (service, passing)]
            cost = [after - earlier for after, earlier in zip(spent, before, strict=True)]
            return NodeLoad(
                at_once,
                running,
                samples,
                states["COMPLETED"],
                took,
                seconds,
                memory,
                *cost,
            )


@contextmanager
def _service(
    folder: Path, gateway: str, control: int, at_once: int
) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    """Runs ``jaxserve rollout serve``; yields a client and the process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "jaxserve.cli", "rollout", "serve", "--port", str(port)]
    command += ["--gateway", gateway, "--control", f"http://127.0.0.1:{control}"]
    command += ["--save-dir", f"{folder}/state", "--run-workers", str(at_once)]
    for pool in ("init", "post-run", "eval"):
        command += [f"--{pool}-workers", str(max(4, at_once // _OTHER_WORKERS))]
    with (
        (folder / "service.log").open("ab") as printed,
        child_server(command, f"{url}/health", stdout=printed, stderr=printed) as process,
        httpx.Client(base_url=url, auth=TokenAuth(SERVICE, url, None), timeout=600.0) as http,
    ):
        yield http, psutil.Process(process.pid)


if __name__ == "__main__":
    sys.exit(main())
