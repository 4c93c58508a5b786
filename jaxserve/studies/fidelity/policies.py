"""Policies in both simulators: their scores in the fast one hold in the reference simulator.

python -m jaxserve.studies.fidelity.policies
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxserve.agents.panel import build_agent
from jaxserve.agents.reference_rollout import reference_rollout, table_timer
from jaxserve.agents.task_setup import load_setup
from jaxserve.evaluation.held_out import evaluate_all
from jaxserve.runtime.process_pool import map_in_processes
from jaxserve.seeds import episode_key
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.tasks.anchors import anchors_score

TASKS = ("bursty_workload", "adversarial_multitenant")
TURNING = ("random", "cap_flapping", "kv_flapping")
"""Agents that turn knobs as a learner may, but no operator would."""
AGENTS = ("default", "best_static", "heuristic", "ppo", *TURNING)
EPISODES = 8
BAR = 0.03
"""Largest difference of mean scores that passes."""


def policy_transfer(
    tasks: Sequence[str] = TASKS, agents: Sequence[str] = AGENTS, episodes: int = EPISODES
) -> list[FidelityRow]:
    """One row per task and agent: difference of mean scores on the same test episodes."""
    jobs = [(task, agent, seed) for task in tasks for agent in agents for seed in range(episodes)]
    found = dict(zip(jobs, map_in_processes(_reference_score, jobs), strict=True))
    rows = []
    for task in tasks:
        setup = load_setup(task)
        for agent, evaluation in evaluate_all(setup, agents, episodes).agents.items():
            fast = evaluation.scores
            assert fast is not None
            reference = np.array([found[task, agent, seed] for seed in range(episodes)])
            detail = (
                f"{episodes} episodes; fast {fast.mean():.3f}, reference {reference.mean():.3f}, "
                f"episodes differ by {np.abs(fast - reference).mean():.3f} on average"
            )
            error = abs(float(fast.mean() - reference.mean()))
            rows.append(
                FidelityRow.within(f"transfer: {agent} on {task}", error, BAR, "score", detail)
            )
    return rows


def _reference_score(task: str, agent: str, seed: int) -> float:
    """Score of an episode in the reference simulator."""
    setup = load_setup(task)
    assert setup.anchors is not None
    policy = build_agent(agent, setup)
    found = reference_rollout(setup.env, policy, episode_key(seed, "test"), table_timer(task))
    return anchors_score(setup.anchors, float(found.parts.total.mean()))


if __name__ == "__main__":
    for row in policy_transfer():
        print(row)
