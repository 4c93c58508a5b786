"""What a study does: its servers, their tasks, the agents, how often; read from a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, read_json
from jaxserve.limits import TOKEN_BUDGETS
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action
from jaxserve.tasks.spec import TaskSpec, parse_task

AGENTS: tuple[str, ...] = ("default", "best_static", "heuristic", "ppo")
"""Those whose order is compared."""
SPEC_VERSION = 1
_STUDY_FIELDS = ("spec_version", "repeats", "train_windows", "calibration", "servers")
_SERVER_FIELDS = (
    "task",
    "computes",
    "time_dilation",
    "batch_cap",
    "token_budget",
    "calibration",
    "settings",
)
_FILES_OF_TASK = ("hardware", "model")
"""What a task may name by a file beside the study."""
_MOST_REPEATS = 1000


@dataclass(frozen=True)
class Server:
    """One deployment of a study."""

    name: str
    task: Mapping[str, Any]
    """content of its task file, in the time of the GPU that is emulated."""
    spec: TaskSpec
    """the same, checked."""
    computes: bool
    """whether the host really computes the task's model, whose sizes are in a ``config.json``;
    otherwise it emulates the task's GPU."""
    time_dilation: float
    """how many times as slow the emulated GPU is."""
    batch_cap: int
    """sequences that it is started with, and that run without a controller."""
    token_budget: int
    """tokens of one of its steps."""
    calibration: CalibrationPlan
    """how it is measured before anything else."""
    settings: tuple[Mapping[str, float], ...]
    """further static settings, for the simulator to predict."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of the task."""
        return max(
            int(stream.prompt.quantiles[-1]) + int(stream.output.quantiles[-1])
            for stream in self.spec.streams
        )

    @property
    def agents(self) -> tuple[str, ...]:
        """All that are played: the agents, and the further settings by name."""
        return (*AGENTS, *map(setting_name, self.settings))


@dataclass(frozen=True)
class Study:
    """All that a study does."""

    repeats: int
    """episodes of every agent; each repeat is a test episode that all agents play."""
    train_windows: int
    """control windows that PPO is trained for."""
    servers: tuple[Server, ...]


def setting_name(setting: Mapping[str, float]) -> str:
    """Such as ``batch_cap=24``."""
    return ",".join(f"{name}={value:g}" for name, value in setting.items())


def study_path() -> Path:
    """The packaged study."""
    return data_dir() / "studies" / "live.json"


def load_study(path: Path) -> Study:
    """Reads a study and the tasks beside it.

    Raises:
      InputError: a file is missing or unreadable, or a field is wrong.
    """
    where = f"study {path.name}"
    top = JsonObject(read_json(path, where), where, _STUDY_FIELDS)
    top.whole("spec_version", SPEC_VERSION, SPEC_VERSION)
    servers = top.inside("servers")
    return Study(
        repeats=top.whole("repeats", 1, _MOST_REPEATS),
        train_windows=top.whole("train_windows", 1, 10**9),
        servers=tuple(_server(servers.inside(name), name, path.parent, top) for name in servers),
    )


def _plan(data: JsonObject) -> CalibrationPlan:
    item = data.inside("calibration", ("concurrency", "prompt_tokens", "output_tokens", "minutes"))
    plan = CalibrationPlan(
        **{name: tuple(item.entries(name)) for name in item if name != "minutes"},
        minutes=item.number("minutes", 0.01, 600, CalibrationPlan.minutes),
    )
    plan.check()
    return plan


def _server(data: JsonObject, name: str, folder: Path, study: JsonObject) -> Server:
    item = JsonObject(data, data.where, _SERVER_FIELDS)
    task = item.text("task")
    path = folder / task
    content = read_json(path, f"task {path}")
    for field in _FILES_OF_TASK:
        named = folder / str(content.get(field))
        if named.is_file():
            content[field] = str(named)
    spec = parse_task(content, path.stem)
    settings = []
    for each in item.entries("settings") if "settings" in item else ():
        setting = JsonObject(each, f"{item.where}: settings", KNOBS)
        for knob in setting:
            checks.one_of(f"{setting.where}: a knob", knob, spec.knobs)
        make_action(**setting)
        settings.append(dict(setting))
    return Server(
        name=name,
        task=content,
        spec=spec,
        computes="computes" in item and item.flag("computes"),
        time_dilation=item.number("time_dilation", 0.01, 1000),
        batch_cap=item.whole("batch_cap", 1, int(ACTION_BOUNDS["batch_cap"].high)),
        token_budget=item.whole("token_budget", *TOKEN_BUDGETS),
        calibration=_plan(item if "calibration" in item else study),
        settings=tuple(settings),
    )
