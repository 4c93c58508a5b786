"""Plan of a study, from a JSON file: servers with their tasks, agents, number of repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, read_json
from jaxserve.fields import TOKEN_BUDGETS
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action
from jaxserve.tasks.spec import TaskSpec, parse_task

AGENTS: tuple[str, ...] = ("default", "best_static", "heuristic", "ppo")
"""Agents whose order is compared."""
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
"""Fields of a task that may name a file beside the study."""
_MOST_REPEATS = 1000


@dataclass(frozen=True)
class Server:
    """One deployment of a study."""

    name: str
    """name of the server."""
    task: Mapping[str, Any]
    """content of the task file, in the time of the emulated GPU."""
    spec: TaskSpec
    """the task, checked."""
    computes: bool
    """whether the host computes the task's model, with the sizes in a ``config.json``, instead of
    emulating the task's GPU."""
    time_dilation: float
    """factor on the emulated GPU's times."""
    batch_cap: int
    """batch cap at the start of the engine, in force without a controller."""
    token_budget: int
    """tokens of one step."""
    calibration: CalibrationPlan
    """plan of the calibration."""
    settings: tuple[Mapping[str, float], ...]
    """further static settings to measure and predict."""

    @property
    def longest(self) -> int:
        """Tokens of the task's longest sequence."""
        return max(
            int(stream.prompt.quantiles[-1]) + int(stream.output.quantiles[-1])
            for stream in self.spec.streams
        )

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of all agents and of the further settings."""
        return (*AGENTS, *map(setting_name, self.settings))


@dataclass(frozen=True)
class Study:
    """Plan of a study."""

    repeats: int
    """test episodes, each of which every agent plays."""
    train_windows: int
    """control windows of PPO's training."""
    servers: tuple[Server, ...]
    """deployments to measure."""


def setting_name(setting: Mapping[str, float]) -> str:
    """Name of a setting, such as ``batch_cap=24``."""
    return ",".join(f"{name}={value:g}" for name, value in setting.items())


def study_path() -> Path:
    """Path of the packaged study."""
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
    lists: dict[str, Any] = {name: tuple(item.entries(name)) for name in item if name != "minutes"}
    plan = CalibrationPlan(
        **lists,
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
