"""``python -m benchmarks.rollout_faults``: everything is killed, and what becomes of the tasks.

A service, two nodes with a gateway each, and an engine run as an operator runs them. At random
moments one of them is killed (KILL) and begins again, a node also so late that it was lost by then,
or files of service, node and gateway may not grow for a while, in the middle of a line as well; the
engine answers 429, 500, garbage, half an answer, and answers that lack a log-probability; nobody
listens for callbacks until a third of the tasks have ended, and longer, and then the first push of
each is refused. Some agents talk until their time is up, some end with an exit code, some sessions
are cancelled while their agents run. Every agent notes the answers that it got whole, and those
that it did not.
"""

from __future__ import annotations

import json
import math
import random
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

from benchmarks.page import page_parser, publish
from benchmarks.rollout_scene import FAULTS, NODES, SILENT_S, Scene
from jaxserve.checks import whole
from jaxserve.gateway.recording.records import CompletionRecord, read_records
from jaxserve.rollouts.builders import prefix_merging
from jaxserve.rollouts.export import TOO_LOW, exported
from jaxserve.rollouts.files import read_trajectories
from server.local import free_port

_AGENT = Path(__file__).with_name("faulted_agent.py")
_ENDED = ("COMPLETED", "ERROR", "TIMEOUT")
_HARMED = {
    "gateway": "killed: gateway",
    "service": "killed: service",
    "node": "killed: node",
    "lost node": "killed, and away until it was lost: node",
    "engine": "killed: engine",
    "disk": "disk full for a second",
}
"""Name of each fault in the table."""
_FILLER = -9000.0
"""Log-probability that no token has."""
_AHEAD = 6
"""Tasks submitted before a fault, as many as run at a time."""
_KINDS = ("talks", "talks", "late", "talks", "fails", "talks", "cancelled")
"""Of tasks, in turn."""
_TURNS = {"talks": 3, "late": 100_000, "fails": 2, "cancelled": 100_000}
_EXIT_CODES = {"talks": 0, "late": 0, "fails": 4, "cancelled": 0}
_BUDGETS_S = {"talks": 600, "late": 6, "fails": 600, "cancelled": 600}
_RIGHT = {
    "talks": ("COMPLETED", "ERROR"),
    "late": ("TIMEOUT", "ERROR"),
    "fails": ("ERROR",),
    "cancelled": ("ERROR",),
}
"""States in which they may end: any may be lost with its nodes, or find its disk full."""
_LIMIT_S = 3000.0
_AWAY_S = 75.0
"""Time in which nobody listens for callbacks at least, s."""


@dataclass
class FaultCounts:
    """Counts of a run."""

    tasks: int = 0
    states: Counter[str] = field(default_factory=Counter)
    """states of sessions, with their reasons."""
    harms: Counter[str] = field(default_factory=Counter)
    """number of faults by kind."""
    ends: Counter[str] = field(default_factory=Counter)
    """number of ends of each session."""
    refused: Counter[str] = field(default_factory=Counter)
    """refused pushes of each task's result."""
    pushed: Counter[str] = field(default_factory=Counter)
    """accepted pushes of each task's result."""
    noted: int = 0
    """complete answers to agents."""
    failures: Counter[str] = field(default_factory=Counter)
    """other answers to agents, by error."""
    recorded: Counter[str] = field(default_factory=Counter)
    """completions that are recorded, by outcome and reason."""
    lost: int = 0
    """answers that agents got whole, without a record that is completed."""
    doubled: int = 0
    """completions with several records."""
    differing: list[str] = field(default_factory=list)
    """sessions whose result is not what their records come to."""
    cancelled: set[str] = field(default_factory=set)
    """tasks that were cancelled while their agent ran, or had ended before."""
    crashes: int = 0
    """cancelled sessions that a node logged as failed."""
    away_s: float = 0.0
    """time in which results were due and nobody listened."""
    given_up: int = 0
    """tasks whose result is not pushed any more."""
    fillers: int = 0
    """completions with a missing log-probability, of sessions with a result."""
    masked_besides: int = 0
    """tokens of other completions that were masked with them."""
    attempts: Counter[int] = field(default_factory=Counter)
    """of sessions."""
    misjudged: list[str] = field(default_factory=list)
    """sessions whose state cannot be that of their agent."""
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
        wrong = self.lost or self.doubled or self.differing or self.misjudged or self.unexplained
        wrong = wrong or self.crashes or self.given_up or self.masked_besides
        return once and not wrong and len(self.pushed) == self.tasks


def run(folder: Path, tasks: int, harms: int, seed: int, say: Callable[[str], None]) -> FaultCounts:
    """Submits tasks, harms, waits, and counts. Tasks come as harms go on, so that all harms meet
    agents that run.

    Args:
      harms: how often something is killed or full, each kind in turn, in random order.
      say: who hears of it.
    """
    chance, outcome, began = random.Random(seed), FaultCounts(tasks), time.monotonic()
    left = [one for _ in range(-(-harms // len(_HARMED))) for one in _shuffled(chance)][:harms]
    ledger = folder / "noted"
    target = ThreadingHTTPServer(("127.0.0.1", free_port()), _target(outcome), False)
    port = target.server_address[1]
    with Scene(folder) as scene, target:
        listens, submitted, until, first_end = False, 0, began + _LIMIT_S, math.inf
        while time.monotonic() < until:
            due = tasks * (outcome.harms.total() + 1) / harms + min(_AHEAD, tasks // 4)
            while submitted < min(tasks, due):
                task = _task(submitted, ledger, f"http://127.0.0.1:{port}/")
                scene.ask("POST", "/rollout/task/submit", task)
                submitted += 1
            _cancel_running(outcome, scene, submitted)
            states = scene.ask("GET", "/rollout/status")["sessions"]
            over = sum(states[name] for name in _ENDED)
            first_end = min(first_end, time.monotonic()) if over else math.inf
            outcome.away_s = max(outcome.away_s, 0.0 if listens else time.monotonic() - first_end)
            if over >= tasks / 3 and outcome.away_s > _AWAY_S and not listens:
                listens = True
                target.server_bind()
                target.server_activate()
                threading.Thread(target=target.serve_forever, daemon=True).start()
            # Spread over the whole run: so many harms for so many ends.
            is_time = over * harms >= tasks * outcome.harms.total()
            if left and is_time and (states["RUNNING"] or over == submitted):
                time.sleep(chance.uniform(0.2, 1.5))
                if scene.harm(left[0], chance.choice(NODES), chance.randrange(1, 20_000)):
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


def _cancel_running(outcome: FaultCounts, scene: Scene, submitted: int) -> None:
    """Cancels the tasks that are meant to be, once their agents run."""
    for task in (_name(n) for n in range(submitted) if _kind(n) == "cancelled"):
        if task not in outcome.cancelled:
            (one,) = scene.ask("GET", f"/rollout/task/{task}")["sessions"]
            if one["state"] == "RUNNING":
                scene.ask("POST", f"/rollout/task/{task}/cancel")
            if one["state"] in ("RUNNING", *_ENDED):
                outcome.cancelled.add(task)


def _shuffled(chance: random.Random) -> list[str]:
    return chance.sample(tuple(_HARMED), len(_HARMED))


def _name(number: int) -> str:
    """Of a task."""
    return f"t{number}"


def _kind(number: int) -> str:
    """Of a task."""
    return _KINDS[number % len(_KINDS)]


def _task(number: int, ledger: Path, callback: str) -> dict[str, Any]:
    kind = _kind(number)
    ends = (str(_TURNS[kind]), str(_EXIT_CODES[kind]))
    return {
        "task_id": _name(number),
        "instruction": f"task {number}",
        "timeout_seconds": _BUDGETS_S[kind],
        "agent": {
            "command": [sys.executable, str(_AGENT), "{{INSTRUCTION}}", str(ledger), *ends],
            "model": "stub",
        },
        "callback_url": callback,
    }


def _count(outcome: FaultCounts, scene: Scene, folder: Path, ledger: Path) -> None:
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
    told = scene.ask("GET", "/tasks")["tasks"]
    outcome.given_up = sum(one["callback"] == "given up" for one in told)
    logged = "".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
    for number in range(outcome.tasks):
        task = _name(number)
        (one,) = scene.ask("GET", f"/rollout/task/{task}")["sessions"]
        outcome.states[f"{one['state']} {one['reason']}".strip()] += 1
        outcome.attempts[one.get("attempt", 0)] += 1
        if one["state"] not in _RIGHT[_kind(number)]:
            outcome.misjudged.append(one["session_id"])
        if one["reason"] == "cancelled":
            outcome.crashes += f"session {one['session_id']} failed" in logged
        # What ended with its node, or was cancelled, has no result to compare.
        if "completions" in one:
            _compare(outcome, one, folder, task)


def _compare(outcome: FaultCounts, told: dict[str, Any], folder: Path, task: str) -> None:
    """Whether a result, its trajectory's file and the records of its attempt say the same, and
    what was masked for missing log-probabilities."""
    (path,) = folder.glob(f"records/*/{told['records']}/records.jsonl")
    records = read_records(path)
    built = exported(prefix_merging(records, told["state"]))
    (kept,) = read_trajectories(folder / "state" / "traces" / task / "0.jsonl")
    completed = [record for record in records if record.outcome == "completed"]
    same = (told["completions"], told["traces"], told["trainable"]) == (
        len(completed),
        len(kept.traces),
        kept.trainable,
    ) and [trace.response_ids.tolist() for trace in kept.traces] == [
        trace.response_ids.tolist() for trace in built.traces
    ]
    if not same:
        outcome.differing.append(told["session_id"])
    filled = [record.sampled for record in completed if _lacks_logprob(record)]
    outcome.fillers += len(filled)
    outcome.masked_besides += kept.dropped.get(TOO_LOW, 0) - sum(filled)


def _lacks_logprob(record: CompletionRecord) -> bool:
    values = [choice.logprobs for choice in record.choices if choice.logprobs is not None]
    return any((one < _FILLER).any() for one in values)


def _target(outcome: FaultCounts) -> type[BaseHTTPRequestHandler]:
    class HarmedProcess(BaseHTTPRequestHandler):
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

    return HarmedProcess


def report(outcome: FaultCounts) -> str:
    """The results, as Markdown."""
    twice = sum(count > 1 for count in outcome.ends.values())
    pushes = f"{len(outcome.pushed)} tasks, {outcome.pushed.total()} times"
    rows = [
        ("tasks", outcome.tasks),
        *((said, outcome.harms[name]) for name, said in _HARMED.items()),
        ("answers that agents got whole", outcome.noted),
        ("of these, not recorded as completed", outcome.lost),
        ("completions that are recorded twice", outcome.doubled),
        ("other answers that agents got", _listed(outcome.failures)),
        ("completions on record", _listed(outcome.recorded)),
        ("sessions that ended", len(outcome.ends)),
        ("of these, twice", twice),
        ("states that they ended in", _listed(outcome.states)),
        ("of these, without a reason", outcome.unexplained),
        ("of these, that cannot be their agent's", len(outcome.misjudged)),
        ("sessions by attempts", _listed(outcome.attempts)),
        ("results that differ from their records", len(outcome.differing)),
        ("sessions cancelled while their agents ran", outcome.states["ERROR cancelled"]),
        ("of these, logged as failed by their node", outcome.crashes),
        ("completions that lack a log-probability, in results", outcome.fillers),
        ("tokens of other completions masked with them", outcome.masked_besides),
        ("seconds in which results were due and nobody listened", round(outcome.away_s)),
        ("callbacks refused", outcome.refused.total()),
        ("callbacks taken", pushes),
        ("callbacks given up", outcome.given_up),
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
        "A rollout service, two nodes with a gateway each and an engine were killed (KILL) at "
        "random moments and began again, or files of service, node and gateway could not grow. A "
        f"node was lost after {SILENT_S:g} s of silence, and a session whose node was lost twice "
        f"ended. Of the engine's answers {FAULTS:.0%} were 429, 500, garbage, half an answer, or "
        "lacked a log-probability. "
        "Nobody listened for callbacks until a third of the tasks had ended, and for "
        f"{_AWAY_S:g} s at least, and the first push "
        f"of each was refused with 503. Of {len(_KINDS)} agents one had {_BUDGETS_S['late']} s and "
        f"talked until they were over, one ended with exit code {_EXIT_CODES['fails']}, and one "
        "was cancelled while it ran.",
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
