"""``python -m benchmarks.rollout_faults``: everything is killed, and what becomes of the tasks.

A service, a node with its gateway, and an engine run as an operator runs them. At random moments
one of them is killed (KILL) and begins again, or files of service and gateway may not grow for a
while, in the middle of a line as well. The engine answers 429, 500, garbage and half an answer.
Nobody listens for callbacks until a third of the tasks have ended, and then the first push of each
is refused. Every agent notes the answers that it got whole, and those that it did not.
"""

from __future__ import annotations

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

from benchmarks.page import page_parser, publish
from jaxserve.checks import whole
from jaxserve.gateway.sessions.records import read_records
from jaxserve.rollouts.builders import prefix_merging
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.service.doors import SERVICE, Shown
from jaxserve.runtime.process_group import own_process
from server.local import free_port

_AGENT = Path(__file__).with_name("faulted_agent.py")
_ENDED = ("COMPLETED", "ERROR", "TIMEOUT")
_HARMED = ("gateway", "service", "node", "engine", "disk")
_FAULTS = 0.15
_FULL_S = 1.0
_LIMIT_S = 3000.0


@dataclass
class Outcome:
    """What was counted."""

    tasks: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """of sessions, with their reasons."""
    harms: Counter[str] = field(default_factory=Counter)
    """by what was killed, or was full."""
    ends: Counter[str] = field(default_factory=Counter)
    """how often each session ended."""
    refused: Counter[str] = field(default_factory=Counter)
    """pushes of each task's result that were refused."""
    pushed: Counter[str] = field(default_factory=Counter)
    """how often each task's result was taken."""
    noted: int = 0
    """answers that agents got whole."""
    failures: Counter[str] = field(default_factory=Counter)
    """other answers that agents got, by what was wrong."""
    recorded: Counter[str] = field(default_factory=Counter)
    """completions that are recorded, by outcome and reason."""
    lost: int = 0
    """answers that agents got whole, without a record that is completed."""
    doubled: int = 0
    """completions with several records."""
    differing: list[str] = field(default_factory=list)
    """sessions whose result is not what their records come to."""
    attempts: Counter[int] = field(default_factory=Counter)
    """of sessions."""
    seconds: float = 0.0
    """that it took."""

    @property
    def unexplained(self) -> int:
        """Sessions that are not COMPLETED, and do not say why."""
        return sum(count for said, count in self.states.items() if said in ("ERROR", "TIMEOUT"))

    @property
    def whole(self) -> bool:
        """Whether every task has one result and no answer was lost or counted twice."""
        once = len(self.ends) == self.tasks and set(self.ends.values()) <= {1}
        wrong = self.lost or self.doubled or self.differing or self.unexplained
        return once and not wrong and len(self.pushed) == self.tasks


class Scene:
    """All processes; each can be killed and begun again."""

    def __init__(self, folder: Path) -> None:
        """Args: an empty folder."""
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._end = contextlib.ExitStack()
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
        url = f"http://127.0.0.1:{self.port}"
        # The service makes its token when it begins.
        self.http = httpx.Client(base_url=url, auth=Shown(SERVICE, url, None), timeout=30.0)

    def __enter__(self) -> Scene:
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._end:
            self.http.close()
            for process in reversed(self._running.values()):
                process.terminate()
            for process in self._running.values():
                process.wait(60.0)

    def start(self, name: str) -> None:
        """Begins a process."""
        variables = {**os.environ, "CHAT_ENGINE_FAULTS": str(_FAULTS), "JAX_PLATFORMS": "cpu"}
        with (self._folder / f"{name}.log").open("ab") as printed:
            # Until the scene ends: what a killed process leaves behind is the scene's own matter.
            own = own_process(self._commands[name], env=variables, stdout=printed, stderr=printed)
            self._running[name] = self._end.enter_context(own)

    def harm(self, name: str, room: int) -> bool:
        """Kills one and begins it again; the gateway is begun again by its node. ``disk`` lets
        no file of service and gateway grow beyond ``room`` bytes for a while. Says whether there
        was anything to harm."""
        if name == "gateway":
            found = self._gateway()
            if found is not None:
                found.kill()
            return found is not None
        if name == "disk":
            running = [psutil.Process(self._running["service"].pid), self._gateway()]
            for process in filter(None, running):
                _limit(process, room)
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
      harms: how often something is killed or full, each kind in turn, in random order.
      say: who hears of it.
    """
    chance, outcome, began = random.Random(seed), Outcome(tasks), time.monotonic()
    left = [one for _ in range(-(-harms // len(_HARMED))) for one in _shuffled(chance)][:harms]
    ledger = folder / "noted"
    target = ThreadingHTTPServer(("127.0.0.1", free_port()), _target(outcome), False)
    port = target.server_address[1]
    with Scene(folder) as scene, target:
        for number in range(tasks):
            command = [sys.executable, str(_AGENT), "{{INSTRUCTION}}", str(ledger)]
            task = {
                "task_id": f"t{number}",
                "instruction": f"task {number}",
                "timeout_seconds": 600,
                "agent": {"command": command, "model": "stub"},
                "callback_url": f"http://127.0.0.1:{port}/",
            }
            scene.ask("POST", "/rollout/task/submit", task)
        listens, until = False, began + _LIMIT_S
        while time.monotonic() < until:
            states = scene.ask("GET", "/rollout/status")["sessions"]
            over = sum(states[name] for name in _ENDED)
            if over >= tasks / 3 and not listens:
                listens = True
                target.server_bind()
                target.server_activate()
                threading.Thread(target=target.serve_forever, daemon=True).start()
            # Spread over the whole run: so many harms for so many ends.
            is_time = over * harms >= tasks * outcome.harms.total()
            if left and is_time and states["RUNNING"]:
                time.sleep(chance.uniform(0.2, 1.5))
                if scene.harm(left[0], chance.randrange(1, 20_000)):
                    what = left.pop(0)
                    outcome.harms[what] += 1
                    say(f"{what}: {over} of {tasks} have ended")
            elif over == tasks and len(outcome.pushed) == tasks:
                break
            time.sleep(0.2)
        _count(outcome, scene, folder, ledger)
        if listens:
            target.shutdown()
    outcome.seconds = time.monotonic() - began
    return outcome


def _shuffled(chance: random.Random) -> list[str]:
    return chance.sample(_HARMED, len(_HARMED))


def _count(outcome: Outcome, scene: Scene, folder: Path, ledger: Path) -> None:
    """Reads what is told, and what is on the disk."""
    after = 0
    while events := scene.ask("GET", f"/events?after={after}")["events"]:
        after = events[-1]["seq"]
        outcome.ends.update(e["session_id"] for e in events if e["state"] in _ENDED)
    noted = [line.split(" ", 1) for line in ledger.read_text().splitlines()]
    outcome.noted = sum(what == "whole" for what, _ in noted)
    outcome.failures.update(said for what, said in noted if what == "failed")
    completed: Counter[str] = Counter()
    for path in folder.glob("records/*/*/records.jsonl"):
        records = read_records(path)
        outcome.recorded.update(f"{r.outcome} {r.reason}".strip() for r in records)
        completed.update(r.request_id for r in records if r.outcome == "completed")
    outcome.lost = sum(not completed[id] for what, id in noted if what == "whole")
    outcome.doubled = sum(count > 1 for count in completed.values())
    for number in range(outcome.tasks):
        (one,) = scene.ask("GET", f"/rollout/task/t{number}")["sessions"]
        outcome.states[f"{one['state']} {one['reason']}".strip()] += 1
        outcome.attempts[one.get("attempt", 0)] += 1
        if "records" in one and not _is_as_recorded(one, folder, f"t{number}"):
            outcome.differing.append(one["session_id"])


def _is_as_recorded(told: dict[str, Any], folder: Path, task: str) -> bool:
    """Whether a result, its trajectory's file and the records of its attempt say the same."""
    (path,) = folder.glob(f"records/*/{told['records']}/records.jsonl")
    records = read_records(path)
    built = exported(prefix_merging(records, told["state"]))
    (kept,) = read_trajectories(folder / "state" / "traces" / task / "0.jsonl")
    return (told["completions"], told["traces"], told["trainable"]) == (
        sum(record.outcome == "completed" for record in records),
        len(kept.traces),
        kept.trainable,
    ) and [trace.response_ids.tolist() for trace in kept.traces] == [
        trace.response_ids.tolist() for trace in built.traces
    ]


def _target(outcome: Outcome) -> type[BaseHTTPRequestHandler]:
    class Target(BaseHTTPRequestHandler):
        """Takes each result, but not at first."""

        def do_POST(self) -> None:
            """Takes one."""
            told = json.loads(self.rfile.read(int(self.headers["content-length"])))
            is_first = not outcome.refused[told["task_id"]]
            counted = outcome.refused if is_first else outcome.pushed
            counted[told["task_id"]] += 1
            self.send_response(503 if is_first else 200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Says nothing."""

    return Target


def report(outcome: Outcome) -> str:
    """What came of it, as Markdown."""
    twice = sum(count > 1 for count in outcome.ends.values())
    pushes = f"{len(outcome.pushed)} tasks, {outcome.pushed.total()} times"
    rows = [
        ("tasks", outcome.tasks),
        *((f"killed: {name}", outcome.harms[name]) for name in _HARMED if name != "disk"),
        ("disk full for a second", outcome.harms["disk"]),
        ("answers that agents got whole", outcome.noted),
        ("of these, not recorded as completed", outcome.lost),
        ("completions that are recorded twice", outcome.doubled),
        ("other answers that agents got", _listed(outcome.failures)),
        ("completions on record", _listed(outcome.recorded)),
        ("sessions that ended", len(outcome.ends)),
        ("of these, twice", twice),
        ("states that they ended in", _listed(outcome.states)),
        ("of these, without a reason", outcome.unexplained),
        ("sessions by attempts", _listed(outcome.attempts)),
        ("results that differ from their records", len(outcome.differing)),
        ("callbacks refused", outcome.refused.total()),
        ("callbacks taken", pushes),
        ("seconds", round(outcome.seconds)),
    ]
    return "\n".join(["| what | how many |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def _listed(counts: Counter[Any]) -> str:
    return "; ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def faults_page(tasks: int, harms: int, seed: int) -> tuple[str, bool]:
    """Runs it; Markdown, and whether nothing was lost or there twice.

    Raises:
      InputError: an argument is out of range.
    """
    whole("--tasks", tasks, 1, 100_000)
    whole("--harms", harms, 1, 100_000)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        said = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
        outcome = run(Path(folder), tasks, harms, seed, said)
    lines = [
        "# Faults of rollouts",
        "",
        f"Printed by `python -m benchmarks.rollout_faults --tasks {tasks} --harms {harms} "
        f"--seed {seed}`.",
        "",
        "A rollout service, a node with its gateway and an engine were killed (KILL) at random "
        "moments and began again, or files of service and gateway could not grow. Of the engine's "
        f"answers {_FAULTS:.0%} were 429, 500, garbage or half an answer. Nobody listened for "
        "callbacks until a third of the tasks had ended, and the first push of each was refused "
        "with 503.",
        "",
        report(outcome),
    ]
    return "\n".join(lines) + "\n", outcome.whole


def main() -> int:
    """Runs it and prints a table; exit code 1 where anything was lost or there twice."""
    parser = page_parser("benchmarks.rollout_faults", __doc__)
    parser.add_argument("--tasks", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--harms", type=int, default=30, help="how often (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default 0)")
    chosen = parser.parse_args()
    is_whole = False

    def measure() -> str:
        nonlocal is_whole
        page, is_whole = faults_page(chosen.tasks, chosen.harms, chosen.seed)
        return page

    return publish(measure, chosen.markdown) or int(not is_whole)


if __name__ == "__main__":
    sys.exit(main())
