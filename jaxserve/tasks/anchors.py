"""Anchors: rewards of a random agent, the best static setting and an oracle on a task.

They turn an episode's mean reward into a score. Anchors are frozen in ``data/anchors`` together
with version and digest of the task they belong to, so that a score never depends on what else is
installed, and never silently outlives a change of the task.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject, refuse
from jaxserve.datafiles import data_dir, read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.spaces import ACTION_BOUNDS, check_knobs
from jaxserve.tasks.spec import TaskSpec

ANCHORS_VERSION = 1
_MAX_REWARD = 1e6


@dataclass(frozen=True)
class Anchors:
    """Mean reward per window of three agents on a task's test seeds."""

    task: str
    task_version: int
    task_digest: str
    """``TaskSpec.digest`` of the task that they were computed on."""
    random: float
    """random knobs in every window; scores 0."""
    best_static: float
    """the best knobs that are never changed; scores 0.5."""
    oracle: float
    """mean reward of knobs planned with knowledge of the episode's traffic, or 2 % more than the
    best static one where they gain less (``jaxserve.evaluation.headroom.MIN_SPAN``); scores 1."""
    best_static_action: Mapping[str, float]
    """the knobs of the best static setting."""
    provenance: Mapping[str, Any]
    """command and settings that computed the numbers."""
    best_rule: float | None = None
    """mean reward of the best autoscaling rule, tuned on training seeds; None without a fleet."""
    best_rule_setting: Mapping[str, Any] | None = None
    """that rule: its ``kind``, its ``values`` in their order, the constants of the ``fleet``, and
    the other ``knobs``."""

    def top_text(self) -> str:
        """Meaning of a score of 1, in words."""
        measured = self.provenance.get("oracle_measured", self.oracle)
        if self.best_rule is not None and measured >= self.oracle:
            return "a clairvoyant that knows the rates of the hours to come"
        if measured >= self.oracle:
            return "an oracle that knows the schedule"
        return f"2 % above the best static setting, because the oracle ({measured:.4f}) gains less"


def anchors_score(anchors: Anchors, mean_reward: float) -> float:
    """0 at random, 0.5 at best static, 1 at the oracle; linear in between, clipped to [0, 1]."""
    if mean_reward <= anchors.best_static:
        span = anchors.best_static - anchors.random
        return max(0.5 * (mean_reward - anchors.random) / span, 0.0)
    span = anchors.oracle - anchors.best_static
    return min(0.5 + 0.5 * (mean_reward - anchors.best_static) / span, 1.0)


def anchors_path(task: str, file: Path | None = None) -> Path:
    """Path of a task's anchors: with the package, or beside the file of a user's own task."""
    if file is not None:
        return file.with_suffix(".anchors.json")
    return data_dir() / "anchors" / f"{task}.json"


def load_anchors(spec: TaskSpec) -> Anchors:
    """The frozen anchors of a task.

    Raises:
      InputError: there are none, the task has changed since, or a field is wrong.
    """
    path = anchors_path(spec.name, spec.file)
    missing = f"task {spec.name} has no anchors, so it cannot be scored; {_command(spec)}"
    anchors = parse_anchors(read_json(path, f"anchors file {path.name}", missing))
    if anchors.task != spec.name:
        refuse(f"anchors file {path.name}: task", anchors.task, repr(spec.name))
    if anchors.task_version != spec.version:
        raise InputError(
            f"anchors file {path.name}: task_version is {anchors.task_version}, but the task is of "
            f"version {spec.version}; {_command(spec)}"
        )
    if anchors.task_digest != spec.digest:
        raise InputError(
            f"anchors file {path.name}: the task has changed since they were computed; "
            f"{_command(spec)}"
        )
    return anchors


def parse_anchors(data: Any) -> Anchors:
    """Validates the content of an anchors file.

    Raises:
      InputError: names the field, its value and what is allowed.
    """
    names = {known.name for known in dataclasses.fields(Anchors)}
    item = JsonObject(data, "anchors", names | {"spec_version"})
    item.whole("spec_version", ANCHORS_VERSION, ANCHORS_VERSION)
    random, best_static, oracle = (
        item.number(name, -_MAX_REWARD, _MAX_REWARD) for name in ("random", "best_static", "oracle")
    )
    if not random < best_static < oracle:
        found = [random, best_static, oracle]
        refuse(item.name("random, best_static and oracle"), found, "three rising rewards")
    rule = item.get("best_rule") is not None
    action = item.inside("best_static_action")
    try:
        knobs = {knob: float(value) for knob, value in check_knobs(action).items()}
    except (InputError, TypeError) as error:
        raise InputError(f"{action.where}: {error}") from None
    return Anchors(
        task=item.text("task"),
        task_version=item.whole("task_version", 1, 1_000_000),
        task_digest=item.text("task_digest"),
        random=random,
        best_static=best_static,
        oracle=oracle,
        best_static_action={
            knob: ACTION_BOUNDS[knob].number(value) for knob, value in knobs.items()
        },
        provenance=dict(item.inside("provenance")),
        best_rule=item.number("best_rule", -_MAX_REWARD, _MAX_REWARD) if rule else None,
        best_rule_setting=dict(item.inside("best_rule_setting")) if rule else None,
    )


def write_anchors(anchors: Anchors, file: Path | None = None) -> Path:
    """Writes anchors where ``load_anchors`` finds them.

    Args:
      file: of the task, if it is not built in.

    Raises:
      InputError: what is written would not load.
    """
    data = {"spec_version": ANCHORS_VERSION} | dataclasses.asdict(anchors)
    if anchors.best_rule is None:
        del data["best_rule"], data["best_rule_setting"]
    for name in ("random", "best_static", "oracle", "best_rule"):
        value = data.get(name)
        if value is None:
            continue
        data[name] = round(value, 6) if math.isfinite(value) else value
    parse_anchors(data)
    path = anchors_path(anchors.task, file)
    write_atomic(path, (json.dumps(data, indent=2) + "\n").encode())
    return path


def _command(spec: TaskSpec) -> str:
    return f"`jaxserve search {spec.file or spec.name}` computes them"
