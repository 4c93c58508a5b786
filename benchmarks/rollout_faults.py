"""``python -m benchmarks.rollout_faults``: everything is killed, and what becomes of the tasks.

A service, a node with its gateway, and an engine run as an operator runs them. At random moments
one of them is killed (KILL) and begins again, or may not write to the disk for a while; the engine
answers 429, 500, garbage and half an answer; the target of callbacks is down at first. Every agent
notes the answers that it got whole.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from jaxserve.errors import InputError
from jaxserve.gateway.sessions.records import read_records
from server.local import free_port

_AGENT = Path(__file__).with_name("faulted_agent.py")
_ENDED = ("COMPLETED", "ERROR", "TIMEOUT")
_KILLED = ("gateway", "service", "node", "engine", "disk")
_FAULTS = 0.15
_FULL_S = 1.0
_LIMIT_S = 3000.0


@dataclass
class Outcome:
    """What was counted."""

    tasks: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """of sessions, with their reasons."""
    kills: Counter[str] = field(default_factory=Counter)
    """by what was killed."""
    ends: Counter[str] = field(default_factory=Counter)
    """how often each session ended."""
    pushed: Counter[str] = field(default_factory=Counter)
    """how often each task's result was taken."""
    noted: int = 0
    """answers that agents got whole."""
    lost: int = 0
    """of these, those without a record that is completed."""
    doubled: int = 0
    """of these, those with several records."""
    attempts: Counter[int] = field(default_factory=Counter)
    """of sessions."""
    seconds: float = 0.0
    """that it took."""

    @property
    def whole(self) -> bool:
        """Whether every task has one result and no answer was lost."""
        once = len(self.ends) == self.tasks and set(self.ends.values()) <= {1}
        return once and not self.lost and not self.doubled and len(self.pushed) == self.tasks


class Scene:
    """All processes; each can be killed and begun again."""

    def __init__(self, folder: Path) -> None:
        """Args: an empty folder."""
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        engine, self.port = free_port(), free_port()
        topology = {
            "rollout": {
                "port": self.port,
                "save_dir": str(folder / "state"),
                "silent_s": 60,
                "attempts": 50,
                "callback_attempts": 100,
            },
            "gateway": {"heartbeat_s": 0.2, "sessions": str(folder / "records")},
            "nodes": [
                {
                    "id": "n",
                    "port": free_port(),
                    "control_port": free_port(),
                    "inference": {"engine": "vllm", "base_url": f"http://127.0.0.1:{engine}"},
                    "workers": {"init": 4, "run": 6},
                }
            ],
        }
        path = folder / "topology.yaml"
        path.write_text(yaml.safe_dump(topology))
        jaxserve = [sys.executable, "-m", "jaxserve.cli", "rollout"]
        uvicorn = [sys.executable, "-m", "uvicorn", "benchmarks.chat_engine:app"]
        self._commands = {
            "engine": [*uvicorn, "--port", str(engine), "--no-access-log"],
            "service": [*jaxserve, "serve", "--topology", str(path)],
            "node": [*jaxserve, "gateway", "--topology", str(path)],
        }
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30.0)

    def __enter__(self) -> Scene:
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        for process in reversed(self._running.values()):
            process.terminate()
        for process in self._running.values():
            process.wait(60.0)
        self.http.close()

    def start(self, name: str) -> None:
        """Begins a process."""
        variables = {**os.environ, "CHAT_ENGINE_FAULTS": str(_FAULTS), "JAX_PLATFORMS": "cpu"}
        with (self._folder / f"{name}.log").open("ab") as printed:
            self._running[name] = subprocess.Popen(
                self._commands[name], env=variables, stdout=printed, stderr=printed
            )

    def harm(self, name: str) -> bool:
        """Kills one and begins it again; the gateway is begun again by its node. ``disk`` lets
        neither service nor gateway write for a while. Says whether there was anything to harm."""
        if name == "gateway":
            found = self._gateway()
            if found is not None:
                found.kill()
            return found is not None
        if name == "disk":
            running = [psutil.Process(self._running["service"].pid), self._gateway()]
            for process in filter(None, running):
                _limit(process, 1)
            time.sleep(_FULL_S)
            for process in filter(None, running):
                _limit(process, resource.RLIM_INFINITY)
            return True
        self._running[name].kill()
        self._running[name].wait()
        self.start(name)
        return True

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """An answer of the service; waits until it has one."""
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            try:
                answer = self.http.request(method, path, json=body)
                if answer.is_success:
                    return answer.json()
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{method} {path} was not answered")

    def _gateway(self) -> psutil.Process | None:
        try:
            for child in psutil.Process(self._running["node"].pid).children():
                if "gateway" in child.cmdline():
                    return child
        except psutil.Error:
            pass
        return None


def _limit(process: psutil.Process, size: int) -> None:
    """No file may grow beyond a size."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def run(folder: Path, tasks: int, harms: int, seed: int, say: Callable[[str], None]) -> Outcome:
    """Submits tasks, harms, waits, and counts.

    Args:
      harms: how often something is killed.
      say: who hears of it.
    """
    chance, outcome, began = random.Random(seed), Outcome(tasks), time.monotonic()
    ledger = folder / "noted"
    target = ThreadingHTTPServer(("127.0.0.1", free_port()), _target(outcome, began + 5.0))
    threading.Thread(target=target.serve_forever, daemon=True).start()
    with Scene(folder) as scene:
        for number in range(tasks):
            command = [sys.executable, str(_AGENT), "{{INSTRUCTION}}", str(ledger)]
            task = {
                "task_id": f"t{number}",
                "instruction": f"task {number}",
                "timeout_seconds": 600,
                "agent": {"command": command, "model": "stub"},
                "callback_url": f"http://127.0.0.1:{target.server_port}/",
            }
            scene.ask("POST", "/rollout/task/submit", task)
        left = harms
        until = began + _LIMIT_S
        while time.monotonic() < until:
            states = scene.ask("GET", "/rollout/status")["sessions"]
            over = sum(states[name] for name in _ENDED)
            if left and (states["RUNNING"] or states["POST_RUN"] or over):
                time.sleep(chance.uniform(0.2, 1.5))
                what = chance.choice(_KILLED)
                if scene.harm(what):
                    outcome.kills[what] += 1
                    left -= 1
                    say(f"{what}: {over} of {tasks} have ended")
            elif over == tasks and len(outcome.pushed) == tasks:
                break
            time.sleep(0.2)
        _count(outcome, scene, folder, ledger)
    target.shutdown()
    outcome.seconds = time.monotonic() - began
    return outcome


def _count(outcome: Outcome, scene: Scene, folder: Path, ledger: Path) -> None:
    """Reads what is told, and what is on the disk."""
    after = 0
    while events := scene.ask("GET", f"/events?after={after}")["events"]:
        after = events[-1]["seq"]
        outcome.ends.update(e["session_id"] for e in events if e["state"] in _ENDED)
    for number in range(outcome.tasks):
        (one,) = scene.ask("GET", f"/rollout/task/t{number}")["sessions"]
        outcome.states[f"{one['state']} {one['reason']}".strip()] += 1
        outcome.attempts[one.get("attempt", 0)] += 1
    noted = ledger.read_text().split() if ledger.exists() else []
    outcome.noted = len(noted)
    recorded: Counter[str] = Counter()
    for path in folder.glob("records/*/*/records.jsonl"):
        records = read_records(path)
        recorded.update(r.request_id for r in records if r.outcome == "completed")
    outcome.lost = sum(not recorded[id] for id in noted)
    outcome.doubled = sum(recorded[id] > 1 for id in noted)


def _target(outcome: Outcome, up_s: float) -> type[BaseHTTPRequestHandler]:
    class Target(BaseHTTPRequestHandler):
        """Takes results, from some moment on."""

        def do_POST(self) -> None:
            """Takes one."""
            told = json.loads(self.rfile.read(int(self.headers["content-length"])))
            up = time.monotonic() > up_s
            if up:
                outcome.pushed[told["task_id"]] += 1
            self.send_response(200 if up else 503)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Says nothing."""

    return Target


def report(outcome: Outcome) -> str:
    """What came of it, as Markdown."""
    kills = ", ".join(f"{name} {count}" for name, count in sorted(outcome.kills.items()))
    states = "; ".join(f"{count} {name}" for name, count in outcome.states.most_common())
    twice = sum(count > 1 for count in outcome.ends.values())
    rows = [
        ("tasks", outcome.tasks),
        ("harmed", kills),
        ("tasks with a result", len(outcome.ends)),
        ("ended twice", twice),
        ("results pushed", f"{len(outcome.pushed)} tasks, {sum(outcome.pushed.values())} times"),
        ("ends", states),
        ("attempts of a session, at most", max(outcome.attempts)),
        ("answers that agents got whole", outcome.noted),
        ("of these, lost", outcome.lost),
        ("of these, recorded twice", outcome.doubled),
        ("seconds", round(outcome.seconds)),
    ]
    return "\n".join(["| what | how many |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def main() -> int:
    """Runs it and prints a table; exit code 1 where anything was lost or there twice."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollout_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--harms", type=int, default=25, help="how often (default 25)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default 0)")
    chosen = parser.parse_args()
    if min(chosen.tasks, chosen.harms) < 1:
        print(InputError("--tasks and --harms must be 1 or more"), file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        said = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
        outcome = run(Path(folder), chosen.tasks, chosen.harms, chosen.seed, said)
    print(report(outcome))
    return 0 if outcome.whole else 1


if __name__ == "__main__":
    sys.exit(main())
