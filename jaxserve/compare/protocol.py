"""The evaluation protocol of a task: which agents play where, on which episodes.

Everybody plays the same held-out test episodes. PPO plays them once for every training seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxserve.agents.evaluation import check_episodes, evaluate
from jaxserve.agents.panel import (
    PRIVILEGED_AGENTS,
    Setting,
    best_static_policy,
    build_agent,
    load_setting,
)
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress
from jaxserve.compare.reference import reference_objectives
from jaxserve.compare.results import Column, Play, TaskComparison, from_data, to_data
from jaxserve.compare.statistics import Matrix
from jaxserve.compare.trained import Run, Trained, plan_run, trained
from jaxserve.compare.transfer import Variant, variants
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.tasks import checks
from jaxserve.tasks.anchors import Anchors, load_anchors

REFERENCE_EPISODES = 16
"""Episodes in the reference simulator, which takes seconds for each."""
_BASELINES = ("random", "default", "best_static", "heuristic")
_TRANSFERRED = ("default", "best_static", "heuristic")
RETUNED = "retuned_static"
"""The best static setting of a setting that was transferred to, searched there anew."""


@dataclass(frozen=True)
class Case:
    """A task as it is to be compared; every mistake in it was found."""

    setting: Setting
    anchors: Anchors
    run: Run
    variants: tuple[Variant, ...]
    trace: Path | None
    episodes: int
    directory: Path


def prepare(
    task: str,
    out: Path,
    *,
    seeds: int,
    steps: int | None,
    episodes: int,
    hardware: str,
    trace: Path | None,
) -> Case:
    """Checks all that can be wrong before the long work starts.

    Args:
      out: where results and runs of all tasks are kept, in a directory for each.
      seeds: policies that are trained, or that a run in ``out`` must have.
      steps: control windows that each plays, ``STEPS`` if None; if given, a run in ``out`` must
        have as many.
      episodes, hardware, trace: see ``evaluate`` and ``variants``.

    Raises:
      InputError: an argument is wrong, the task has no anchors, or a run in ``out`` does not fit.
    """
    check_episodes(episodes)
    setting = load_setting(task)
    directory = out / setting.env.name
    return Case(
        setting=setting,
        anchors=load_anchors(setting.spec),
        run=plan_run(directory / "ppo", setting, seeds, steps),
        variants=variants(setting, hardware, trace),
        trace=trace,
        episodes=episodes,
        directory=directory,
    )


def compare_task(
    case: Case, progress: Progress | None = None
) -> tuple[TaskComparison, Trained, bool]:
    """Trains what is not trained yet, and lets everybody play.

    Returns:
      what was found, the policies, and whether the results were those of an earlier call with the
      same policies.

    Raises:
      InputError: as ``trained``.
      jaxserve.agents.training.Interrupted: by Ctrl-C during training.
    """
    policies = trained(case.setting, case.run, progress)
    about = _about(case, policies)
    path = case.directory / "results.json"
    if path.is_file():
        data = checks.mapping(read_json(path, str(path)), str(path))
        if data.get("about") == about:
            return from_data(data, case.anchors), policies, True
    result = TaskComparison(
        about=about,
        anchors=case.anchors,
        plays=_own_plays(case, policies, progress),
        columns=tuple(_transfer(case, variant, policies, progress) for variant in case.variants),
        reference=_reference(case, policies, progress),
    )
    write_atomic(path, (json.dumps(to_data(result)) + "\n").encode())
    return result, policies, False


def _about(case: Case, policies: Trained) -> dict[str, Any]:
    """Everything that the results depend on, but the code."""
    run = case.run
    config = {name: value for name, value in vars(run.config).items() if name != "updates"}
    anchors = {name: getattr(case.anchors, name) for name in ("random", "best_static", "oracle")}
    return {
        "task": case.setting.env.name,
        "task_version": case.setting.spec.version,
        "anchors": anchors,
        "best_static_action": dict(case.anchors.best_static_action),
        "seeds": list(run.seeds),
        "windows": run.windows,
        "config": config,
        "weights": policies.digest,
        "episodes": case.episodes,
        "settings": [[variant.name, variant.reason] for variant in case.variants],
        "trace": case.trace and hashlib.sha256(case.trace.read_bytes()).hexdigest()[:16],
        "jax": jax.__version__,
    }


def _own_plays(case: Case, policies: Trained, progress: Progress | None) -> dict[str, Play]:
    """The task itself, where there is everybody."""
    setting = case.setting
    agents: dict[str, Sequence[Policy]] = {
        name: [build_agent(name, setting, progress)] for name in (*_BASELINES, *PRIVILEGED_AGENTS)
    }
    return _plays(setting, agents | {"ppo": policies.policies}, case.episodes, progress)


def _transfer(case: Case, variant: Variant, policies: Trained, progress: Progress | None) -> Column:
    """A setting that nobody was trained or tuned in, but for the one that is tuned there."""
    if variant.setting is None:
        return Column(variant.name, {}, variant.reason)
    agents: dict[str, Sequence[Policy]] = {
        name: [build_agent(name, case.setting)] for name in _TRANSFERRED
    }
    agents |= {
        RETUNED: [best_static_policy(variant.setting, progress)],
        "ppo": policies.policies,
    }
    return Column(variant.name, _plays(variant.setting, agents, case.episodes, progress))


def _reference(case: Case, policies: Trained, progress: Progress | None) -> dict[str, Matrix]:
    """The same episodes in the other simulator; PPO with every seed."""
    agents = {name: build_agent(name, case.setting) for name in _TRANSFERRED}
    stage = f"{case.setting.env.name}, reference simulator"

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(stage, done, total)

    found = reference_objectives(
        case.setting.spec,
        [*agents.values(), *policies.policies],
        min(case.episodes, REFERENCE_EPISODES),
        report,
    )
    single = {name: found[index : index + 1] for index, name in enumerate(agents)}
    return single | {"ppo": found[len(agents) :]}


def _plays(
    setting: Setting,
    agents: Mapping[str, Sequence[Policy]],
    episodes: int,
    progress: Progress | None,
) -> dict[str, Play]:
    def report(_: str, done: int, total: int) -> None:
        if progress is not None:
            progress(setting.env.name, done, total)

    plays = {}
    for name, policies in agents.items():
        found = [
            evaluate(setting, policy, episodes, progress=report).statistics for policy in policies
        ]
        plays[name] = Play(
            objective=np.stack([each.objective for each in found]),
            slo_attainment=np.stack([each.slo_attainment for each in found]),
        )
    return plays
