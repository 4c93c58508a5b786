"""The evaluation protocol of a task: its agents, variants and episodes.

All agents play the same held-out test episodes. PPO plays them once for every training seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.choice import in_one_program
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import RandomPolicy
from jaxserve.agents.panel import PRIVILEGED_AGENTS, best_static_policy, build_agent
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress, StageProgress, stage_progress
from jaxserve.agents.reference_rollout import reference_rollout, table_timer
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.evaluation.episode_statistics import EpisodeStatistics
from jaxserve.evaluation.held_out import check_episodes, evaluate
from jaxserve.registry import make
from jaxserve.runtime.process_pool import map_in_processes
from jaxserve.seeds import episode_key
from jaxserve.sim.traffic.traces import Trace
from jaxserve.studies.compare.intervals import Matrix
from jaxserve.studies.compare.results import (
    RESULTS_VERSION,
    PlayedEpisodes,
    TaskComparison,
    VariantPlays,
    from_data,
    to_data,
)
from jaxserve.studies.compare.trained import Trained, TrainingRun, plan_run, trained
from jaxserve.studies.compare.variants import Variant, variants
from jaxserve.tasks.anchors import Anchors, load_anchors
from jaxserve.tasks.spec import TaskSpec

REFERENCE_EPISODES = 16
"""Episodes in the reference simulator, each of which takes seconds."""
_BASELINES = ("random", "default", "best_static", "heuristic")
_ELSEWHERE = ("default", "best_static", "heuristic")
RETUNED = "retuned_static"
"""Name of the agent with the best constant knobs of the variant, searched there."""


@dataclass(frozen=True)
class Case:
    """Checked inputs of a comparison on a task."""

    setup: TaskSetup
    """task and environment."""
    anchors: Anchors
    """mean rewards that scores are measured by."""
    run: TrainingRun
    """training run of PPO, finished or not."""
    variants: tuple[Variant, ...]
    """variants of the task."""
    episodes: int
    """test episodes of every policy."""
    directory: Path
    """directory of the task's results."""


def prepare(
    task: str,
    out: Path,
    *,
    seeds: int,
    steps: int | None,
    episodes: int,
    hardware: str,
    trace: Path | None,
    recorded: Trace | None,
) -> Case:
    """Checks all arguments before the long work starts.

    Args:
      task: name or alias of a task, or path of a task file.
      out: directory of results and runs, with a directory for each task.
      seeds: number of trained policies; a run in ``out`` must have the same.
      steps: control windows of each policy, ``STEPS`` if None; if given, a run in ``out`` must
        have the same.
      episodes: test episodes, see ``evaluate``.
      hardware, trace, recorded: see ``variants``.

    Raises:
      InputError: an argument is wrong, the task has no anchors, or a run in ``out`` does not fit.
    """
    check_episodes(episodes)
    setup = load_setup(task)
    directory = out / setup.spec.name
    return Case(
        setup=setup,
        anchors=load_anchors(setup.spec),
        run=plan_run(directory / "ppo", setup, seeds, steps),
        variants=variants(setup, hardware, trace, recorded),
        episodes=episodes,
        directory=directory,
    )


def compare_task(
    case: Case, progress: Progress | None = None
) -> tuple[TaskComparison, Trained, bool]:
    """Trains policies if necessary, and plays all agents.

    Returns:
      the comparison, the policies, and whether an earlier call with the same policies had stored
      the comparison.

    Raises:
      InputError: as ``trained``.
      jaxserve.learning.training.Interrupted: by Ctrl-C during training.
    """
    policies = trained(case.setup, case.run, progress)
    about = _about(case, policies)
    path = case.directory / "results.json"
    if path.is_file():
        data = JsonObject(read_json(path, str(path)), str(path))
        if data.get("about") == about:
            return from_data(data, case.anchors), policies, True
    result = TaskComparison(
        about=about,
        anchors=case.anchors,
        plays=_own_plays(case, policies, progress),
        variants=tuple(
            _played_variant(case, variant, policies, progress) for variant in case.variants
        ),
        reference=_reference(case, policies, progress),
    )
    write_atomic(path, (json.dumps(to_data(result)) + "\n").encode())
    return result, policies, False


def _about(case: Case, policies: Trained) -> dict[str, Any]:
    """All inputs of the results except the code."""
    run = case.run
    anchors = {name: getattr(case.anchors, name) for name in ("random", "best_static", "oracle")}
    return {
        "results_version": RESULTS_VERSION,
        **case.setup.inputs,
        "anchors": anchors,
        "best_static_action": dict(case.anchors.best_static_action),
        "seeds": list(run.seeds),
        "windows": run.windows,
        "config": vars(run.config),
        "weights": policies.digest,
        "episodes": case.episodes,
        "variants": {
            variant.name: variant.reason if variant.setup is None else dict(variant.setup.inputs)
            for variant in case.variants
        },
        "jax": jax.__version__,
    }


def _own_plays(
    case: Case, policies: Trained, progress: Progress | None
) -> dict[str, PlayedEpisodes]:
    """Episodes of all agents on the task itself."""
    setup = case.setup
    agents: dict[str, Sequence[Policy]] = {
        name: [build_agent(name, setup, progress)] for name in (*_BASELINES, *PRIVILEGED_AGENTS)
    }
    agents["ppo"] = policies.policies
    return _plays(setup.spec.name, setup, agents, case.episodes, progress)


def _played_variant(
    case: Case, variant: Variant, policies: Trained, progress: Progress | None
) -> VariantPlays:
    """Episodes in a variant, of agents tuned on the task and of ``RETUNED``."""
    if variant.setup is None:
        return VariantPlays(variant.name, {}, variant.reason)
    agents: dict[str, Sequence[Policy]] = {
        name: [build_agent(name, case.setup)] for name in _ELSEWHERE
    }
    agents |= {
        RETUNED: [best_static_policy(variant.setup, progress)],
        "ppo": policies.policies,
    }
    stage = f"{case.setup.spec.name}, {variant.name}"
    return VariantPlays(variant.name, _plays(stage, variant.setup, agents, case.episodes, progress))


def _reference(case: Case, policies: Trained, progress: Progress | None) -> dict[str, Matrix]:
    """Mean rewards in the reference simulator, by agent; a row for each seed of PPO."""
    agents = {name: build_agent(name, case.setup) for name in _ELSEWHERE}
    found = reference_objectives(
        case.setup.spec,
        [*agents.values(), *policies.policies],
        min(case.episodes, REFERENCE_EPISODES),
        stage_progress(f"{case.setup.spec.name}, reference simulator", progress),
    )
    single = {name: found[index : index + 1] for index, name in enumerate(agents)}
    return single | {"ppo": found[len(agents) :]}


def reference_objectives(
    spec: TaskSpec,
    policies: Sequence[Policy],
    episodes: int,
    progress: StageProgress | None = None,
) -> NDArray[np.float64]:
    """Mean reward per window in the reference simulator, float64[P, E].

    The reference simulator faces the same requests under the same key, on all cores.

    Args:
      spec: task.
      policies: P policies.
      episodes: number of test episodes, from the first.
      progress: called with the number of finished and of all episodes.
    """
    jobs = [(spec, policy, seed) for policy in policies for seed in range(episodes)]
    found = map_in_processes(_objective, jobs, progress=progress)
    return np.reshape(found, (len(policies), episodes))


def _objective(spec: TaskSpec, policy: Policy, seed: int) -> float:
    env = make(spec)
    found = reference_rollout(env, policy, episode_key(seed, "test"), table_timer(spec))
    return float(np.mean(found.parts.total))


def in_company(policies: Sequence[Policy]) -> list[Policy]:
    """The policies in one program with all compared kinds of policies.

    The task, its variants and its pictures share the compiled program.
    """
    return in_one_program([*policies, RandomPolicy(), HeuristicPolicy()])[: len(policies)]


def _plays(
    stage: str,
    setup: TaskSetup,
    agents: Mapping[str, Sequence[Policy]],
    episodes: int,
    progress: Progress | None,
) -> dict[str, PlayedEpisodes]:
    steps = stage_progress(stage, progress)
    players = iter(in_company([policy for each in agents.values() for policy in each]))
    plays = {}
    for name, policies in agents.items():
        found = [
            evaluate(setup, next(players), episodes, progress=steps).statistics for _ in policies
        ]
        plays[name] = _play(found)
    return plays


def _play(runs: Sequence[EpisodeStatistics]) -> PlayedEpisodes:
    """Statistics of one agent, a row for each run."""

    def stacked(name: str) -> NDArray[np.float64]:
        return np.stack([each.sums.column(name) for each in runs])

    return PlayedEpisodes(
        objective=np.stack([each.objective for each in runs]),
        good=stacked("good"),
        decided=stacked("decided"),
        first_tokens=stacked("first_tokens"),
        # Thousandths of requests, which keeps the file small.
        ttft_exceeded=np.round(stacked("ttft_exceeded"), 3),
        changes_per_minute=np.stack([each.changes_per_minute for each in runs]),
    )
